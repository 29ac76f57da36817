"""Many runs side by side, each in a process of its own: one that dies takes nothing else with it.

No torch is loaded here, so that a process can set its number of threads first.
"""

import functools
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import Timeout

from ipal.config import RunConfig
from ipal.errors import IpalError, StoreError
from ipal.store import RunStore

if TYPE_CHECKING:
    from ipal.datasets import Dataset

CHECKPOINT_EVERY = 50
BUSY = "busy"
WAIT_FOR_OTHERS = 1.0


@dataclass(frozen=True)
class Job:
    """One run to be made."""

    config: RunConfig
    """Resolved."""
    runs: Path
    data_root: Path

    @property
    def name(self) -> str:
        return RunStore(self.runs).folder_for(self.config).path.name


Ended = tuple[Job, str | None]
"""A job, and why it failed (None: it did not)."""


def run_all(jobs: Sequence[Job], size: int, started: Callable[[Job], None]) -> Generator[Ended, None, None]:
    """Make all runs, `size` at a time, and yield each when it has ended. Closed early, it ends its processes."""
    crew = _Crew(jobs, started)
    threads = [threading.Thread(target=crew.work, daemon=True) for _ in range(min(size, len(jobs)))]
    try:
        for thread in threads:
            thread.start()
        for _ in jobs:
            ended = crew.ended.get()
            if isinstance(ended, BaseException):
                raise ended
            yield ended
    finally:
        crew.stop(threads)


class _Crew:
    """Threads that each look after one process, taking jobs from one queue."""

    def __init__(self, jobs: Sequence[Job], started: Callable[[Job], None]) -> None:
        self.ended: queue.SimpleQueue[Ended | BaseException] = queue.SimpleQueue()
        self._pending = deque(jobs)
        self._started = started
        self._stopped = threading.Event()
        self._workers: set[_Worker] = set()

    def work(self) -> None:
        try:
            self._work()
        except BaseException as error:  # of this program, not of a run: nobody may wait for this thread in vain
            self.ended.put(error)

    def _work(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            # Ctrl-C is the parent's to handle; a process inherits the mask of the thread that starts it. Python's
            # own helper process is started first, because doing so takes the mask off again.
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        worker = None
        while not self._stopped.is_set():
            try:
                job = self._pending.popleft()
            except IndexError:
                break
            self._started(job)
            for _ in range(2):  # a process that died may have been unlucky: once more, in a fresh one
                worker = worker or self._hire()
                outcome = worker.perform(job)
                if not worker.died:
                    break
                self._dismiss(worker)
                worker = None
                if self._stopped.is_set():
                    return
            if outcome == BUSY:  # later again; by then another process has finished it, or given up
                self._pending.append(job)
                self._stopped.wait(WAIT_FOR_OTHERS)
            else:
                self.ended.put((job, outcome))
        if worker:
            self._dismiss(worker)

    def stop(self, threads: Sequence[threading.Thread]) -> None:
        self._stopped.set()
        while any(thread.is_alive() for thread in threads):
            for worker in tuple(self._workers):
                worker.process.kill()
            time.sleep(0.01)

    def _hire(self) -> "_Worker":
        worker = _Worker()
        self._workers.add(worker)
        return worker

    def _dismiss(self, worker: "_Worker") -> None:
        worker.process.kill()
        worker.process.join()
        self._workers.discard(worker)


class _Worker:
    """A process that makes one run after the other, and keeps the graph in between."""

    def __init__(self) -> None:
        # spawn: a forked copy of a process with threads of its own can hang.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.died = False

    def perform(self, job: Job) -> str | None:
        try:
            self.pipe.send(job)
            reason: str | None = self.pipe.recv()
            return reason
        except (EOFError, OSError):
            self.died = True
            self.process.join()
            return f"the process died twice ({_cause(self.process.exitcode)})"


def _cause(code: int | None) -> str:
    with suppress(ValueError):
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            return f"{name}: perhaps out of memory" if name == "SIGKILL" else name
    return f"exit code {code}"


# ---------------------------------------------------------------------- inside the process


def _serve(pipe: "multiprocessing.connection.Connection[Any, Any]") -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError):
        while True:
            pipe.send(_perform(pipe.recv()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _perform(job: Job) -> str | None:
    """Make a run; returns what went wrong."""
    # Both are read when torch is first loaded, which is below.
    os.environ["OMP_NUM_THREADS"] = str(job.config.threads)
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    from ipal import experiment

    folder = RunStore(job.runs).folder_for(job.config)
    try:
        graph = _graph(job.config.dataset, job.data_root, job.config.protocol.edges == "undirected")
        config, _ = experiment.resolve(job.config, dataset=graph)
        experiment.run(config, graph, folder, _Silent(), checkpoint_every=CHECKPOINT_EVERY, data_root=job.data_root)
    except Exception as error:
        if isinstance(error, StoreError) and isinstance(error.__cause__, Timeout):
            return BUSY
        expected = isinstance(error, IpalError)
        with suppress(StoreError):
            folder.log(f"failed: {error if expected else traceback.format_exc()}")
        return str(error) if expected else f"{type(error).__name__}: {error}"
    return None


@functools.lru_cache(maxsize=1)
def _graph(name: str, root: Path, undirected: bool) -> "Dataset":
    from ipal import datasets

    return datasets.load(name, root, undirected=undirected)


class _Silent:
    """Watches a run and says nothing."""

    def started(self, *_: object) -> None: ...
    def epoch(self, *_: object) -> None: ...
    def task(self, *_: object) -> None: ...
