"""The local executor: groups in parallel processes of this machine. If one dies, the others continue."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from typing import Any

from ipal.bench.jobs import Ended, Engine, GroupRunner, Job, JobGroup, ProcessDiedError, Report, perform_all
from ipal.errors import ConfigError
from ipal.system.cores import cores

Pipe = multiprocessing.connection.Connection


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
        pool.end_idle()


class Child:
    """A child process that ends with this one, and a pipe to it. Only this process handles Ctrl-C."""

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        # spawn: a forked process with threads can hang.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, *args), daemon=True)
        with _without_interrupts():
            self.process.start()
        theirs.close()

    def end(self) -> None:
        self.process.kill()
        self.process.join()


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


class _Processes:
    """Processes that each perform one group after the other."""

    def __init__(self) -> None:
        self._idle: list[Child] = []

    def submit(self, group: JobGroup) -> Child:
        child = self._idle.pop() if self._idle else Child(_serve)
        with suppress(OSError):  # it has died, as its report will say
            child.pipe.send(group)
        return child

    def ready(self, handles: Collection[Child], seconds: float) -> list[Child]:
        self.end_idle()
        waited_for = multiprocessing.connection.wait([child.pipe for child in handles], seconds)
        return [child for child in handles if child.pipe in waited_for]

    def report(self, handle: Child) -> Report:
        try:
            report: Report = handle.pipe.recv()
        except (EOFError, OSError):
            handle.process.join()
            raise ProcessDiedError(_cause(handle.process.exitcode)) from None
        if report == "finished":
            self._idle.append(handle)
        return report

    def cancel(self, handle: Child) -> None:
        handle.end()

    def end_idle(self) -> None:
        """What has no work left frees its memory."""
        while self._idle:
            self._idle.pop().end()


def _cause(code: int | None) -> str:
    """Why a process died."""
    with suppress(ValueError):
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            return f"{name}: perhaps out of memory" if name == "SIGKILL" else name
    return f"exit code {code}"


# ---------------------------------------------------------------------- inside the process


def _serve(pipe: "Pipe[Any, Any]") -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run = GroupRunner()
    with suppress(EOFError):
        while True:
            group = pipe.recv()
            pipe.send("started")
            for outcome in run(group):
                pipe.send(outcome)
            pipe.send("finished")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
