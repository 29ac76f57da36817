"""A thread that predicts, one request at a time, with a bounded queue."""

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from pydantic_core import to_json

from ipal.data.csr import Neighbours
from ipal.data.graph import Graph
from ipal.deploy.predict import Predictions, predict
from ipal.deploy.serving.bodies import read_question
from ipal.deploy.serving.limits import Limits, OverloadError, UnexpectedError
from ipal.errors import DataError, IpalError
from ipal.learners import Learner

DIGITS = 6
"""Decimals of a probability in a response."""
Body = bytes | bytearray

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Reply:
    """A response body, and its counts for the metrics."""

    content: bytes
    nodes: int
    rejected: int


class Answerer:
    """Parses and answers requests in order, in one thread."""

    def __init__(self, learner: Learner, limits: Limits, threads: int = 1, directed: bool = False) -> None:
        self._learner, self._limits, self._directed = learner, limits, directed
        self._thread = ThreadPoolExecutor(1, "answers", torch.set_num_threads, (threads,))
        self._places = BoundedSemaphore(1 + limits.waiting)

    def warm_up(self) -> None:
        """Make two small predictions, so that all libraries are loaded before the first request."""
        x = np.ones((2, self._learner.num_features_), dtype=np.float32)
        for features in (x, sp.csr_array(x)):
            self._thread.submit(predict, self._learner, Graph.of(features, Neighbours.none(2), symmetric=True)).result()

    def ask(self, body: Body, kind: str) -> "Future[Reply | Exception]":
        """A future of the reply or error for a request body; it can be cancelled while it is queued."""
        if not self._places.acquire(blocking=False):
            raise OverloadError("Too many requests are waiting for an answer: try again later.")
        answer = self._thread.submit(self._answer, body, kind)
        answer.add_done_callback(lambda _: self._places.release())
        return answer

    def close(self) -> None:
        """Finish the current request and cancel the others."""
        self._thread.shutdown(cancel_futures=True)

    def _answer(self, body: Body, kind: str) -> Reply | Exception:
        """Errors are returned, not raised: a traceback would keep the request's data alive."""
        try:
            question = read_question(body, kind, self._limits, self._directed)
            found = predict(self._learner, question.graph, question.nodes, reject=question.reject)
            content = to_json(as_plain_data(found, probabilities=question.probabilities))
            return Reply(content, len(found.nodes), int(found.rejected.sum()))
        except IpalError as error:
            return type(error)(str(error))
        except MemoryError:
            return OverloadError("There is too little memory for this request now: send a smaller graph.")
        except RecursionError:
            return DataError("The body is nested too deeply to be a graph.")
        except Exception:
            log.exception("Unexpected error")
            return UnexpectedError()


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
    return content
