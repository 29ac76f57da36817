"""Stored runs as tables, figures and pages show them: rows of runs over seeds, and rows that can be compared."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, mode
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipal.config import ProtocolConfig, RunConfig, flat
from ipal.errors import ConfigError, StoreError, did_you_mean
from ipal.evaluation.metrics import titled
from ipal.report import paper
from ipal.runs.manifest import Manifest, Settings, manifest_path, read_manifest
from ipal.runs.records import Confusion, Result
from ipal.runs.run_folder import RunFolder, RunStore

RULES = (*(name for name in ProtocolConfig.model_fields if name != "calibration"), "split")
"""Fields of the protocol that must agree where numbers are compared; datasets have a split each."""


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run. Its result is read at once, its other files when something of them is shown."""

    folder: RunFolder
    result: Result

    @property
    def dataset(self) -> str:
        return paper.dataset_title(self.result.dataset)

    @cached_property
    def rules(self) -> dict[str, Any]:
        """The part of the protocol that must agree where numbers are compared."""
        known = self.result.protocol.model_dump(mode="json")
        return {name: known.get(name) for name in RULES}

    @cached_property
    def scores(self) -> dict[str, float]:
        """Metrics by title, as AP; those that are not defined are left out."""
        return titled(self.result.metrics)

    @property
    def matrix(self) -> NDArray[np.float64]:
        """The accuracy matrix, NaN above the diagonal."""
        return np.array(self.result.accuracy_matrix, dtype=np.float64)

    @property
    def costs(self) -> dict[str, float]:
        """Seconds and bytes, as tables name them."""
        return {
            "time of a run": self.result.timing.total_seconds,
            "an epoch": fmean(self.result.timing.seconds_per_epoch),
            "peak memory": self.result.peak_memory_bytes,
            "retained": self.result.retained.bytes,
        }

    @cached_property
    def config(self) -> RunConfig:
        return self.folder.config()

    @cached_property
    def settings(self) -> Settings:
        """All but the seed, by dotted name."""
        return {name: value for name, value in flat(self.config.to_tree()).items() if name != "seed"}

    @property
    def machine(self) -> str:
        """What its times were measured on."""
        known = self.folder.environment()
        return f"{known.get('device_name') or known.get('processor')}, threads: {known.get('threads')}"

    @cached_property
    def confusion(self) -> Confusion:
        found = Confusion.model_validate(self.folder.confusion())
        if len(found.after_task) != len(self.matrix):
            path = self.folder.path / "confusion.json"
            raise StoreError(f"{path} is damaged: restore the file, or delete the run's folder and run again.")
        return found


@dataclass(frozen=True, eq=False)
class ReportRow:
    """Runs of one method that differ in the seed alone."""

    label: str
    method: str
    runs: Sequence[Run]
    stores_exemplars: bool
    settings: Settings = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The method's name without signs if the row is the plain method, else the row's label."""
        plain = paper.plain_name(self.label)
        return plain if plain == paper.plain_name(self.method) or plain in paper.METHODS else self.label

    @property
    def title(self) -> str:
        """Of the method where the label is its name, else the label; a dagger where raw nodes are stored."""
        is_plain = self.runs and paper.plain_name(self.label) == paper.plain_name(self.method)
        title = self.runs[0].result.title if is_plain else paper.title(self.label)
        return f"{title} †" if self.stores_exemplars else title

    @property
    def is_upper_reference(self) -> bool:
        """Whether its method keeps all tasks: it bounds the others from above, so it is not ranked."""
        return any(run.result.retained.stores_all_tasks for run in self.runs)

    @property
    def is_ours(self) -> bool:
        """Whether its method is the paper's own, whole or a part of it."""
        return paper.plain_name(self.method) == paper.OURS

    @property
    def switch(self) -> str:
        """Settings fixed by the experiment file, as text: what makes a row of Table 2. Empty for the whole method."""
        fixed = {name: value for name, value in self.settings.items() if name not in self.grid}
        return ",".join(f"{name}={value}" for name, value in sorted(fixed.items()))

    def by_seed(self, score: str) -> dict[int, float]:
        return {run.result.seed: run.scores[score] for run in self.runs if score in run.scores}

    def mean(self, score: str) -> float:
        return fmean(self.by_seed(score).values())


