"""The model in use, a bounded queue of requests before it, and the processes that answer them.

One worker is a thread of this process, more are processes of their own. A new model is read once, loaded and tried
here beside the one in use: written to in the meantime or broken, the file changes nothing. No copy is written.
"""

import hashlib
import logging
import multiprocessing
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from pydantic_core import to_json

from ipal.data.csr import Neighbours
from ipal.data.graph import Graph
from ipal.deploy.predict import predict
from ipal.deploy.serving.limits import Limits
from ipal.deploy.serving.questions import Question, read_question
from ipal.deploy.serving.schema import ExplainOptions
from ipal.errors import DataError, IpalError, StoreError
from ipal.estimator.explain import explained
from ipal.estimator.files import loaded
from ipal.estimator.model import Model
from ipal.estimator.open_world.scores import SMOOTHED
from ipal.state.snapshot import Snapshot, content_of
from ipal.system.arrays import MalformedError, TooLargeError

DIGITS = 6
"""Decimals of a probability in a response."""
VERSION_DIGITS = 12
ENDING = 5.0
"""Seconds that a worker has to end by itself."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""They are for the process that starts the others; a terminal sends them to all."""

Body = bytes | bytearray
Facts = dict[str, Any]
Stamp = tuple[int, int, int]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """What all answers share, whichever model gives them."""

    limits: Limits
    threads: int = 1
    directed: bool | None = None
    """Of requests that do not say; None for how the model learned."""


@dataclass(frozen=True, eq=False)
class Reply:
    """A response, its counts for the metrics, and the model that gave it."""

    status: int
    content: bytes
    version: str
    nodes: int = 0
    rejected: int = 0


class OverloadError(Exception):
    """Too much is going on: it may be better in a second."""


# ---------------------------------------------------------------------- one model


class Served:
    """A model that was loaded and tried, and answers: what its file held when it was read."""

    def __init__(self, path: Path, content: bytes, settings: Settings) -> None:
        torch.set_num_threads(settings.threads)
        self.path, self.content, self._settings = path, content, settings
        self.version = hashlib.sha256(content).hexdigest()[:VERSION_DIGITS]
        self._model = loaded(Snapshot.of(content, path), path)
        self._directed = self._model.schema.directed if settings.directed is None else settings.directed
        x = np.ones((2, self._model.num_features), dtype=np.float32)
        for features in (x, sp.csr_array(x)):  # all libraries are loaded then, too
            predict(self._model, Graph.of(features, Neighbours.none(2), symmetric=True))

    def facts(self) -> Facts:
        """Method, classes, inputs and memory."""
        model = self._model
        return {
            "version": self.version,
            "method": model.name,
            "classes": model.classes_.tolist(),
            "features": model.num_features,
            "feature_names": list(model.schema.columns),
            "hops": model.reach,
            "hops_to_reject": model.reach + SMOOTHED,
            "directed": self._directed,
            **model.memory_report(),
        }

    def answer(self, body: Body, kind: str, explain: ExplainOptions | None) -> Reply:
        """A prediction, or an explanation where one is asked for; an error is a reply, too."""
        try:
            question = read_question(body, kind, self._settings.limits, self._directed)
            content, *counts = (
                prediction(self._model, question) if explain is None else explanation(self._model, question, explain)
            )
            return Reply(200, to_json({"version": self.version, **content}), self.version, *counts)
        except IpalError as error:
            status = 400 if isinstance(error, MalformedError) else 413 if isinstance(error, TooLargeError) else 422
            return self._refused(status, str(error))
        except MemoryError:
            return self._refused(503, "There is too little memory for this request now: send a smaller graph.")
        except Exception:
            log.exception("Unexpected error")
            return self._refused(500, "Internal server error: the server's log says more.")

    def _refused(self, status: int, sentence: str) -> Reply:
        return Reply(status, to_json({"error": sentence}), self.version)


Found = tuple[dict[str, Any], int, int]
"""What is answered, as JSON data, and how many nodes were predicted and rejected."""


def prediction(model: Model, question: Question) -> Found:
    """The class of a rejected node is null."""
    options = question.options
    found = predict(model, question.graph, question.nodes, reject=options.reject, coverage=options.coverage)
    content = {
        "classes": found.classes.tolist(),
        "nodes": found.nodes.tolist(),
        "predicted": found.labels,
        "confidence": np.round(found.confidence.astype(np.float64), DIGITS).tolist(),
    }
    if options.probabilities is not False:
        content["probabilities"] = np.round(found.probabilities.astype(np.float64), DIGITS).tolist()
    if found.sets is not None:
        content["sets"] = [found.classes[row].tolist() for row in found.sets]
    return content, len(found.nodes), int(found.rejected.sum())


