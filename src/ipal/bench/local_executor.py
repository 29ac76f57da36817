"""The local executor: groups in parallel processes of this machine. If one dies, the others continue."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker

from ipal.bench.jobs import Ended, Engine, Job, JobGroup, Outcomes, ProcessDiedError, perform_all, runner_of_process
from ipal.errors import ConfigError
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
    pool = _Processes()
    try:
        yield from perform_all(pool, groups, size or room(job for group in groups for job in group.jobs), started)
    finally:
        pool.end()


class _Processes:
    """Pools of one process each: where one dies, its pool breaks, and no other."""

    def __init__(self) -> None:
        self._idle: list[ChildProcess] = []
        self._busy: dict[Future[Outcomes], ChildProcess] = {}

    def submit(self, group: JobGroup) -> "Future[Outcomes]":
        worker = self._idle.pop() if self._idle else ChildProcess()
        try:
            future = worker.submit(_perform, group)
        except BrokenProcessPool:  # it has died while it had nothing to do
            worker = ChildProcess()
            future = worker.submit(_perform, group)
        self._busy[future] = worker
        return future

    def outcomes(self, done: "Future[Outcomes]") -> Outcomes:
        worker = self._busy.pop(done)
        try:
            found = done.result()
        except BrokenProcessPool:
            raise ProcessDiedError(worker.end()) from None
        self._idle.append(worker)
        return found

    def end(self) -> None:
        for worker in (*self._idle, *self._busy.values()):
            worker.end()


class ChildProcess:
    """A process that does one thing after the other, and ends with this one. Only this one handles Ctrl-C."""

    def __init__(self) -> None:
        # spawn: a forked process with threads can hang.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, initializer=_follow_parent)
        self._children: list[multiprocessing.process.BaseProcess] = []

    def submit(self, work: Callable[..., Outcomes], *args: object) -> "Future[Outcomes]":
        before = multiprocessing.active_children()
        with _without_interrupts():
            future = self._pool.submit(work, *args)
        self._children += [child for child in multiprocessing.active_children() if child not in before]
        return future

    def interrupt(self) -> None:
        """Let what it does end in order, where it handles SIGTERM."""
        for child in self._children:
            child.terminate()

    def end(self) -> str:
        """End it at once, if it is alive; says why it has died, otherwise."""
        for child in self._children:
            child.kill()
        self._pool.shutdown()
        return ", ".join(_cause(child.exitcode) for child in self._children)


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


def _perform(group: JobGroup) -> Outcomes:
    return runner_of_process()(group)


def _follow_parent() -> None:
    """End when the process that has started this one ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
