"""The local executor: groups in parallel processes of this machine. If one dies, the others continue."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from typing import Any

from ipal.bench.jobs import Ended, Engine, GroupRunner, Job, JobGroup, Outcomes, ProcessDiedError, perform_all
from ipal.errors import ConfigError, IpalError
from ipal.system.cores import cores


def processes(address: str | None = None) -> Engine:
    """The local executor."""
    if address is not None:
        raise ConfigError("--address names a Ray cluster: add --engine ray, or leave it out.")
    return run_all


def room(jobs: Iterable[Job]) -> int:
    """How many groups run at a time: one per GPU, or cores divided by threads."""
    jobs = list(jobs)
    if jobs and all(job.on_gpu for job in jobs):
        return len({job.config.device for job in jobs})
    return max(1, cores() // max((job.config.threads for job in jobs), default=1))


def run_all(
    groups: Sequence[JobGroup], size: int | None, started: Callable[[Job], None]
) -> Generator[Ended, None, None]:
    """Perform all groups in processes of this machine; see `Engine`."""
    size = size or room(job for group in groups for job in group.jobs)
    pool = _Processes(size)
    try:
        yield from perform_all(pool, groups, size, started)
    finally:
        pool.end()


class _Processes:
    """Processes that each perform one group after the other; a thread waits for each."""

    def __init__(self, size: int) -> None:
        self._threads = ThreadPoolExecutor(size)
        self._idle: list[ChildProcess] = []
        self._busy: dict[Future[Outcomes], ChildProcess] = {}

    def submit(self, group: JobGroup) -> "Future[Outcomes]":
        child = self._idle.pop() if self._idle else ChildProcess(GroupRunner)
        future = self._threads.submit(child.do, group)
        self._busy[future] = child
        return future

    def outcomes(self, done: "Future[Outcomes]") -> Outcomes:
        child = self._busy.pop(done)
        try:
            found = done.result()
        except ProcessDiedError:
            raise ProcessDiedError(child.end()) from None
        self._idle.append(child)
        return found

    def end(self) -> None:
        for child in (*self._idle, *self._busy.values()):
            child.end()
        self._threads.shutdown()


class ChildProcess:
    """A process that calls its worker again and again, and ends with this one. Only this one handles Ctrl-C.

    In place of a pool of one process, whose queues need a third process that may be killed as well.

    Parameters
    ----------
    make : callable
        Makes the worker, in that process.
    """

    def __init__(self, make: Callable[[], Callable[..., Outcomes]]) -> None:
        # spawn: a forked process with threads can hang.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make), daemon=True)
        with _without_interrupts():
            self._process.start()
        theirs.close()

    def do(self, *args: object) -> Outcomes:
        """What the worker gives."""
        try:
            self._pipe.send(args)
            found: Outcomes | Exception = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise ProcessDiedError from error
        if isinstance(found, Exception):
            raise found
        return found

    def interrupt(self) -> None:
        """Let what it does end in order, where it handles SIGTERM."""
        self._process.terminate()

    def end(self) -> str:
        """End it at once, if it is alive; says why it has died, otherwise."""
        self._process.kill()
        self._process.join()
        return _cause(self._process.exitcode)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that are started here inherit that Ctrl-C is blocked."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it would take the mask off again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _cause(code: int | None) -> str:
    """Why a process died."""
    with suppress(ValueError):
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            return f"{name}: perhaps out of memory" if name == "SIGKILL" else name
    return f"exit code {code}"


# ---------------------------------------------------------------------- inside the process


def _serve(
    pipe: "multiprocessing.connection.Connection[Any, Any]", make: Callable[[], Callable[..., Outcomes]]
) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work = make()
    with suppress(EOFError):
        while True:
            args = pipe.recv()
            try:
                found: Outcomes | Exception = work(*args)
            except (Exception, SystemExit) as error:
                found = error if isinstance(error, IpalError) else RuntimeError(f"{type(error).__name__}: {error}")
            pipe.send(found)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
