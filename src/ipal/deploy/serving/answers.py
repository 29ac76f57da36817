"""A model that answers requests, and that another can take the place of in between."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import scipy.sparse as sp
import torch

from ipal.data.csr import Neighbours
from ipal.data.graph import Graph
from ipal.deploy.predict import Predictions, predict
from ipal.deploy.serving.limits import Limits, OverloadError, UnexpectedError
from ipal.deploy.serving.questions import Question, read_question
from ipal.errors import DataError, IpalError
from ipal.estimator.files import loaded
from ipal.estimator.model import Model
from ipal.estimator.open_world.scores import SMOOTHED
from ipal.state.snapshot import Snapshot

DIGITS = 6
"""Decimals of a probability in a response."""
Body = bytes | bytearray
Facts = dict[str, Any]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """What all answers share, whichever model gives them."""

    limits: Limits
    threads: int = 1
    directed: bool | None = None
    """Of requests that do not say; None for how the model learned."""


@dataclass(frozen=True)
class ModelFile:
    """A model's file as it was read: whoever begins later answers by the same, whatever the file holds by then."""

    path: Path
    content: bytes = field(repr=False)
    version: str
    """The beginning of the content's SHA-256 digest."""


@dataclass(frozen=True, eq=False)
class Reply:
    """A response body, its counts for the metrics, and the model that gave it."""

    content: bytes
    nodes: int
    rejected: int
    version: str


Found = tuple[dict[str, Any], int, int]
"""What is answered, as JSON data, and how many nodes were predicted and rejected."""
Answer = Callable[[Model, Question], Found]
"""What is made of a question; sent to workers."""


def predicted(model: Model, question: Question) -> Found:
    """The prediction that was asked for."""
    found = predict(
        model,
        question.graph,
        question.nodes,
        reject=question.reject,
        coverage=question.coverage,
    )
    plain = as_plain_data(found, probabilities=question.probabilities is not False)
    return plain, len(found.nodes), int(found.rejected.sum())


class Answers:
    """Answers by the model in use, in this process. A request is answered by the model that it began with."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._model: tuple[Model, str]
        self._next: tuple[Model, str]

    def load(self, file: ModelFile) -> Facts:
        """Load a model and try it, beside the one in use."""
        torch.set_num_threads(self._settings.threads)
        model = loaded(Snapshot.of(file.content, file.path), file.path)
        x = np.ones((2, model.num_features), dtype=np.float32)
        for features in (x, sp.csr_array(x)):  # all libraries are loaded then, too
            predict(model, Graph.of(features, Neighbours.none(2), symmetric=True))
        self._next = model, file.version
        return {**facts(model), "version": file.version, "directed": self._directed(model)}

    @property
    def is_alive(self) -> bool:
        """As long as this process is."""
        return True

    def use(self) -> None:
        """Use the model that was loaded last."""
        self._model = self._next
        del self._next

    def answer(self, body: Body, kind: str, reply: Answer | None = None) -> Reply | Exception:
        """Errors are returned, not raised: a traceback would keep the request's data alive."""
        model, version = self._model
        try:
            question = read_question(body, kind, self._settings.limits, self._directed(model))
            plain, nodes, rejected = (reply or predicted)(model, question)
            return Reply(msgspec.json.encode({"version": version, **plain}), nodes, rejected, version)
        except IpalError as error:
            return type(error)(str(error))
        except MemoryError:
            return OverloadError("There is too little memory for this request now: send a smaller graph.")
        except RecursionError:
            return DataError("The body is nested too deeply to be a graph.")
        except Exception:
            log.exception("Unexpected error")
            return UnexpectedError()

    def _directed(self, model: Model) -> bool:
        return model.schema.directed if self._settings.directed is None else self._settings.directed

    def close(self) -> None:
        """Nothing is left open."""


def facts(model: Model) -> Facts:
    """Method, classes, inputs and memory of a model."""
    return {
        "method": model.name,
        "classes": model.classes_.tolist(),
        "features": model.num_features,
        "feature_names": list(model.schema.columns),
        "hops": model.reach,
        "hops_to_reject": model.reach + SMOOTHED,
        **model.memory_report(),
    }


def as_plain_data(found: Predictions, *, probabilities: bool) -> dict[str, Any]:
    """Predictions as JSON data; the class of a rejected node is null."""
    content = {
        "classes": found.classes.tolist(),
        "nodes": found.nodes.tolist(),
        "predicted": found.labels,
        "confidence": np.round(found.confidence.astype(np.float64), DIGITS).tolist(),
    }
    if probabilities:
        content["probabilities"] = np.round(found.probabilities.astype(np.float64), DIGITS).tolist()
    if found.sets is not None:
        content["sets"] = [found.classes[row].tolist() for row in found.sets]
    return content
