"""Parts and their cases: how they are tried side by side, and the table of what came out.

A case is decided by the part, the seed and its number alone. Cases run in workers that are forked off one process,
which has loaded everything and computed nothing. A worker that dies or takes too long is a failure of its case.
"""

import importlib
import multiprocessing
import multiprocessing.connection
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MB = 2**20
MOST_MEMORY = 2 * 2**30
"""Bytes that a case may take beyond what the worker had before."""
MOST_SHOWN = 20
"""Failures of a part that are shown one by one."""
WIDTHS = (15, 9, 9, 9, 12)
WARM = (
    *(
        "ipal.cli",
        "ipal.runs.runner",
        "ipal.bench.suite",
        "ipal.audit",
    ),
    *("ipal.report.collect", "ipal.report.build"),
    *(
        "ipal.trackers.record",
        "ipal.data.datasets.forget_file",
        "ipal.deploy.serving.served",
    ),
    *(
        "ipal.deploy.export",
        "ipal.report.page",
        "jinja2",
        "onnx",
        "onnxruntime",
        "sklearn.manifold",
    ),
)
"""Loaded before anything is forked, as far as they are here: a fork is then at work at once."""


class Failed(Exception):  # noqa: N818
    """What a case found."""


@dataclass(frozen=True)
class Plan:
    """What is asked of a part."""

    folder: Path
    """For everything that is written."""
    seed: int
    numbers: Sequence[int]
    """Of the cases."""
    jobs: int


@dataclass(frozen=True)
class Case:
    """One try."""

    number: int
    random: random.Random
    folder: Path
    """Empty, and of this case alone."""


@dataclass(frozen=True)
class Part:
    """One kind of faults."""

    name: str
    count: int
    """Cases by default."""
    slice: int
    """Cases in `make test`."""
    seconds: float
    """That a case may take, on a busy machine."""
    prepare: Callable[[Plan], Any] = lambda plan: None
    """What all cases share, made before the workers are forked; nothing may be computed in its own process."""
    attempt: Callable[[Any, Case], None] = lambda prepared, case: None
    """Tries one case: raises Failed, or anything else, where it fails."""
    why_not: Callable[[], str | None] = lambda: None
    """Why the part cannot be tried here."""
    is_limited: bool = False
    """Whether the address space of the worker itself is limited to `MOST_MEMORY` more."""
    whole: Callable[[Plan, "Row"], None] | None = None
    """Tries all cases at once, in place of `attempt`."""


@dataclass
class Row:
    """A line of the table."""

    name: str
    seed: int
    tried: int = 0
    seconds: float = 0.0
    memory: int = 0
    """Largest resident memory of a worker or of what it started, in bytes."""
    found: dict[int, str] = field(default_factory=dict)
    """By number of the case, what failed."""
    remark: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.found)

    def line(self) -> str:
        if self.remark:
            return f"{self.name:<{WIDTHS[0]}}{self.remark}"
        cells = (f"{self.tried:,}", f"{len(self.found):,}", f"{self.seconds:.0f} s", f"{self.memory / MB:.0f} MB")
        return _cells(self.name, cells)

    def failures(self) -> Iterator[str]:
        for number, reason in sorted(self.found.items())[:MOST_SHOWN]:
            yield f"python -m faults {self.name} --seed {self.seed} --case {number}"
            yield f"    {reason}"
        if len(self.found) > MOST_SHOWN:
            others = " ".join(map(str, sorted(self.found)[MOST_SHOWN:][:200]))
            yield f"and {len(self.found) - MOST_SHOWN} more cases: {others}"


def head() -> str:
    return _cells("part", ("tried", "failed", "time", "memory"))


def _cells(name: str, cells: Sequence[str]) -> str:
    return f"{name:<{WIDTHS[0]}}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS[1:], strict=True))


