"""Runs experiment files: all runs of all rows, the choice of settings by validation scores, the manifests."""

import itertools
import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, Protocol

from ipal.bench.experiment_file import Experiment, ExperimentEntry, Settings, check_runs
from ipal.bench.jobs import Engine, Job, pack
from ipal.bench.local_executor import processes, run_all
from ipal.bench.ray_executor import ray_cluster
from ipal.config import RunConfig, known_settings
from ipal.data.datasets.catalog import data_root
from ipal.errors import ConfigError, StoreError, did_you_mean
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import own_settings, shared_settings
from ipal.runs import manifest
from ipal.runs.manifest import GridPoint
from ipal.runs.resolved import Resolver
from ipal.runs.run_folder import RunFolder

MOST_EXTENSIONS = 4
"""How often a grid grows."""


@dataclass(eq=False)
class BenchRow:
    """An entry with its runs: a row of the table in progress.

    With seeds of their own to choose by (`tuning_seeds`), a grid grows where the best value lies at its edge, and the
    chosen point is then run with the seeds that are reported.
    """

    entry: ExperimentEntry
    searched: tuple[str, ...]
    """Settings that are searched; none where all are given."""
    make: Callable[[Settings, Sequence[int]], GridPoint]
    """Plans the runs of some settings for some seeds."""
    seeds: tuple[int, ...]
    """Of the runs by which a point is chosen."""
    reported_seeds: tuple[int, ...]
    """Of the runs that are reported."""
    asked: list[Settings]
    """The settings of the points."""
    given: manifest.Settings
    """The values in the file of the settings in its grid."""
    defaults: manifest.Settings
    """The settings of an entry for which the file chooses none."""
    points: list[GridPoint] = field(init=False)
    reported: GridPoint | None = None
    """The chosen point with the seeds that are reported; None before it is chosen, or where they are the same seeds."""
    chosen: GridPoint | None = None
    """The chosen point, after all runs; None if no point has all its runs."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why runs failed, by name."""
    extensions: int = 0

    def __post_init__(self) -> None:
        self.points = [self.make(point, self.seeds) for point in self.asked]

    @property
    def is_searched(self) -> bool:
        """Whether the point is chosen by a search, not given."""
        return bool(self.searched)

    @property
    def has_own_seeds(self) -> bool:
        """Whether the runs by which a point is chosen are other ones than those that are reported."""
        return self.is_searched and self.seeds != self.reported_seeds

    @property
    def runs(self) -> set[str]:
        points = self.points + ([self.reported] if self.reported else [])
        return set(itertools.chain.from_iterable(point.runs for point in points))

    @property
    def differs(self) -> manifest.Settings:
        """Chosen settings that differ from the file."""
        chosen = self.chosen.settings if self.chosen else {}
        return {name: value for name, value in chosen.items() if self.given.get(name, value) != value}

    def goes_on(self) -> bool:
        """Whether more runs are planned, now that a point is chosen: beyond the edge of the grid, or to be reported."""
        if self.chosen is None or not self.has_own_seeds or self.reported is not None:
            return False
        best = self.asked[self.points.index(self.chosen)]
        further = self._beyond(best) if self.extensions < MOST_EXTENSIONS else []
        self.extensions += 1
        self.asked += [asked for asked, _ in further]
        self.points += [point for _, point in further]
        if not further:
            self.reported = self.make(best, self.reported_seeds)
        return True

    def _beyond(self, best: Settings) -> list[tuple[Settings, GridPoint]]:
        """Points one step further for every setting whose best value is the least or the greatest of those tried."""
        found = []
        for name in self.searched:
            value = beyond([asked[name].value for asked in self.asked], best[name].value)
            if value is None:
                continue
            asked = best | {name: replace(best[name], value=value)}
            with suppress(ConfigError):  # no value of this setting
                point = self.make(asked, self.seeds)
                if point.settings not in [known.settings for known in self.points]:
                    found.append((asked, point))
        return found


