"""The local executor: parcels in parallel processes of this machine. If one dies, the others continue."""

import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from typing import Any

from ipal.bench.jobs import WAIT_FOR_OTHERS, Attempt, Ended, Engine, Job, Parcel, Performer, cores
from ipal.errors import ConfigError


def processes(address: str | None = None) -> Engine:
    """The local executor."""
    if address is not None:
        raise ConfigError("--address names a Ray cluster: add --engine ray, or leave it out.")
    return run_all


def room(jobs: Iterable[Job]) -> int:
    """How many parcels run at a time: one per GPU, or cores divided by threads."""
    jobs = list(jobs)
    if jobs and all(job.on_gpu for job in jobs):
        return len({job.config.device for job in jobs})
    return max(1, cores() // max((job.config.threads for job in jobs), default=1))


def run_all(
    parcels: Sequence[Parcel], size: int | None, started: Callable[[Job], None]
) -> Generator[Ended, None, None]:
    """Perform all parcels in processes of this machine; see `Engine`."""
    jobs = [job for parcel in parcels for job in parcel.jobs]
    crew = _Crew(parcels, started)
    # A parcel whose process died comes back as many: there is work for as many processes as jobs.
    threads = [threading.Thread(target=crew.work, daemon=True) for _ in range(min(size or room(jobs), len(jobs)))]
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
    """Threads that each look after one process, taking parcels from one queue."""

    def __init__(self, parcels: Sequence[Parcel], started: Callable[[Job], None]) -> None:
        self.ended: queue.SimpleQueue[Ended | BaseException] = queue.SimpleQueue()
        self._pending: queue.SimpleQueue[Parcel | None] = queue.SimpleQueue()
        for parcel in parcels:
            self._pending.put(parcel)
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
        while True:
            if worker and self._pending.empty():  # idle: free its memory
                self._dismiss(worker)
                worker = None
            parcel = self._pending.get()
            if parcel is None or self._stopped.is_set():
                break
            worker = worker or self._hire()
            self._perform(parcel, worker)
            if worker.died:
                self._dismiss(worker)
                worker = None
        if worker:
            self._dismiss(worker)

    def _perform(self, parcel: Parcel, worker: "_Worker") -> None:
        for job in parcel.jobs:
            self._started(job)
        attempt = Attempt(parcel)
        for place, reason in worker.perform(parcel):
            if ended := attempt.note(place, reason):
                self.ended.put(ended)
        if worker.died:
            again, given_up = attempt.died(worker.cause)
            for one in again:
                self._pending.put(one)
            for ended in given_up:
                self.ended.put(ended)
        if attempt.busy:  # later again; by then another process has finished them, or given up
            self._pending.put(attempt.busy)
            self._stopped.wait(WAIT_FOR_OTHERS)

    def stop(self, threads: Sequence[threading.Thread]) -> None:
        self._stopped.set()
        for _ in threads:
            self._pending.put(None)
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
    """A process that runs one parcel after the other and keeps the graph in between."""

    def __init__(self) -> None:
        # spawn: a forked process with threads can hang.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.died = False

    def perform(self, parcel: Parcel) -> Iterator[tuple[int, str | None]]:
        """Index and error of every job, as they end; fewer if the process dies."""
        try:
            self.pipe.send(parcel)
            while outcome := self.pipe.recv():
                yield outcome
        except (EOFError, OSError):
            self.died = True
            self.process.join()

    @property
    def cause(self) -> str:
        """Why the process died."""
        code = self.process.exitcode
        with suppress(ValueError):
            if code is not None and code < 0:
                name = signal.Signals(-code).name
                return f"{name}: perhaps out of memory" if name == "SIGKILL" else name
        return f"exit code {code}"


# ---------------------------------------------------------------------- inside the process


def _serve(pipe: "multiprocessing.connection.Connection[Any, Any]") -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    perform = Performer()
    with suppress(EOFError):
        while True:
            perform(pipe.recv(), lambda place, reason: pipe.send((place, reason)))
            pipe.send(None)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
