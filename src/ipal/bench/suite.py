"""Runs experiment files: all runs of all rows, the choice of settings by validation scores, the manifests."""

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ipal.bench.experiment_file import Experiment, ExperimentEntry, blaming
from ipal.bench.jobs import Engine, Job, local
from ipal.bench.ray_executor import ray_cluster
from ipal.data.datasets.catalog import data_root
from ipal.errors import ConfigError, StoreError, did_you_mean
from ipal.estimator.registry import METHODS
from ipal.runs.manifest import GridPoint, Manifest, ManifestRow, Settings, manifest_path, read_manifest
from ipal.runs.resolved import Resolver
from ipal.runs.run_folder import RunFolder

ENGINES: dict[str, Callable[[str | None], Engine]] = {"local": local, "ray": ray_cluster}
"""Executors by name, made from the address of a cluster."""


@dataclass(eq=False)
class BenchRow:
    """An entry with its runs: a row of the table in progress.

    With seeds of their own to choose by (`tuning_seeds`), the chosen point is run again with those reported.
    """

    entry: ExperimentEntry
    points: list[GridPoint]
    searched: bool
    """Whether one of the points is chosen."""
    report: Callable[[Settings], GridPoint] | None = None
    """Plans the runs of chosen settings for the seeds that are reported; None where those are the same seeds."""
    reported: GridPoint | None = None
    """The chosen point with those seeds."""
    chosen: GridPoint | None = None
    """The chosen point, after all runs; None if no point has all its runs."""
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> set[str]:
        return {run for point in (*self.points, self.reported) if point for run in point.runs}

    @property
    def differs(self) -> Settings:
        """Chosen settings that differ from the file."""
        chosen, given = self.chosen.settings if self.chosen else {}, self.entry.given
        return {name: value for name, value in chosen.items() if given.get(name, value) != value}


@dataclass(eq=False)
class Bench:
    """One experiment file with all its runs known."""

    experiment: Experiment
    runs: Path
    dataset: str
    command: str
    rows: list[BenchRow]

    @property
    def name(self) -> str:
        return self.experiment.path.stem

    def settle(self, row: BenchRow, failures: Mapping[str, str]) -> bool:
        """All runs of a row have ended: choose its point. Only validation scores are used.

        False if the runs to be reported are still to be made, which are planned now.
        """
        row.failures = {run: failures[run] for run in sorted(row.runs & failures.keys())}
        scores = {}
        for run in row.runs - failures.keys():
            try:
                scores[run] = RunFolder(self.runs / run).result()["validation"]["average_performance"]
            except StoreError as error:
                row.failures[run] = str(error)
        row.chosen = choose(row.points, scores)
        if row.chosen is None or row.report is None:
            return True
        if row.reported is None:
            row.reported = row.report(row.chosen.settings)
            return False
        row.chosen = choose([row.reported], scores)
        return True

    def write_manifest(self) -> None:
        """Of all entries; those that this bench leaves out stay as an earlier one left them."""
        before: dict[str, ManifestRow] = {}
        with suppress(StoreError):  # none yet, or damaged: this one takes its place
            before = {row.label: row for row in read_manifest(manifest_path(self.runs, self.name)).entries}
        rows = {row.entry.label: row for row in self.rows}
        Manifest(
            name=self.name,
            about=self.experiment.about,
            kind=self.experiment.kind,
            dataset=self.dataset,
            seeds=self.experiment.seeds,
            command=self.command,
            entries=tuple(
                _record(entry, rows.get(entry.label), before.get(entry.label)) for entry in self.experiment.entries
            ),
        ).write(self.runs)

    def summary(self, row: BenchRow) -> dict[str, Any]:
        """A row as plain data; the scores are None where it has failed."""
        results = [RunFolder(self.runs / run).result() for run in row.chosen.runs] if row.chosen else []
        names = results[0]["metrics"] if results else ()
        metrics = {name: [result["metrics"].get(name) for result in results] for name in names}
        return {
            "label": row.entry.label,
            "method": row.entry.method,
            "stores_exemplars": METHODS.find(row.entry.method).keeps != "statistics",
            "settings": row.chosen.settings if row.chosen else {},
            "runs": list(row.chosen.runs) if row.chosen else [],
            "average_performance": spread([result["average_performance"] for result in results]),
            "average_forgetting": spread([result["average_forgetting"] for result in results]),
            "metrics": {name: spread(values) for name, values in metrics.items() if None not in values},
            "validation": spread([result["validation"]["average_performance"] for result in results]),
            "seconds": statistics.fmean(result["timing"]["total_seconds"] for result in results) if results else None,
            "failures": [{"run": run, "reason": reason} for run, reason in row.failures.items()],
        }


