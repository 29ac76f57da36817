"""Jobs and parcels: the work of an executor. A job is one run, a parcel the jobs of one process.

A run on the CPU is a parcel of its own. Runs on a GPU that share a graph take turns in one process
(`ipal.bench.interleave`). No torch is loaded here, so that a process can set its number of threads first.
"""

import os
import traceback
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from filelock import Timeout

from ipal.config import RunConfig
from ipal.errors import IpalError, StoreError
from ipal.runs.run_folder import RunFolder, RunStore

if TYPE_CHECKING:
    from ipal.data.datasets import Dataset
    from ipal.runs.environment import Machine

MOST_TOGETHER = 64
"""Runs in one parcel: each holds memory while all take turns."""
BUSY = "busy"
"""Why a run was not made: another process is making it."""
WAIT_FOR_OTHERS = 1.0
"""Seconds until a busy run is tried again."""


@dataclass(frozen=True)
class Job:
    """One run to be made."""

    config: RunConfig
    """Resolved."""
    runs: Path
    data_root: Path
    plugins: tuple[Path, ...] = field(default=(), kw_only=True)
    """Plugin files to load first."""

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
class Parcel:
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


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Engine(Protocol):
    """An executor of parcels."""

    def __call__(
        self, parcels: Sequence[Parcel], size: int | None, started: Callable[[Job], None]
    ) -> Generator[Ended, None, None]:
        """Perform all parcels, `size` at a time (None: as many as there is room for), and yield each job when it has
        ended. Closed early, it ends what it has started."""
        ...


def pack(jobs: Iterable[Job]) -> list[Parcel]:
    """Jobs as parcels, in the order of their first jobs."""
    together: dict[Hashable, list[Job]] = {}
    for job in jobs:
        together.setdefault(_shared(job), []).append(job)
    return [
        Parcel(tuple(group[begin : begin + MOST_TOGETHER]))
        for group in together.values()
        for begin in range(0, len(group), MOST_TOGETHER)
    ]


def _shared(job: Job) -> Hashable:
    """What jobs of one parcel must share."""
    config = job.config
    if not job.on_gpu:
        return job.name
    return config.dataset, config.protocol.edges, config.device, config.threads


def split(parcels: Sequence[Parcel], places: int) -> list[Parcel]:
    """Halve the largest parcels until there is one for every place, or nothing left to halve."""
    found = list(parcels)
    while len(found) < places and (largest := max(found, key=lambda parcel: len(parcel.jobs))).jobs[1:]:
        middle = (len(largest.jobs) + 1) // 2
        halves = largest.jobs[:middle], largest.jobs[middle:]
        place = found.index(largest)
        found[place : place + 1] = [replace(largest, jobs=half) for half in halves]
    return found


class Attempt:
    """A parcel in progress: which jobs have ended, and what to do with the others."""

    def __init__(self, parcel: Parcel) -> None:
        self.parcel = parcel
        self._open = dict(enumerate(parcel.jobs))
        self._busy: list[Job] = []

    def note(self, place: int, reason: str | None) -> Ended | None:
        """A job has ended; None if it must be retried because another process is making it."""
        job = self._open.pop(place)
        if reason == BUSY:
            self._busy.append(job)
            return None
        return job, reason

    @property
    def busy(self) -> Parcel | None:
        """Jobs to retry later."""
        return replace(self.parcel, jobs=tuple(self._busy)) if self._busy else None

    def died(self, cause: str) -> tuple[list[Parcel], list[Ended]]:
        """The process is dead: what to try again at once, each by itself in a fresh one, and what to give up."""
        left = self._open.values()
        if self.parcel.deaths:
            return [], [(job, f"the process died twice ({cause})") for job in left]
        return [Parcel((job,), deaths=1) for job in left], []


# ---------------------------------------------------------------------- inside the process


class Performer:
    """Makes the runs of one parcel after the other, and keeps what the next parcel may need again."""

    def __init__(self) -> None:
        self._machine: Machine | None = None
        self._graph: tuple[Hashable, Dataset] | None = None

    def __call__(self, parcel: Parcel, ended: Callable[[int, str | None], None]) -> None:
        """Make the runs of a parcel; `ended` is called for each with its index and error."""
        # Both are read when torch is first loaded, which is below.
        os.environ["OMP_NUM_THREADS"] = str(parcel.threads)
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        from ipal.bench.interleave import Member, run_fleet
        from ipal.runs.environment import Machine
        from ipal.runs.plugins import load_plugin
        from ipal.runs.resolved import Resolver

        members, resolver = dict[int, Member](), Resolver()
        for place, job in enumerate(parcel.jobs):
            try:
                for plugin in job.plugins:
                    load_plugin(plugin)
                resolved = resolver.resolve(job.config, self._dataset(job))
            except Exception as error:
                ended(place, _reason(error, job.folder))
            else:
                members[place] = Member(resolved, job.folder, job.data_root)
        places = list(members)

        def member_ended(number: int, error: BaseException | None) -> None:
            place = places[number]
            ended(place, None if error is None else _reason(error, members[place].folder))

        self._machine = self._machine or Machine.here()
        run_fleet(list(members.values()), member_ended, machine=self._machine)

    def _dataset(self, job: Job) -> "Dataset":
        from ipal.data import datasets

        name, edges = job.config.dataset, job.config.protocol.edges
        key = name, job.data_root, edges
        if self._graph is None or self._graph[0] != key:
            self._graph = None  # two at a time may be too much
            self._graph = key, datasets.load(name, job.data_root, undirected=edges == "undirected")
        return self._graph[1]


def _reason(error: BaseException, folder: RunFolder) -> str:
    if isinstance(error, StoreError) and isinstance(error.__cause__, Timeout):
        return BUSY
    expected = isinstance(error, IpalError)
    with suppress(StoreError):
        folder.log(f"failed: {error if expected else ''.join(traceback.format_exception(error))}")
    return str(error) if expected else f"{type(error).__name__}: {error}"
