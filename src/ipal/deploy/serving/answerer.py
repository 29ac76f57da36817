"""A bounded queue of requests before those who answer them, one request at a time each; and the model they use.

One worker is a thread of this process, more are processes of their own. A new model is copied, loaded and tried by all
of them before one uses it: written to in the meantime or broken, the file changes nothing.
"""

import hashlib
import logging
import re
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import torch

from ipal.deploy.serving.answers import Answer, Answers, Body, Facts, ModelFile, Reply, Settings
from ipal.deploy.serving.limits import OverloadError, Refusal
from ipal.deploy.serving.workers import Worker, WorkerEndedError
from ipal.errors import IpalError, StoreError
from ipal.system.files import open_plain

VERSION_DIGITS = 12
AT_ONCE = 2**20
PAUSE = 1.0
"""Seconds before a process that could not be started is tried again."""

log = logging.getLogger(__name__)


class Answerer:
    """Answers requests by the model in a file, as it was at the beginning or at the last `reload`."""

    def __init__(
        self, model: Path, settings: Settings, workers: int = 1, restarted: Callable[[], object] = lambda: None
    ) -> None:
        self._path, self._settings, self._restarted = model, settings, restarted
        self._folder = tempfile.TemporaryDirectory(prefix="ipal-serve-")
        self._places = threading.BoundedSemaphore(workers + settings.limits.waiting)
        self._threads = ThreadPoolExecutor(workers, "answers", torch.set_num_threads, (settings.threads,))
        self._reloads = ThreadPoolExecutor(1, "reload")
        self._changing, self._closing = threading.Lock(), threading.Event()
        self._free: SimpleQueue[Answers | Worker] = SimpleQueue()
        self._team: list[Answers | Worker] = []
        begun: list[Future[Answers | Worker]] = []
        try:
            self._file = self._copied()
            self._kind = Answers if workers == 1 else Worker
            begun += [self._threads.submit(self._begun) for _ in range(workers)]
            self._team += [one.result() for one in begun]
        except BaseException as error:
            for one in begun:
                with suppress(BaseException):
                    one.result().close()
            self.close()
            if isinstance(error, IpalError):
                raise self._about_the_original(error) from None
            raise
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
                file = self._copied()
                if file.version != before.version:
                    facts = [one.load(file) for one in self._team]
                    self._file, self.facts = file, facts[0]
                    for one in self._team:
                        with suppress(WorkerEndedError):  # it begins anew with this model
                            one.use()
                    before.path.unlink()
            except Exception as error:
                if not isinstance(error, IpalError):
                    log.exception("Unexpected error")
                    error = StoreError(f"{self._path} cannot be loaded: the server's log says why.")
                why = self._about_the_original(error)
                raise StoreError(f"The model was not replaced, {before.version} goes on: {why}") from None
            return self.facts

    def _copied(self) -> ModelFile:
        """A copy of the model's file that is named by what it holds."""
        digest, copy = hashlib.sha256(), Path(self._folder.name) / "copy"
        try:
            with open_plain(self._path) as source, copy.open("wb") as target:
                while some := source.read(AT_ONCE):
                    digest.update(some)
                    target.write(some)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read or copied to {copy.parent}: {error.strerror}.") from error
        version = digest.hexdigest()[:VERSION_DIGITS]
        return ModelFile(copy.rename(copy.with_name(f"{version}.safetensors")), version)

    def _about_the_original(self, error: IpalError) -> IpalError:
        """The same error, with the file's own name."""
        copies = rf"{re.escape(self._folder.name)}/\w+\.safetensors"
        return type(error)(re.sub(copies, lambda _: str(self._path), str(error)))

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
        self._folder.cleanup()
