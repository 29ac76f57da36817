"""Jobs, groups of jobs, and the processes of this machine that perform them.

A job is one run, a group the jobs that one process makes together: on the CPU one job, on a GPU those that share a
graph, which take turns (`ipal.bench.interleave`). No torch is loaded here, so that a process can set its number of
threads first.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ipal.config import RunConfig
from ipal.errors import ConfigError
from ipal.runs.run_folder import BUSY, RunFolder, RunStore
from ipal.system.cores import cores

if TYPE_CHECKING:
    from ipal.runs.resolved import Resolver

MOST_TOGETHER = 64
"""Runs in one group: each holds memory while all take turns."""
WAIT_FOR_OTHERS, LOOK_SECONDS = 1.0, 0.5
"""Seconds until a busy run is tried again, and between two checks for what is due or finished."""


@dataclass(frozen=True)
class Job:
    """One run to be made."""

    config: RunConfig
    """Resolved."""
    runs: Path
    data_root: Path
    stack: int = 1
    """How many runs on a GPU that differ in numbers alone may take their steps as one."""

    @cached_property
    def folder(self) -> RunFolder:
        return RunStore(self.runs).folder_for(self.config)

    @property
    def name(self) -> str:
        return self.folder.path.name

    @property
    def on_gpu(self) -> bool:
        return self.config.device.startswith("cuda")


Outcomes = dict[str, str | None]
Ended = tuple[Job, str | None]
"""Names of jobs, or one job, and why they failed (None: they did not)."""


@dataclass(frozen=True)
class JobGroup:
    """Jobs that are performed together."""

    jobs: tuple[Job, ...]
    is_second_try: bool = False
    """Whether a process has died during them."""

    @property
    def threads(self) -> int:
        return max(job.config.threads for job in self.jobs)

    @property
    def on_gpu(self) -> bool:
        return any(job.on_gpu for job in self.jobs)


class Engine(Protocol):
    """An executor of jobs."""

    def __call__(
        self, jobs: Sequence[Job], size: int | None, started: Callable[[Job], None]
    ) -> Generator[Ended, None, None]:
        """Perform all jobs, `size` groups at a time (None: as many as there is room for), and yield each when it has
        ended. Closed early, it ends what it has started."""
        ...


def pack(jobs: Iterable[Job], most: int = MOST_TOGETHER) -> list[JobGroup]:
    """Jobs as groups of at most so many, in the order of their first jobs."""
    together: dict[Hashable, list[Job]] = {}
    for job in jobs:
        config = job.config
        shared = (config.dataset, config.protocol.edges, config.device, config.threads) if job.on_gpu else job.name
        together.setdefault(shared, []).append(job)
    return [
        JobGroup(tuple(group[begin : begin + most]))
        for group in together.values()
        for begin in range(0, len(group), most)
    ]


# ---------------------------------------------------------------------- the loop of every executor


class ProcessDiedError(Exception):
    """The process of a group has died; the message is the cause."""


class Pool(Protocol):
    """Where groups are performed: processes of this machine, or of a cluster."""

    def start(self, group: JobGroup) -> Hashable: ...
    def ended(self, tasks: Sequence[Any], seconds: float) -> Sequence[Any]:
        """The groups that have ended, of some that are waited for at most so long."""

    def outcomes(self, task: Any) -> Outcomes:
        """How the jobs of a group have ended, or a `ProcessDiedError`."""


def perform_all(
    pool: Pool, groups: Iterable[JobGroup], size: int, started: Callable[[Job], None]
) -> Generator[Ended, None, None]:
    """Perform groups in a pool; see `Engine`.

    Jobs that another process is making are tried again later: by then it has finished them, or given up. If a process
    dies, its unfinished jobs are tried once more, each in a process of its own.
    """
    pending, later = deque(groups), deque[tuple[float, JobGroup]]()
    under_way: dict[Hashable, JobGroup] = {}
    while pending or later or under_way:
        while later and later[0][0] <= time.monotonic():
            pending.append(later.popleft()[1])
        while pending and len(under_way) < size:
            group = pending.popleft()
            under_way[pool.start(group)] = group
            for job in group.jobs:
                started(job)
        if not under_way:
            time.sleep(LOOK_SECONDS)
        ended = pool.ended(list(under_way), LOOK_SECONDS) if under_way else []
        for task, group in tuple(under_way.items()):
            finished = [job for job in group.jobs if job.folder.is_finished]
            left = tuple(job for job in group.jobs if job not in finished)
            yield from ((job, None) for job in finished)
            under_way[task] = replace(group, jobs=left)
            if task not in ended:
                continue
            del under_way[task]
            try:
                reasons = pool.outcomes(task)
            except ProcessDiedError as death:
                if group.is_second_try:
                    yield from ((job, f"the process died twice ({death})") for job in left)
                else:
                    pending.extend(JobGroup((job,), is_second_try=True) for job in left)
                continue
            yield from ((job, reasons[job.name]) for job in left if reasons[job.name] != BUSY)
            if busy := tuple(job for job in left if reasons[job.name] == BUSY):
                later.append((time.monotonic() + WAIT_FOR_OTHERS, replace(group, jobs=busy)))


# ---------------------------------------------------------------------- processes of this machine


def local(address: str | None = None) -> Engine:
    """The executor on this machine."""
    if address is not None:
        raise ConfigError("--address names a Ray cluster: add --engine ray, or leave it out.")
    return run_all


def room(jobs: Sequence[Job]) -> int:
    """How many groups run at a time: one per GPU, or cores divided by threads."""
    if jobs and all(job.on_gpu for job in jobs):
        return len({job.config.device for job in jobs})
    return max(1, cores() // max((job.config.threads for job in jobs), default=1))


def run_all(jobs: Sequence[Job], size: int | None, started: Callable[[Job], None]) -> Generator[Ended, None, None]:
    """Perform all jobs in processes of this machine; see `Engine`."""
    pool = _Processes()
    try:
        yield from perform_all(pool, pack(jobs), size or room(jobs), started)
    finally:
        pool.end()


class _Processes:
    """Processes that each perform one group after the other."""

    def __init__(self) -> None:
        self._idle: list[_Child] = []
        self._busy: dict[Hashable, _Child] = {}

    def start(self, group: JobGroup) -> Hashable:
        child = self._idle.pop() if self._idle else _Child()
        with suppress(OSError):  # it has died: so it is found
            child.pipe.send(group)
        self._busy[child.pipe] = child
        return child.pipe

    def ended(self, tasks: Sequence[Any], seconds: float) -> Sequence[Any]:
        return wait(tasks, seconds)

    def outcomes(self, task: Any) -> Outcomes:
        child = self._busy.pop(task)
        try:
            found: Outcomes = task.recv()
        except (EOFError, OSError):
            raise ProcessDiedError(child.end()) from None
        self._idle.append(child)
        return found

    def end(self) -> None:
        for child in (*self._idle, *self._busy.values()):
            child.end()


class _Child:
    """A process that performs what it is sent, and ends with this one. Only this one handles Ctrl-C."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process with threads can hang
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which it inherits
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, handler)
        theirs.close()

    def end(self) -> str:
        """End it at once, if it is alive; says why it has died, otherwise."""
        self._process.kill()
        self._process.join()
        code = self._process.exitcode or 0
        return f"signal {-code}: perhaps out of memory" if code < 0 else f"exit code {code}"