def explanation(model: Model, question: Question, options: ExplainOptions) -> Found:
    """Why the node of a question has its class."""
    asked = question.options
    if question.nodes is None or len(question.nodes) != 1:
        raise DataError("An explanation is of one node: name it, as nodes: [3].")
    if any(option is not None for option in (asked.reject, asked.coverage, asked.probabilities)):
        raise DataError("reject, coverage and probabilities are of predictions: leave them out.")
    by_name = {str(label): label for label in model.labels}
    against = None if options.against is None else by_name.get(options.against, options.against[:40])
    found = explained(model, question.graph, int(question.nodes[0]), against)
    return found.as_plain_data(options.top, features=model.schema.columns or None), 0, 0


# ---------------------------------------------------------------------- processes


class Worker:
    """A process that answers by the model of the request. It ends when its pipe is closed."""

    def __init__(self, settings: Settings) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawned.Pipe()
        self.process = spawned.Process(target=_work, args=(theirs, settings), daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self.process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # so that a process that ends closes the pipe
        self._version = ""

    def answer(self, served: Served, body: Body, kind: str, explain: ExplainOptions | None) -> Reply:
        """The reply, or EOFError or OSError where the process has ended."""
        self._pipe.send((None if served.version == self._version else (served.path, served.content), kind, explain))
        self._version = served.version
        self._pipe.send_bytes(body)  # as it is: to pickle it would take longer than to send it
        reply: Reply = self._pipe.recv()
        return reply

    def close(self) -> None:
        """Let the process finish what it does, and end it."""
        self._pipe.close()
        self.process.join(ENDING)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _work(pipe: Connection, settings: Settings) -> None:
    """What the process does."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        while True:
            file, kind, explain = pipe.recv()
            body = pipe.recv_bytes()
            if file is not None:
                path, content = file
                served = Served(path, content, settings)
            pipe.send(served.answer(body, kind, explain))
            del body


# ---------------------------------------------------------------------- all


class Answerer:
    """Answers requests by the model in a file, as it was at the beginning or at the last `reload`."""

    def __init__(
        self, path: Path, settings: Settings, workers: int = 1, restarted: Callable[[], object] = lambda: None
    ) -> None:
        self._path, self._settings, self._restarted = path, settings, restarted
        self._places = threading.BoundedSemaphore(workers + settings.limits.waiting)
        self._stamp = self.on_disk()
        self.served = Served(path, content_of(path), settings)
        self._free: SimpleQueue[Worker | None] = SimpleQueue()
        for _ in range(workers):
            self._free.put(None if workers == 1 else Worker(settings))
        self._workers = workers
        self._threads = ThreadPoolExecutor(workers, "answers", torch.set_num_threads, (settings.threads,))

    def ask(self, body: Body, kind: str, explain: ExplainOptions | None = None) -> "Future[Reply]":
        """A future of the reply for a request body; it can be cancelled while it is queued."""
        if not self._places.acquire(blocking=False):
            raise OverloadError("Too many requests are waiting for an answer: try again later.")
        answer = self._threads.submit(self._answer, body, kind, explain)
        answer.add_done_callback(lambda _: self._places.release())
        return answer

    def _answer(self, body: Body, kind: str, explain: ExplainOptions | None) -> Reply:
        """By the model that is in use when the answer begins."""
        served, worker = self.served, self._free.get()
        try:
            if worker is None:
                return served.answer(body, kind, explain)
            if not worker.process.is_alive():
                worker = self._another(worker)
            return worker.answer(served, body, kind, explain)
        except (EOFError, OSError):
            assert worker is not None
            worker = self._another(worker)
            raise OverloadError(
                "The process that answers has ended, and is being started again: try again later."
            ) from None
        finally:
            self._free.put(worker)

    def _another(self, ended: Worker) -> Worker:
        """A process in the place of one that has ended."""
        ended.close()
        log.warning("A worker ended with code %s and is started again.", ended.process.exitcode)
        self._restarted()
        return Worker(self._settings)

    def reload(self) -> None:
        """Take what the file holds now, or say why not. It is not called twice at once."""
        stamp, before = self.on_disk(), self.served
        try:
            content = content_of(self._path)  # a change since the stamp will be seen
            if content != before.content:
                self.served = Served(self._path, content, self._settings)
        except Exception as error:
            why = str(error)
            if not isinstance(error, IpalError):
                log.exception("Unexpected error")
                why = f"{self._path} cannot be loaded: the server's log says why."
            raise StoreError(
                f"The model was not replaced, {before.version} goes on, and is not what the file holds: {why}"
            ) from None
        self._stamp = stamp

    @property
    def is_current(self) -> bool:
        """Whether the file is the one whose model answers: neither changed since, nor gone."""
        return self.on_disk() == self._stamp

    def on_disk(self) -> Stamp | None:
        """Changes with the file; None where there is none."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def close(self) -> None:
        """Finish the current requests and cancel the others."""
        self._threads.shutdown(cancel_futures=True)
        for _ in range(self._workers):
            if (worker := self._free.get()) is not None:
                worker.close()
