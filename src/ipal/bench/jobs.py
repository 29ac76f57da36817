"""Jobs and groups of jobs: the work of an executor. A job is one run, a group the jobs of one process.

A run on the CPU is a group of its own. Runs on a GPU that share a graph take turns in one process
(`ipal.bench.interleave`). No torch is loaded here, so that a process can set its number of threads first.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ipal.bench.outcomes import BUSY, Outcome, reason_of
from ipal.config import RunConfig
from ipal.runs.run_folder import RunFolder, RunStore

if TYPE_CHECKING:
    from ipal.runs.resolved import Resolver

MOST_TOGETHER = 64
"""Runs in one group: each holds memory while all take turns."""
WAIT_FOR_OTHERS = 1.0
"""Seconds until a busy run is tried again."""
LOOK_SECONDS = 0.5
"""Seconds between two checks for what is due."""


@dataclass(frozen=True)
class Job:
    """One run to be made."""

    config: RunConfig
    """Resolved."""
    runs: Path
    data_root: Path
    plugins: tuple[Path, ...] = field(default=(), kw_only=True)
    """Plugin files to load first."""
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


Ended = tuple[Job, str | None]
"""A job, and why it failed (None: it did not)."""


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


def split(groups: Sequence[JobGroup], places: int) -> list[JobGroup]:
    """Halve the largest groups until there is one for every place, or nothing left to halve."""
    found = list(groups)
    while len(found) < places and (largest := max(found, key=lambda group: len(group.jobs))).jobs[1:]:
        middle = (len(largest.jobs) + 1) // 2
        halves = largest.jobs[:middle], largest.jobs[middle:]
        place = found.index(largest)
        found[place : place + 1] = [replace(largest, jobs=half) for half in halves]
    return found


# ---------------------------------------------------------------------- the loop of every executor

Report = Literal["started", "finished"] | Outcome
"""What the process of a group says: that it has begun or ended, or that a job has ended."""


class ProcessDiedError(Exception):
    """The process of a group has died; the message is the cause."""


class Pool(Protocol):
    """Where groups are performed: processes of this machine, or of a cluster. A handle stands for a group there."""

    def submit(self, group: JobGroup) -> Any:
        """The handle of a group that is begun as soon as there is room."""

    def ready(self, handles: Collection[Any], seconds: float) -> Collection[Any]:
        """Wait at most so long for reports; the handles of those groups that have one."""

    def report(self, handle: Any) -> Report:
        """The next report of a group, or a `ProcessDiedError`."""

    def cancel(self, handle: Any) -> None: ...


@dataclass(eq=False)
class _Attempt:
    """A group under way."""

    group: JobGroup
    unfinished: dict[int, Job]
    busy: list[Job] = field(default_factory=list)


def perform_all(
    pool: Pool, groups: Iterable[JobGroup], size: int | None, started: Callable[[Job], None]
) -> Generator[Ended, None, None]:
    """Perform groups in a pool; see `Engine`.

    Jobs that another process is making are tried again later: by then it has finished them, or given up. If a process
    dies, its jobs are tried once more, each in a process of its own.
    """
    pending, later = deque(groups), deque[tuple[float, JobGroup]]()
    under_way: dict[Any, _Attempt] = {}
    try:
        while pending or later or under_way:
            while later and later[0][0] <= time.monotonic():
                pending.append(later.popleft()[1])
            while pending and (size is None or len(under_way) < size):
                group = pending.popleft()
                under_way[pool.submit(group)] = _Attempt(group, dict(enumerate(group.jobs)))
            for handle in pool.ready(under_way.keys(), LOOK_SECONDS):
                attempt = under_way[handle]
                try:
                    report = pool.report(handle)
                except ProcessDiedError as death:
                    report = "finished"
                    left = attempt.unfinished.values()
                    if attempt.group.deaths:
                        yield from [(job, f"the process died twice ({death})") for job in left]
                    else:
                        pending.extend(JobGroup((job,), deaths=1) for job in left)
                if report == "started":
                    for job in attempt.group.jobs:
                        started(job)
                elif report == "finished":
                    del under_way[handle]
                    if attempt.busy:
                        again = replace(attempt.group, jobs=tuple(attempt.busy))
                        later.append((time.monotonic() + WAIT_FOR_OTHERS, again))
                else:
                    place, reason = report
                    job = attempt.unfinished.pop(place)
                    if reason == BUSY:
                        attempt.busy.append(job)
                    else:
                        yield job, reason
    finally:
        for handle in under_way:
            pool.cancel(handle)


# ---------------------------------------------------------------------- inside the process


class GroupRunner:
    """Makes the runs of one group after the other, and keeps the graph in between."""

    def __init__(self) -> None:
        self._graph: Hashable = None
        self._resolver: Resolver | None = None

    def __call__(self, group: JobGroup) -> Iterator[Outcome]:
        """Make the runs of a group; yields each when it has ended."""
        # Both are read when torch is first loaded, which is below.
        os.environ["OMP_NUM_THREADS"] = str(group.threads)
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        from ipal.bench.interleave import run_interleaved
        from ipal.runs.plugins import load_plugin

        runs = {}
        for place, job in enumerate(group.jobs):
            try:
                for plugin in job.plugins:
                    load_plugin(plugin)
                runs[place] = self._resolver_for(job).resolve(job.config), job.folder
            except Exception as error:
                yield place, reason_of(error, job.folder)
        places = list(runs)
        for number, reason in run_interleaved(list(runs.values()), max(job.stack for job in group.jobs)):
            yield places[number], reason

    def _resolver_for(self, job: Job) -> "Resolver":
        from ipal.runs.resolved import Resolver

        graph = job.data_root, job.config.dataset, job.config.protocol.edges
        if self._resolver is None or graph != self._graph:  # one graph at a time: two may be too much
            self._graph, self._resolver = graph, Resolver(job.data_root)
        return self._resolver
