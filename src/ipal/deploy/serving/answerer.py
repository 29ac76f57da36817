"""A bounded queue of requests before those who answer them, one request at a time each; and the model they use.

One worker is a thread of this process, more are processes of their own. A new model is read once, then loaded and tried
by all of them before one uses it: written to in the meantime or broken, the file changes nothing. No copy is written.
"""

import hashlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

import torch

from ipal.deploy.serving.answers import Answer, Answers, Body, Facts, ModelFile, Reply, Settings
from ipal.deploy.serving.limits import OverloadError, Refusal
from ipal.deploy.serving.workers import Worker, WorkerEndedError
from ipal.errors import IpalError, StoreError
from ipal.state.snapshot import content_of

VERSION_DIGITS = 12
PAUSE = 1.0
"""Seconds before a process that could not be started is tried again."""

Stamp = tuple[int, int, int]

log = logging.getLogger(__name__)


class Answerer:
    """Answers requests by the model in a file, as it was at the beginning or at the last `reload`."""

    def __init__(
        self, model: Path, settings: Settings, workers: int = 1, restarted: Callable[[], object] = lambda: None
    ) -> None:
        self._path, self._settings, self._restarted = model, settings, restarted
        self._places = threading.BoundedSemaphore(workers + settings.limits.waiting)
        self._threads = ThreadPoolExecutor(workers, "answers", torch.set_num_threads, (settings.threads,))
        self._reloads = ThreadPoolExecutor(1, "reload")
        self._changing, self._closing = threading.Lock(), threading.Event()
        self._free: SimpleQueue[Answers | Worker] = SimpleQueue()
        self._team: list[Answers | Worker] = []
        begun: list[Future[Answers | Worker]] = []
        try:
            self._stamp, self._file = self._read()
            self._kind = Answers if workers == 1 else Worker
            begun += [self._threads.submit(self._begun) for _ in range(workers)]
            self._team += [one.result() for one in begun]
        except BaseException:
            for one in begun:
                with suppress(BaseException):
                    one.result().close()
            self.close()
            raise
        self._drop_content()
        for place, member in enumerate(self._team):
            self._free.put(member)
            if isinstance(member, Worker):
                threading.Thread(target=self._keep, args=(place, member), daemon=True).start()

    def _begun(self) -> Answers | Worker:
        """One more who answers, with the model in use."""
        one = self._kind(self._settings)
        try:
            self.facts: Facts = one.load(self._file)
            one.use()
        except BaseException:
            one.close()
            raise
        return one

    @property
    def version(self) -> str:
        """Which model is in use."""
        return self._file.version

    def ask(self, body: Body, kind: str, reply: Answer | None = None) -> "Future[Reply | Exception]":
        """A future of the reply or error for a request body; it can be cancelled while it is queued.

        `reply` says what is made of the question: a prediction, unless said.
        """
        if not self._places.acquire(blocking=False):
            raise OverloadError("Too many requests are waiting for an answer: try again later.")
        answer = self._threads.submit(self._answer, body, kind, reply)
        answer.add_done_callback(lambda _: self._places.release())
        return answer

    def _answer(self, body: Body, kind: str, reply: Answer | None) -> Reply | Exception:
        try:
            one = self._free.get(timeout=self._settings.limits.seconds)
            while not one.is_alive:  # the one in its place is on its way
                one = self._free.get(timeout=self._settings.limits.seconds)
            answer = one.answer(body, kind, reply)
        except (Empty, WorkerEndedError):
            return OverloadError("The process that answers has ended, and is being started again: try again later.")
        self._free.put(one)
        return answer

    # ------------------------------------------------------------------ another model

    def reload(self) -> "Future[Facts]":
        """Take what the file holds now. Requests that have begun are answered by the model that they began with."""
        return self._reloads.submit(self._reload)

    def _reload(self) -> Facts:
        with self._changing:
            before = self._file
            try:
                stamp, file = self._read()
                if file.version != before.version:
                    facts = [one.load(file) for one in self._team]
                    self._file, self.facts = file, facts[0]
                    for one in self._team:
                        with suppress(WorkerEndedError):  # it begins anew with this model
                            one.use()
                    self._drop_content()
                self._stamp = stamp
            except Exception as error:
                why = str(error)
                if isinstance(error, WorkerEndedError):
                    why = "A process that answers ended while it loaded the file."
                elif not isinstance(error, IpalError):
                    log.exception("Unexpected error")
                    why = f"{self._path} cannot be loaded: the server's log says why."
                raise StoreError(
                    f"The model was not replaced, {before.version} goes on, and is not what the file holds: {why}"
                ) from None
            return self.facts

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

    def _read(self) -> tuple[Stamp | None, ModelFile]:
        """What the file holds. Its stamp is older, if anything: a change in between will be seen."""
        stamp, content = self.on_disk(), content_of(self._path)
        return stamp, ModelFile(self._path, content, hashlib.sha256(content).hexdigest()[:VERSION_DIGITS])

    def _drop_content(self) -> None:
        """Only processes are started again."""
        if self._kind is Answers:
            self._file = replace(self._file, content=b"")

    # ------------------------------------------------------------------ workers

    def _keep(self, place: int, worker: Answers | Worker) -> None:
        """Start another process where one has ended."""
        while not self._closing.is_set():
            assert isinstance(worker, Worker)
            worker.process.join()
            with self._changing:
                if self._closing.is_set():
                    return
                log.warning("A worker ended with code %s and is started again.", worker.process.exitcode)
                self._restarted()
                try:
                    worker = self._team[place] = self._begun()
                    self._free.put(worker)
                    continue
                except (IpalError, Refusal, WorkerEndedError, OSError) as error:
                    log.warning("It did not start: %s", error)
            self._closing.wait(PAUSE)

    def close(self) -> None:
        """Finish the current requests and cancel the others."""
        self._closing.set()
        self._threads.shutdown(cancel_futures=True)
        self._reloads.shutdown(cancel_futures=True)
        with self._changing:
            for one in self._team:
                one.close()