def run_part(part: Part, plan: Plan) -> Row:
    """Try all cases of a part."""
    row = Row(part.name, plan.seed)
    if reason := part.why_not():
        row.remark = f"skipped: {reason}"
        return row
    for name in WARM:
        with suppress(ImportError):
            importlib.import_module(name)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ipal-faults-", dir=plan.folder, ignore_cleanup_errors=True) as folder:
        inside = Plan(Path(folder), plan.seed, plan.numbers, plan.jobs)
        try:
            if part.whole:
                part.whole(inside, row)
            else:
                _Crew(part, inside, part.prepare(inside), row).run()
        except Failed as failure:  # without any fault something does not work
            row.found[plan.numbers[0]] = f"could not be prepared: {failure}"
    row.seconds = time.perf_counter() - begin
    return row


class _Crew:
    """Workers, each with every so-many-th of the cases."""

    def __init__(self, part: Part, plan: Plan, prepared: Any, row: Row) -> None:
        self._part, self._plan, self._prepared, self._row = part, plan, prepared, row
        self._workers: dict[Any, _Worker] = {}

    def run(self) -> None:
        numbers, jobs = self._plan.numbers, self._plan.jobs
        for place in range(min(jobs, len(numbers))):
            self._hire(list(numbers[place::jobs]))
        try:
            while self._workers:
                for pipe in multiprocessing.connection.wait(list(self._workers), timeout=0.5):
                    self._hear(self._workers[pipe])
                for worker in list(self._workers.values()):
                    if time.monotonic() - worker.since > self._part.seconds:
                        worker.kill()
                        self._lost(worker, f"took more than {self._part.seconds:g} s")
        finally:
            for worker in self._workers.values():
                worker.kill()

    def _hire(self, numbers: list[int]) -> None:
        worker = _Worker(self._part, self._plan, self._prepared, numbers)
        self._workers[worker.pipe] = worker

    def _hear(self, worker: "_Worker") -> None:
        try:
            number, reason, memory = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            code = worker.process.exitcode
            self._lost(worker, f"its process died ({signal.Signals(-code).name if code and code < 0 else code})")
            return
        worker.since = time.monotonic()
        assert worker.left.pop(0) == number
        self._count(number, reason, memory)
        if not worker.left:
            del self._workers[worker.pipe]
            worker.process.join()

    def _lost(self, worker: "_Worker", reason: str) -> None:
        """Its case has failed; another worker goes on with the rest."""
        del self._workers[worker.pipe]
        number, *rest = worker.left
        self._count(number, reason, 0)
        if rest:
            self._hire(rest)

    def _count(self, number: int, reason: str | None, memory: int) -> None:
        self._row.tried += 1
        self._row.memory = max(self._row.memory, memory)
        if reason is not None:
            self._row.found[number] = reason


class _Worker:
    def __init__(self, part: Part, plan: Plan, prepared: Any, numbers: list[int]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe(duplex=False)
        self.left, self.since = list(numbers), time.monotonic()
        self.process = context.Process(target=_work, args=(part, plan, prepared, numbers, theirs))
        self.process.start()
        theirs.close()

    def kill(self) -> None:
        """The worker, and what it has started in its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()


# ---------------------------------------------------------------------- inside a worker


def _work(part: Part, plan: Plan, prepared: Any, numbers: Sequence[int], pipe: Any) -> None:
    os.setpgid(0, 0)
    for number in numbers:
        folder = plan.folder / f"case-{number}"
        folder.mkdir()
        case = Case(number, random.Random(f"{part.name} {plan.seed} {number}"), folder)
        pipe.send((number, _tried(part, prepared, case), largest_memory()))
        shutil.rmtree(folder, ignore_errors=True)


def _tried(part: Part, prepared: Any, case: Case) -> str | None:
    """What failed, in a line."""
    if part.is_limited:
        limit_memory(MOST_MEMORY)
    try:
        part.attempt(prepared, case)
    except Failed as failure:
        return str(failure)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        words = " ".join(str(error).split())[:300]
        return f"{type(error).__name__}: {words} ({Path(place.filename).name}:{place.lineno})"
    return None


def limit_memory(more: int) -> None:
    """No more address space than this beyond what the process has now: what asks for more gets a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))


def largest_memory() -> int:
    """Resident, of this process or of any that it has waited for."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return 1024 * max(resource.getrusage(one).ru_maxrss for one in who)