@dataclass(eq=False)
class Bench:
    """One experiment file with all its runs known."""

    experiment: Experiment
    runs: Path
    dataset: str
    seeds: tuple[int, ...]
    command: str
    rows: list[BenchRow]

    @property
    def name(self) -> str:
        return self.experiment.path.stem

    def folder(self, run: str) -> RunFolder:
        return RunFolder(self.runs / run)

    def settle(self, row: BenchRow, failures: Mapping[str, str]) -> None:
        """All runs of a row have ended: choose its point. Only validation scores are used."""
        row.failures = {run: failures[run] for run in sorted(row.runs & failures.keys())}
        scores = {}
        for run in row.runs - failures.keys():
            try:
                scores[run] = float(self.folder(run).result()["validation"]["average_performance"])
            except StoreError as error:
                row.failures[run] = str(error)
        row.chosen = choose(row.points, scores)
        if row.chosen and row.reported:
            row.chosen = choose([row.reported], scores)

    def write_manifest(self) -> None:
        earlier = None
        with suppress(StoreError):  # none yet, or damaged: this one takes its place
            earlier = manifest.read_manifest(manifest.manifest_path(self.runs, self.name))
        before = {entry.label: entry for entry in earlier.entries} if earlier else {}
        rows = {row.entry.label: row for row in self.rows}
        manifest.Manifest(
            name=self.name,
            about=self.experiment.about,
            kind=self.experiment.kind,
            dataset=self.dataset,
            seeds=self.seeds,
            command=self.command,
            entries=tuple(
                _record(entry, rows.get(entry.label), before.get(entry.label)) for entry in self.experiment.entries
            ),
        ).write(self.runs)

    def summary(self, row: BenchRow) -> dict[str, Any]:
        """A row as plain data; the scores are None where it has failed."""
        results = [self.folder(run).result() for run in row.chosen.runs] if row.chosen else []
        return {
            "label": row.entry.label,
            "method": row.entry.method,
            "stores_exemplars": METHODS.find(row.entry.method).keeps != "statistics",
            "settings": row.chosen.settings if row.chosen else {},
            "defaults": row.defaults,
            "runs": list(row.chosen.runs) if row.chosen else [],
            "average_performance": spread([result["average_performance"] for result in results]),
            "average_forgetting": spread([result["average_forgetting"] for result in results]),
            "metrics": {name: spread(values) for name, values in _by_metric(results).items()},
            "validation": spread([result["validation"]["average_performance"] for result in results]),
            "seconds": statistics.fmean(result["timing"]["total_seconds"] for result in results) if results else None,
            "peak_memory_bytes": max((result["peak_memory_bytes"] for result in results), default=None),
            "runs_taking_turns": max((result["timing"]["runs_taking_turns"] for result in results), default=None),
            "failures": [{"run": run, "reason": reason} for run, reason in row.failures.items()],
        }


@dataclass
class Suite:
    """All files of one command, as one pool of runs."""

    benches: list[Bench]
    jobs: dict[str, Job]
    """Every run by its name, also what is finished already."""

    @property
    def threads(self) -> int:
        return max(job.config.threads for job in self.jobs.values())

    @property
    def rows(self) -> Iterator[tuple[Bench, BenchRow]]:
        return ((bench, row) for bench in self.benches for row in bench.rows)

    def unfinished(self) -> list[Job]:
        return [job for name, job in self.jobs.items() if not RunFolder(job.runs / name).is_finished]


class Watcher(Protocol):
    """Observer of a suite."""

    def started(self, job: Job) -> None: ...
    def ended(self, job: Job, reason: str | None) -> None: ...
    def settled(self, bench: Bench, row: BenchRow) -> None: ...


def choose(points: Sequence[GridPoint], scores: Mapping[str, float]) -> GridPoint | None:
    """The point with the highest mean score, the first among equals, of those with a score for every run.

    NaN, which a damaged result may hold, is no score.
    """
    known = {run for run, score in scores.items() if math.isfinite(score)}
    whole = [point for point in points if known >= set(point.runs)]
    return max(whole, key=lambda point: statistics.fmean(scores[run] for run in point.runs), default=None)


