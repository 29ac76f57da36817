"""Jobs and groups of jobs: the work of an executor. A job is one run, a group the jobs of one process.

A run on the CPU is a group of its own. Runs on a GPU that share a graph take turns in one process
(`ipal.bench.interleave`). No torch is loaded here, so that a process can set its number of threads first.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ipal.config import RunConfig
from ipal.runs.run_folder import BUSY, RunFolder, RunStore

if TYPE_CHECKING:
    from ipal.runs.resolved import Resolver

MOST_TOGETHER = 64
"""Runs in one group: each holds memory while all take turns."""
WAIT_FOR_OTHERS = 1.0
"""Seconds until a busy run is tried again."""
LOOK_SECONDS = 0.5
"""Seconds between two checks for what is due, or finished."""


@dataclass(frozen=True)
class Job:
    """One run to be made."""

    config: RunConfig
    """Resolved."""
    runs: Path
    data_root: Path
    stack: int = field(default=1, kw_only=True)
    """How many runs on a GPU that differ in numbers alone may take their steps as one."""

    @property
    def folder(self) -> RunFolder:
        return RunStore(self.runs).folder_for(self.config)

    @property
    def name(self) -> str:
        return self.folder.path.name

    @property
    def on_gpu(self) -> bool:
        return self.config.device.startswith("cuda")


Outcomes = dict[str, str | None]
"""Names of jobs, and why they failed (None: they did not)."""
Ended = tuple[Job, str | None]
"""A job, and why it failed."""


@dataclass(frozen=True)
class JobGroup:
    """Jobs that are performed together."""

    jobs: tuple[Job, ...]
    deaths: int = 0
    """How many processes have died during them."""

    @property
    def threads(self) -> int:
        return max(job.config.threads for job in self.jobs)

    @property
    def on_gpu(self) -> bool:
        return any(job.on_gpu for job in self.jobs)


class Engine(Protocol):
    """An executor of groups."""

    def __call__(
        self, groups: Sequence[JobGroup], size: int | None, started: Callable[[Job], None]
    ) -> Generator[Ended, None, None]:
        """Perform all groups, `size` at a time (None: as many as there is room for), and yield each job when it has
        ended. Closed early, it ends what it has started."""
        ...


def pack(jobs: Iterable[Job]) -> list[JobGroup]:
    """Jobs as groups, in the order of their first jobs."""
    together: dict[Hashable, list[Job]] = {}
    for job in jobs:
        together.setdefault(_shared(job), []).append(job)
    return [
        JobGroup(tuple(group[begin : begin + MOST_TOGETHER]))
        for group in together.values()
        for begin in range(0, len(group), MOST_TOGETHER)
    ]


def _shared(job: Job) -> Hashable:
    """What jobs of one group must share."""
    config = job.config
    if not job.on_gpu:
        return job.name
    return config.dataset, config.protocol.edges, config.device, config.threads


# ---------------------------------------------------------------------- the loop of every executor


class ProcessDiedError(Exception):
    """The process of a group has died; the message is the cause."""


class Pool(Protocol):
    """Where groups are performed: processes of this machine, or of a cluster."""

    def submit(self, group: JobGroup) -> "Future[Outcomes]": ...
    def outcomes(self, done: "Future[Outcomes]") -> Outcomes:
        """How the jobs of a group have ended, or a `ProcessDiedError`."""


def perform_all(
    pool: Pool, groups: Iterable[JobGroup], size: int, started: Callable[[Job], None]
) -> Generator[Ended, None, None]:
    """Perform groups in a pool; see `Engine`.

    Jobs that another process is making are tried again later: by then it has finished them, or given up. If a process
    dies, its unfinished jobs are tried once more, each in a process of its own.
    """
    pending, later = deque(groups), deque[tuple[float, JobGroup]]()
    under_way: dict[Future[Outcomes], JobGroup] = {}
    while pending or later or under_way:
        while later and later[0][0] <= time.monotonic():
            pending.append(later.popleft()[1])
        while pending and len(under_way) < size:
            group = pending.popleft()
            under_way[pool.submit(group)] = group
            for job in group.jobs:
                started(job)
        if under_way:
            wait(under_way, LOOK_SECONDS, FIRST_COMPLETED)
        else:
            time.sleep(LOOK_SECONDS)
        for future, group in tuple(under_way.items()):
            has_ended = future.done()
            finished = [job for job in group.jobs if job.folder.is_finished]
            left = tuple(job for job in group.jobs if job not in finished)
            yield from ((job, None) for job in finished)
            under_way[future] = replace(group, jobs=left)
            if not has_ended:
                continue
            del under_way[future]
            try:
                reasons = pool.outcomes(future)
            except ProcessDiedError as death:
                if group.deaths:
                    yield from ((job, f"the process died twice ({death})") for job in left)
                else:
                    pending.extend(JobGroup((job,), deaths=1) for job in left)
                continue
            yield from ((job, reasons[job.name]) for job in left if reasons[job.name] != BUSY)
            if busy := tuple(job for job in left if reasons[job.name] == BUSY):
                later.append((time.monotonic() + WAIT_FOR_OTHERS, replace(group, jobs=busy)))


# ---------------------------------------------------------------------- inside the process


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