@dataclass(frozen=True, eq=False)
class Comparison:
    """Rows in one table: those of a bench, or of all runs on one graph under one protocol."""

    name: str
    """Of its files, or of its section of a page."""
    dataset: str
    title: str
    rows: Sequence[ReportRow]
    seeds: Sequence[int]
    """Of the rows that can be ranked."""
    kind: str = "study"
    command: str = ""
    remarks: Sequence[str] = ()
    tried: Sequence[ReportRow] = ()
    """For Figure 6: the points of the grids, as rows with their settings and runs."""

    @property
    def runs(self) -> list[Run]:
        return [run for row in self.rows for run in row.runs]

    @cached_property
    def protocol(self) -> dict[str, Any]:
        """Of most of its rows; empty without a run."""
        texts = [json.dumps(row.runs[0].rules) for row in self.rows if row.runs]
        return dict(json.loads(mode(texts))) if texts else {}

    @property
    def is_comparable_to_paper(self) -> bool:
        """The paper's graph under the paper's protocol: a proxy of the graph is another dataset."""
        asked = {**paper.PROTOCOL, "split": paper.SPLITS.get(self.dataset)}
        return asked["split"] is not None and all(self.protocol.get(name) == asked[name] for name in asked)

    def is_usual(self, row: ReportRow) -> bool:
        return not row.runs or row.runs[0].rules == self.protocol

    def has_all_seeds(self, row: ReportRow) -> bool:
        return {run.result.seed for run in row.runs} == {*self.seeds}

    @cached_property
    def ranked(self) -> list[ReportRow]:
        """Rows of the usual seeds and protocol without upper references, the best AP first; none if that is one row."""
        found = [row for row in self.rows if self.has_all_seeds(row) and self.is_usual(row)]
        found = sorted((row for row in found if not row.is_upper_reference), key=lambda row: -row.mean("AP"))
        return found if len(found) > 1 else []

    @property
    def best(self) -> ReportRow | None:
        return self.ranked[0] if self.ranked else None

    @property
    def reference(self) -> ReportRow | None:
        """The row that others are compared with: the paper's method, or else the best."""
        ours = [row for row in self.rows if row.is_ours and row.runs]
        return min(ours, key=lambda row: (row.key != paper.OURS, row.switch != ""), default=self.best)


def read_run(folder: RunFolder) -> Run:
    if not folder.is_finished:
        raise ConfigError(f"{folder.path.name} is not finished: 'ipal resume {folder.path.name}' goes on with it.")
    return Run(folder, Result.model_validate(folder.result()))


def choose(names: Sequence[str], root: Path) -> tuple[list[Comparison], list[Run], list[str]]:
    """Benches by name, runs by path or (part of a) name, or all finished runs; and remarks on damaged ones."""
    benches, runs, remarks = list[Comparison](), dict[Path, Run](), list[str]()
    for name in names:
        if name and manifest_path(root, name).exists():
            benches.append(read_bench(read_manifest(manifest_path(root, name)), root))
        else:
            run = read_run(RunStore(root).find(name))
            runs.setdefault(run.folder.path.resolve(), run)
    for folder in RunStore(root).all() if not names else ():
        try:
            if folder.is_finished and folder.config():
                runs[folder.path] = read_run(folder)
        except StoreError as error:
            remarks.append(str(error))
    if not runs and not any(bench.runs for bench in benches):
        why = f" ({remarks[0]})" if remarks else ""
        raise ConfigError(
            f"There is no finished run to show under {root}{why}: make one with 'ipal run --dataset digits', or name "
            "the folder of the runs with --runs."
        )
    return benches, list(runs.values()), remarks


def choose_manifests(runs: Path, names: Sequence[str]) -> list[Manifest]:
    """The named manifests, or all; a name that is none gets the nearest one there is."""
    known = [path.stem for path in sorted((runs / "benches").glob("*.json"))]
    if not known:
        raise ConfigError(
            f"There is nothing to report under {runs}: make runs with 'ipal bench experiments/table1-cs.yaml', "
            "or name their folder with --runs."
        )
    for name in names:
        if name not in known:
            raise ConfigError(f"There is no bench '{name}' under {runs}.{did_you_mean(name, known)}")
    chosen = [read_manifest(manifest_path(runs, name)) for name in dict.fromkeys(names or known)]
    return sorted(chosen, key=lambda one: ([*paper.DATASETS, one.dataset].index(one.dataset), one.name))


def read_bench(manifest: Manifest, runs: Path) -> Comparison:
    """All rows with the runs that are there; what is not there becomes a remark."""
    rows, tried, remarks = list[ReportRow](), list[ReportRow](), list[str]()
    for entry in manifest.entries:
        found, damaged = _finished(runs, entry.runs)
        remarks += [f"{entry.label}: {error}" for error in damaged]
        missing = len(entry.runs) - len(found) - len(damaged)
        if missing or not entry.runs:
            remarks.append(f"{entry.label}: {missing or 'all'} of {len(manifest.seeds)} runs are not finished.")
        remarks += [f"{entry.label}: {run} failed: {reason}" for run, reason in entry.failures.items()]
        row = ReportRow(entry.label, entry.method, found, entry.stores_exemplars, entry.settings, entry.grid)
        rows.append(row)
        for point in entry.tried if manifest.kind == "figure6" else ():
            tried.append(replace(row, settings=point.settings, runs=_finished(runs, point.runs)[0]))
    about_data = dict.fromkeys(one for row in rows for run in row.runs if (one := run.result.data.remark))
    title, remarks = paper.dataset_title(manifest.dataset), [*about_data, *remarks]
    return Comparison(
        manifest.name, manifest.dataset, title, rows, manifest.seeds, manifest.kind, manifest.command, remarks, tried
    )


def _finished(runs: Path, names: Sequence[str]) -> tuple[list[Run], list[StoreError]]:
    """Those of the named runs that are finished, and what is wrong with others that are."""
    found, damaged = list[Run](), list[StoreError]()
    for folder in (RunFolder(runs / name) for name in names):
        try:
            if folder.is_finished:
                found.append(read_run(folder))
        except StoreError as error:
            damaged.append(error)
    return found, damaged