def beyond(values: Sequence[Any], best: Any) -> float | int | None:
    r"""The next value of a grid whose best one lies at its edge; None where it lies inside, or is no positive number.

    .. math:: v_n \cdot v_n / v_{n-1} \quad \text{above}, \qquad v_1 \cdot v_1 / v_2 \quad \text{below}

    Whole numbers stay whole while they are above zero.
    """
    if len(set(values)) < 2 or not all(type(value) in (int, float) for value in values):
        return None
    known = sorted(set(values))
    if best == known[-1] and known[-2] > 0:
        further = float(f"{best * best / known[-2]:.6g}")
    elif best == known[0] and best > 0:
        further = float(f"{best * best / known[1]:.6g}")
    else:
        return None
    if all(type(value) is int for value in values) and round(further) > 0:
        return round(further) if round(further) != best else None
    return further if math.isfinite(further) and further > 0 else None


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and standard deviation over seeds; None for a single value."""
    return {
        "mean": statistics.fmean(values) if values else None,
        "sd": statistics.stdev(values) if len(values) > 1 else None,
    }


def prepare(
    experiments: Sequence[Experiment],
    runs: Path,
    root: Path | None = None,
    *,
    tune: bool = False,
    only: Collection[str] = (),
    seeds: tuple[int, ...] = (),
    stack: int = 1,
) -> Suite:
    """Resolve every run of every file. Errors are raised here, before any run starts."""
    names = [file.path.stem for file in experiments]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"Two files are named {min(twice)}, and a bench is known by its file's name: rename one.")
    only = _named(only, [entry.label for file in experiments for entry in file.entries])
    options = " --tune" * tune + (f" --seeds {','.join(map(str, seeds))}" if seeds else "")
    options += f" --stack {stack}" if stack > 1 else ""
    resolver = _Resolver(runs, data_root(root), stack)
    suite = Suite([], resolver.jobs)
    for file in experiments:
        check_runs(file, len(seeds or max(file.seeds, file.tuning_seeds, key=len)))
        rows = [resolver.row(file, entry, seeds, tune) for entry in file.entries if not only or entry.label in only]
        if rows:
            dataset = resolver.jobs[rows[0].points[0].runs[0]].config.dataset
            command = f"ipal bench {file.path}{options}"
            suite.benches.append(Bench(file, runs, dataset, seeds or file.seeds, command, rows))
    return suite


def _named(only: Collection[str], labels: Sequence[str]) -> list[str]:
    """The labels that are asked for, one or several with commas in a text."""
    found = []
    for text in only:
        found += [text] if text in labels else [part.strip() for part in text.split(",")]
    for label in found:
        if label not in labels:
            raise ConfigError(f"There is no entry '{label}'.{did_you_mean(label, labels)}")
    return found


class _Resolver:
    """From the entries of files to runs."""

    def __init__(self, runs: Path, root: Path, stack: int) -> None:
        self.runs, self.root, self.stack = runs, root, stack
        self.jobs: dict[str, Job] = {}
        self._resolver = Resolver(root)

    def row(self, file: Experiment, entry: ExperimentEntry, seeds: tuple[int, ...], tune: bool) -> BenchRow:
        searched = tuple(entry.searched(tune))

        def make(point: Settings, seeds: Sequence[int]) -> GridPoint:
            jobs = [self._job(file, entry, point, seed) for seed in seeds]
            self.jobs |= {job.name: job for job in jobs}
            settings = _values(jobs[0].config, [*entry.own, *searched])
            return GridPoint(settings=settings, runs=tuple(job.name for job in jobs))

        reported = seeds or file.seeds
        by = seeds or file.tuning_seeds if searched else ()
        given = self._job(file, entry, entry.points(tune=False)[0], reported[0])
        fixed = entry.grid.keys() & entry.given.keys()
        used = [] if entry.own or entry.grid else _of_method(entry.method)
        defaults = {name: value for name, value in _values(given.config, used).items() if value is not None}
        values = _values(given.config, fixed)
        return BenchRow(entry, searched, make, by or reported, reported, entry.points(tune), values, defaults)

    def _job(self, file: Experiment, entry: ExperimentEntry, point: Settings, seed: int) -> Job:
        config = file.config(entry, point, seed)
        with file.blaming(entry, point, about="dataset"):
            data = self._resolver.dataset(config)
        with file.blaming(entry, point, about="split"):
            self._resolver.stream(config, data)
        with file.blaming(entry, point):
            config = self._resolver.resolve(config).config
            return Job(config, self.runs, self.root, stack=self.stack)


ENGINES: dict[str, Callable[[str | None], Engine]] = {"local": processes, "ray": ray_cluster}
"""Executors by name, made from the address of a cluster."""


def make_engine(name: str, address: str | None = None) -> Engine:
    if name not in ENGINES:
        raise ConfigError(f"There is no engine '{name}'.{did_you_mean(name, ENGINES)}")
    return ENGINES[name](address)


def execute(suite: Suite, size: int | None, watcher: Watcher, engine: Engine = run_all) -> None:
    """Make the runs that are not finished, `size` groups at a time (None: as many as there is room for).

    A failed run is noted and the others go on.
    """
    for bench in suite.benches:
        bench.write_manifest()
    failures: dict[str, str] = {}
    unsettled = list(suite.rows)
    waiting: set[str] = set()

    def settle() -> None:
        for bench, row in [pair for pair in unsettled if not pair[1].runs & waiting]:
            bench.settle(row, failures)
            if row.goes_on():  # with runs that are made in the next round
                waiting.update(row.runs)
                continue
            unsettled.remove((bench, row))
            bench.write_manifest()
            watcher.settled(bench, row)

    while unsettled:
        pending = [job for job in suite.unfinished() if job.name not in failures]
        waiting = {job.name for job in pending}
        settle()
        with closing(engine(pack(pending), size, watcher.started)) as outcomes:
            for job, reason in outcomes:
                waiting.remove(job.name)
                if reason is not None:
                    failures[job.name] = reason
                watcher.ended(job, reason)
                settle()


def _by_metric(results: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The values of every metric that is defined in all results."""
    names = results[0]["metrics"] if results else {}
    values = {name: [result["metrics"].get(name) for result in results] for name in names}
    return {name: found for name, found in values.items() if None not in found}