@dataclass
class Suite:
    """All files of one command, as one pool of runs by their names."""

    benches: list[Bench]
    jobs: dict[str, Job]

    @property
    def rows(self) -> Iterator[tuple[Bench, BenchRow]]:
        return ((bench, row) for bench in self.benches for row in bench.rows)

    def unfinished(self) -> list[Job]:
        return [job for job in self.jobs.values() if not job.folder.is_finished]


class Watcher(Protocol):
    """Observer of a suite."""

    def started(self, job: Job) -> None: ...
    def ended(self, job: Job, reason: str | None) -> None: ...
    def settled(self, bench: Bench, row: BenchRow) -> None: ...


def choose(points: Sequence[GridPoint], scores: Mapping[str, float]) -> GridPoint | None:
    """The point with the highest mean score, the first among equals, of those with a score for every run."""
    whole = [point for point in points if scores.keys() >= set(point.runs)]
    return max(whole, key=lambda point: statistics.fmean(scores[run] for run in point.runs), default=None)


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
    stack: int = 1,
) -> Suite:
    """Resolve every run of every file. Errors are raised here, before any run starts."""
    names = [file.path.stem for file in experiments]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"Two files are named {min(twice)}, and a bench is known by its file's name: rename one.")
    labels = [entry.label for file in experiments for entry in file.entries]
    for label in only:
        if label not in labels:
            raise ConfigError(f"There is no entry '{label}'.{did_you_mean(label, labels)}")
    options = " --tune" * tune + f" --stack {stack}" * (stack > 1)
    root = data_root(root)
    suite, resolver = Suite([], {}), Resolver(root)

    def row(file: Experiment, entry: ExperimentEntry) -> BenchRow:
        searched = entry.searched(tune)

        def make(point: Settings, seeds: Sequence[int]) -> GridPoint:
            jobs = []
            for seed in seeds:
                config = file.config(entry, entry.given | point, seed)
                with blaming(file.path, entry.label):
                    jobs.append(Job(resolver.resolve(config).config, runs, root, stack))
            suite.jobs.update({job.name: job for job in jobs})
            own = {name: point[name] for name in [*entry.own, *searched]}
            return GridPoint(settings=own, runs=tuple(job.name for job in jobs))

        by = (searched and file.tuning_seeds) or file.seeds
        report = None if by == file.seeds else partial(make, seeds=file.seeds)
        return BenchRow(entry, [make(point, by) for point in entry.points(tune)], bool(searched), report)

    for file in experiments:
        rows = [row(file, entry) for entry in file.entries if not only or entry.label in only]
        if rows:
            dataset = suite.jobs[rows[0].points[0].runs[0]].config.dataset
            command = f"ipal bench {file.path}{options}"
            suite.benches.append(Bench(file, runs, dataset, command, rows))
    return suite


def make_engine(name: str, address: str | None = None) -> Engine:
    if name not in ENGINES:
        raise ConfigError(f"There is no engine '{name}'.{did_you_mean(name, ENGINES)}")
    return ENGINES[name](address)


def execute(suite: Suite, size: int | None, watcher: Watcher, engine: Engine) -> None:
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
            if not bench.settle(row, failures):
                waiting.update(row.runs)  # they are made in the next round
                continue
            unsettled.remove((bench, row))
            bench.write_manifest()
            watcher.settled(bench, row)

    while unsettled:
        pending = [job for job in suite.unfinished() if job.name not in failures]
        waiting = {job.name for job in pending}
        settle()
        with closing(engine(pending, size, watcher.started)) as outcomes:
            for job, reason in outcomes:
                waiting.remove(job.name)
                if reason is not None:
                    failures[job.name] = reason
                watcher.ended(job, reason)
                settle()


def _record(entry: ExperimentEntry, row: BenchRow | None, before: ManifestRow | None) -> ManifestRow:
    """The manifest row of an entry: of this bench, or of an earlier one if this one leaves it out."""
    if row is None and before and before.method == entry.method:
        return before
    point, tried, failures = None, tuple[GridPoint, ...](), dict[str, str]()
    if row is not None:
        failures = row.failures
        # A row that is given shows its point from the start: it can be reported as far as it is done.
        point = row.chosen if row.searched else row.points[0]
        if row.report and point is not row.reported:
            point = None  # the runs it was chosen by are no result
        if row.searched and (row.chosen or row.failures):
            tried = tuple(row.points)
    return ManifestRow(
        label=entry.label,
        method=entry.method,
        stores_exemplars=METHODS.find(entry.method).keeps != "statistics",
        settings=point.settings if point else entry.own,
        runs=point.runs if point else (),
        grid={name: tuple(values) for name, values in entry.grid.items()},
        tried=tried,
        failures=failures,
    )