def _serve(pipe: "Connection[Any, Any]") -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    perform = GroupRunner()
    with suppress(EOFError):
        while True:
            pipe.send(perform(pipe.recv()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


class GroupRunner:
    """Makes the runs of one group after the other, and keeps the graph in between."""

    def __init__(self) -> None:
        self._graph: Hashable = None
        self._resolver: Resolver | None = None

    def __call__(self, group: JobGroup) -> Outcomes:
        """Make the runs of a group."""
        # Both are read when torch is first loaded, which is below.
        os.environ["OMP_NUM_THREADS"] = str(group.threads)
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        from ipal.bench.interleave import run_interleaved

        runs, outcomes = {}, Outcomes()
        for job in group.jobs:
            try:
                runs[job.name] = self._resolver_for(job).resolve(job.config), job.folder
            except Exception as error:
                outcomes[job.name] = job.folder.note_failure(error)
        names = list(runs)
        ended = run_interleaved(list(runs.values()), max(job.stack for job in group.jobs))
        return outcomes | {names[place]: reason for place, reason in ended}

    def _resolver_for(self, job: Job) -> "Resolver":
        from ipal.runs.resolved import Resolver

        graph = job.data_root, job.config.dataset, job.config.protocol.edges
        if self._resolver is None or graph != self._graph:  # one graph at a time: two may be too much
            self._graph, self._resolver = graph, Resolver(job.data_root)
        return self._resolver