def _of_method(name: str) -> list[str]:
    """The settings that decide what a method learns: its own, those of its encoder and of its training."""
    method = METHODS.find(name)
    sections = {"encoder", "train"} & {*shared_settings(method)}
    shared = [known for known in known_settings(RunConfig) if known.partition(".")[0] in sections]
    return [*(f"{name}.{own}" for own in own_settings(method)), *shared]


def _values(config: RunConfig, names: Collection[str]) -> manifest.Settings:
    tree, stream = config.to_tree(), config.protocol.stream
    values = {"protocol.stream": stream.name, "protocol.stream.name": stream.name}
    values |= {f"protocol.stream.{name}": value for name, value in stream.settings.items()}
    return {
        name: values[name] if name in values else reduce(lambda below, part: below[part], name.split("."), tree)
        for name in names
    }


def _record(entry: ExperimentEntry, row: BenchRow | None, before: manifest.ManifestRow | None) -> manifest.ManifestRow:
    """The manifest row of an entry: of this bench, or of an earlier one if this one leaves it out."""
    if before and before.method != entry.method:
        before = None
    if row is None and before:
        return before
    record = manifest.ManifestRow(
        label=entry.label,
        method=entry.method,
        stores_exemplars=METHODS.find(entry.method).keeps != "statistics",
        settings={name: setting.value for name, setting in entry.own.items()},
        grid={name: tuple(setting.value for setting in values) for name, values in entry.grid.items()},
    )
    if row is None:
        return record
    # A row that is given shows its point from the start: it can be reported as far as it is done.
    point = row.chosen if row.is_searched else row.points[0]
    if row.has_own_seeds and point is not row.reported:
        point = None  # the runs it was chosen by are no result
    tried: tuple[GridPoint, ...] = ()
    if row.is_searched and (row.chosen or row.failures):
        tried = tuple(row.points)
    elif not row.is_searched and before and before.grid == record.grid:
        # The search of an earlier bench, if it was this row's: then the row's runs are among those of the search.
        mine = any(
            row.runs & set(earlier.runs) or earlier.settings == row.points[0].settings for earlier in before.tried
        )
        tried = before.tried if mine else ()
    return record.model_copy(
        update={
            "settings": point.settings if point else record.settings,
            "runs": point.runs if point else (),
            "tried": tried,
            "failures": tuple(manifest.Failure(run=run, reason=why) for run, why in row.failures.items()),
        }
    )
