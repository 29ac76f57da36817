"""The model in use, a bounded queue of requests before it, and what it answers.

A new model is read once, loaded and tried beside the one in use: written to in the meantime or broken, the file changes
nothing. No copy is written.
"""

import hashlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from ipal.data.graph import Graph
from ipal.deploy.predict import predict
from ipal.deploy.serving.bodies import Limits, Question, read_question
from ipal.errors import DataError, StoreError
from ipal.estimator.explain import explain
from ipal.estimator.files import loaded
from ipal.estimator.model import Model
from ipal.estimator.open_world.calibration import SMOOTHED
from ipal.state.snapshot import Snapshot, content_of

DIGITS = 6  # of a probability in a response


class ExplainOptions(BaseModel):
    """What an explanation compares, and how long it is; after the question mark of the address."""

    model_config = ConfigDict(extra="forbid")

    against: str | None = Field(None, description="The class to compare with; the next best where it is missing.")
    top: int = Field(10, ge=1, le=1000, description="How many nodes, features and pieces of evidence.")


@dataclass(frozen=True, eq=False)
class Reply:
    """An answer as JSON, its counts for the metrics, and the model that gave it."""

    content: bytes
    version: str
    nodes: int = 0
    rejected: int = 0


def overload(sentence: str) -> HTTPException:
    """Too much is going on: it may be better in a second."""
    return HTTPException(503, sentence, {"retry-after": "1"})


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model that was tried, and answers."""

    model: Model
    version: str
    """The beginning of the SHA-256 digest of its file."""
    limits: Limits
    facts: dict[str, Any]
    """Method, classes, inputs and memory: read once, since the words of a report are parsed from source files."""

    def answer(self, body: bytes | bytearray, kind: str, explain: ExplainOptions | None) -> Reply:
        """A prediction, or an explanation where one is asked for."""
        try:
            model, question = self.model, read_question(body, kind, self.limits, self.model.directed)
            content = prediction(model, question) if explain is None else explanation(model, question, explain)
            answer = to_json({"version": self.version, **content})
        except MemoryError:
            raise overload("There is too little memory for this request now: send a smaller graph.") from None
        predicted = content["predicted"] if explain is None else []
        return Reply(answer, self.version, len(predicted), predicted.count(None))


def prediction(model: Model, question: Question) -> dict[str, Any]:
    """The classes of the nodes of a question; that of a rejected node is null."""
    asked = question.options
    found = predict(model, question.graph, question.nodes, reject=asked.reject, coverage=asked.coverage)
    content = {
        "classes": found.classes.tolist(),
        "nodes": found.nodes.tolist(),
        "predicted": found.labels,
        "confidence": np.round(found.confidence.astype(np.float64), DIGITS).tolist(),
    }
    if asked.probabilities is not False:
        content["probabilities"] = np.round(found.probabilities.astype(np.float64), DIGITS).tolist()
    if found.sets is not None:
        content["sets"] = [found.classes[row].tolist() for row in found.sets]
    return content


def explanation(model: Model, question: Question, options: ExplainOptions) -> dict[str, Any]:
    """Why the node of a question has its class."""
    asked = question.options
    if question.nodes is None or len(question.nodes) != 1:
        raise DataError("An explanation is of one node: name it, as nodes: [3].")
    if any(option is not None for option in (asked.reject, asked.coverage, asked.probabilities)):
        raise DataError("reject, coverage and probabilities are of predictions: leave them out.")
    found = explain(model, question.graph, int(question.nodes[0]), against=options.against)
    return found.as_plain_data(options.top)


class Served:
    """Answers requests by the model in a file, as it was at the beginning or at the last `reload`; one at a time."""

    def __init__(self, path: Path, limits: Limits, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self._path, self._limits = path, limits
        self._places = threading.BoundedSemaphore(1 + limits.waiting)
        self._thread = ThreadPoolExecutor(1, "answers", torch.set_num_threads, (threads,))
        self._stamp = self._on_disk()
        self.loaded = self._load(content_of(path))

    def ask(self, body: bytes | bytearray, kind: str, explain: ExplainOptions | None = None) -> "Future[Reply]":
        """A future of the reply for a request body; it can be cancelled while it is queued."""
        if not self._places.acquire(blocking=False):
            raise overload("Too many requests are waiting for an answer: try again later.")
        # By the model that is in use when the answer begins.
        answer = self._thread.submit(lambda: self.loaded.answer(body, kind, explain))
        answer.add_done_callback(lambda _: self._places.release())
        return answer

    def reload(self) -> None:
        """Take what the file holds now, or say why not. It is not called twice at once."""
        stamp, before = self._on_disk(), self.loaded.version
        try:
            content = content_of(self._path)  # a change since the stamp will be seen
            if _version(content) != before:
                self.loaded = self._load(content)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise StoreError(f"The model was not replaced, {before} goes on, not what the file holds: {why}") from error
        self._stamp = stamp

    def _load(self, content: bytes) -> Loaded:
        model, version = loaded(Snapshot.of(content, self._path), self._path), _version(content)
        x = sp.csr_array(np.ones((2, model.num_features), dtype=np.float32))
        predict(model, Graph(x, np.zeros((2, 0), dtype=np.int64), symmetric=True))  # all libraries are loaded then, too
        facts = {
            "version": version,
            "method": model.name,
            "classes": model.classes_.tolist(),
            "features": model.num_features,
            "feature_names": list(model.columns),
            "hops": model.reach,
            "hops_to_reject": model.reach + SMOOTHED,
            "directed": model.directed,
            **model.memory_report(),
        }
        return Loaded(model, version, self._limits, facts)

    @property
    def is_current(self) -> bool:
        """Whether the file is the one whose model answers: neither changed since, nor gone."""
        return self._on_disk() == self._stamp

    def _on_disk(self) -> tuple[int, int, int] | None:
        """Changes with the file; None where there is none."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def close(self) -> None:
        """Finish the current request and cancel the others."""
        self._thread.shutdown(cancel_futures=True)


def _version(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
