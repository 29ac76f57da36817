"""Stored runs as tables, figures and pages show them: which run belongs to which row, and what is missing."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipal.config import RunConfig
from ipal.errors import ConfigError, StoreError, did_you_mean
from ipal.evaluation.metrics import titled
from ipal.report import paper
from ipal.runs.manifest import Manifest, Settings, all_manifests, manifest_path, read_manifest
from ipal.runs.records import Confusion, Drift
from ipal.runs.run_folder import RunFolder, RunStore

RULES = (
    "stream",
    "train_graph",
    "test_graph",
    "visibility",
    "accuracy",
    "batch",
    "class_order",
    "edges",
    "small_classes",
    "parts",
    "train_share",
    "validation_share",
    "split",
)
"""Fields of the protocol that must agree where numbers are compared; datasets have a split each."""


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run. Its result is read at once, its other files when something of them is shown."""

    folder: RunFolder
    result: Mapping[str, Any]
    label: str = ""
    """Its row's, in a bench."""
    closer: Mapping[str, Any] = field(default_factory=dict)
    """What `ipal.analysis.run_view.look_closely` found; empty if it was not called."""

    @property
    def name(self) -> str:
        return self.folder.path.name

    @property
    def seed(self) -> int:
        return int(self.result["seed"])

    @property
    def dataset(self) -> str:
        return paper.dataset_title(self.result["dataset"])

    @property
    def protocol(self) -> dict[str, Any]:
        return dict(self.result["protocol"])

    @property
    def rules(self) -> dict[str, Any]:
        """The part of the protocol that must agree where numbers are compared."""
        return {field: self.protocol.get(field) for field in RULES}

    @property
    def split(self) -> list[int]:
        return list(self.protocol["split"])

    @cached_property
    def scores(self) -> dict[str, float]:
        """Metrics by title, as AP; those that are not defined are left out."""
        return titled(self.result["metrics"])

    @property
    def curve(self) -> NDArray[np.float64]:
        """AP after each task."""
        return np.array(self.result["average_performance_curve"], dtype=np.float64)

    @property
    def matrix(self) -> NDArray[np.float64]:
        """The accuracy matrix, NaN above the diagonal."""
        return np.array(self.result["accuracy_matrix"], dtype=np.float64)

    @property
    def costs(self) -> dict[str, float]:
        """Seconds, bytes, and how many runs took turns in one process: the peak memory is theirs together."""
        timing = self.result["timing"]
        return {
            "seconds": timing["total_seconds"],
            "seconds_per_epoch": fmean(timing["seconds_per_epoch"]),
            "peak_bytes": self.result["peak_memory_bytes"],
            "retained_bytes": self.result["retained"]["bytes"],
            "taking_turns": timing["runs_taking_turns"],
        }

    @property
    def nodes(self) -> str:
        """Hashes of the graph and its split: same text, same nodes in every part."""
        return f"{self.result['data']['hash']} {self.protocol.get('split_hash', '')}"

    @property
    def data_remark(self) -> str:
        """The remark that every result on this graph carries, as a sentence."""
        remark = str(self.result["data"]["remark"] or "")
        return f"{remark.removesuffix('.')}." if remark else ""

    @property
    def stores_exemplars(self) -> bool:
        return bool(self.result["retained"]["stores_exemplars"])

    @property
    def is_exemplar_free(self) -> bool:
        """By the method, and by the protocol: no node of an earlier task is kept or seen again."""
        return bool(self.protocol["exemplar_free"])

    @cached_property
    def classes(self) -> list[list[str]]:
        """Names of the classes that are new in each task: a class may come again."""
        known, new = set[str](), list[list[str]]()
        for task in self.protocol["classes"]:
            new.append([name for name in map(str, task) if name not in known])
            known.update(new[-1])
        return new

    @property
    def task_of_class(self) -> list[int]:
        """The task of every class, in the order learned: the first that had it."""
        return [task for task, names in enumerate(self.classes) for _ in names]

    # ------------------------------------------------------------------ other files

    @cached_property
    def config(self) -> RunConfig:
        return self.folder.config()

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions and machine, without paths of the user: a page may be shared."""
        known = self.folder.environment()
        return {name: value for name, value in known.items() if name not in {"data_root", "command"}}

    @property
    def machine(self) -> str:
        """What its times were measured on; scores do not need it, so it may be missing."""
        try:
            known = self.environment
            return f"{known['device_name'] or known['processor']}, threads: {known['threads']}"
        except (StoreError, KeyError):
            return "unknown machine"

    @cached_property
    def history(self) -> list[dict[str, float | None]]:
        """Task, epoch and every loss term; None where a term was not there or not a number."""
        rows = self.folder.history()
        if not all(math.isfinite(row.get(name, math.nan)) for row in rows for name in ("task", "epoch")):
            raise self._damaged("history.csv")
        names = dict.fromkeys(name for row in rows for name in row)
        return [{name: row[name] if math.isfinite(row.get(name, math.nan)) else None for name in names} for row in rows]

    @cached_property
    def confusion(self) -> Confusion:
        found = Confusion.model_validate(self.folder.confusion())
        if not found.fits(list(map(len, self.classes)), overlapping=bool(self.protocol.get("batches"))):
            raise self._damaged("confusion.json")
        return found

    @cached_property
    def drift(self) -> Drift | None:
        """None of methods that train no network."""
        moved = self.folder.drift()
        return Drift.model_validate(moved) if moved else None

    def as_plain(self) -> dict[str, Any]:
        """All of it as plain data: everything that a page can show has been read."""
        return {
            "run": self.name,
            "config": self.config.to_tree(),
            "environment": self.environment,
            "result": dict(self.result),
            "history": self.history,
            "confusion": self.confusion.model_dump(),
            "drift": self.drift.model_dump() if self.drift else None,
            **({"closer": dict(self.closer)} if self.closer else {}),
        }

    def _damaged(self, name: str) -> StoreError:
        path = self.folder.path / name
        return StoreError(f"{path} is damaged: restore the file, or delete the run's folder and run again.")


@dataclass(frozen=True, eq=False)
class ReportRow:
    """Runs of one method that differ in the seed alone."""

    label: str
    method: str
    runs: Sequence[Run]
    stores_exemplars: bool
    settings: Settings = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    is_complete: bool = True
    """Whether it has every seed."""

    @property
    def key(self) -> str:
        """The method's name without signs if the row is the plain method, else the row's label."""
        plain = paper.plain_name(self.label)
        return plain if plain == paper.plain_name(self.method) or plain in paper.METHODS else self.label

    @property
    def title(self) -> str:
        """Of the method where the label is its name, else the label; a dagger where raw nodes are stored."""
        is_plain = self.runs and paper.plain_name(self.label) == paper.plain_name(self.method)
        title = self.runs[0].result["title"] if is_plain else paper.title(self.label)
        return f"{title} †" if self.stores_exemplars else title

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)

    @property
    def is_upper_reference(self) -> bool:
        """Whether its method keeps all tasks: it bounds the others from above, so it is not ranked."""
        return any(run.result["retained"]["stores_all_tasks"] for run in self.runs)

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
        return {run.seed: run.scores[score] for run in self.runs if score in run.scores}

    def mean(self, score: str) -> float:
        return fmean(self.by_seed(score).values())

    def costs(self, name: str) -> list[float]:
        return [run.costs[name] for run in self.runs]


@dataclass(frozen=True, eq=False)
class StoredBench:
    """A manifest with its rows read."""

    manifest: Manifest
    rows: Sequence[ReportRow]
    remarks: Sequence[str]

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def title(self) -> str:
        return paper.dataset_title(self.manifest.dataset)

    @property
    def scores(self) -> list[str]:
        """Titles of the metrics that its runs have."""
        return list(dict.fromkeys(score for row in self.rows for run in row.runs for score in run.scores))

    @cached_property
    def protocol(self) -> dict[str, Any]:
        """Of most of its rows."""
        return usual(row.runs[0].rules for row in self.rows if row.runs)

    @property
    def is_comparable_to_paper(self) -> bool:
        """The paper's graph under the paper's protocol: a proxy of the graph is another dataset."""
        asked = {**paper.PROTOCOL, "split": paper.SPLITS.get(self.manifest.dataset)}
        return asked["split"] is not None and all(self.protocol.get(field) == asked[field] for field in asked)

    def is_usual(self, row: ReportRow) -> bool:
        return not row.runs or row.runs[0].rules == self.protocol

    @property
    def ranked(self) -> list[ReportRow]:
        """Without upper references, and rows with seeds missing or of another protocol: they do not mean the same."""
        found = [row for row in self.rows if row.is_complete and not row.is_upper_reference]
        return [row for row in found if self.is_usual(row)]

    def find(self, switch: str) -> ReportRow | None:
        """The row of the paper's method with this switch and runs to show."""
        return next((row for row in self.rows if row.is_ours and row.runs and row.switch == switch), None)

    @property
    def references(self) -> dict[str, ReportRow]:
        """Rows that others are compared with: the paper's method, and the best without exemplars if it is another."""
        rows = [row for row in self.rows if row.is_ours]
        ours = min(rows, key=lambda row: (row.key != paper.OURS, row.switch != ""), default=None)
        found = {paper.title(paper.OURS): ours, "the best without exemplars": None if self.best is ours else self.best}
        return {name: row for name, row in found.items() if row}

    @cached_property
    def best(self) -> ReportRow | None:
        """The row with the highest AP of those that keep no nodes, under the usual protocol."""
        able = [row for row in self.rows if row.by_seed("AP") and self.is_usual(row)]
        able = [row for row in able if not row.stores_exemplars and not row.is_upper_reference]
        return max(able, key=lambda row: row.mean("AP"), default=None)

    @property
    def comparisons(self) -> int:
        """How many rows are compared with another at once."""
        return max(1, sum(bool(row.runs) for row in self.rows) - 1)


def usual(protocols: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The most frequent one; the first of those that are equally frequent."""
    texts = Counter(json.dumps(protocol) for protocol in protocols)
    return dict(json.loads(texts.most_common(1)[0][0])) if texts else {}


# ---------------------------------------------------------------------- reading


def read_run(folder: RunFolder, label: str = "") -> Run:
    """The result of a finished run."""
    return Run(folder, folder.result(), label)


def read_whole_run(folder: RunFolder, label: str = "", closer: Mapping[str, Any] | None = None) -> Run:
    """A finished run with all its files, checked."""
    folder.config()
    if not folder.is_finished:
        raise ConfigError(f"{folder.path.name} is not finished: 'ipal resume {folder.path.name}' goes on with it.")
    run = Run(folder, folder.result(), label, closer or {})
    run.as_plain()
    return run


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
    chosen = [read_manifest(manifest_path(runs, name)) for name in dict.fromkeys(names)] or all_manifests(runs)
    order = list(paper.DATASETS)
    return sorted(chosen, key=lambda one: (order.index(one.dataset) if one.dataset in order else len(order), one.name))


def read_bench(manifest: Manifest, runs: Path) -> StoredBench:
    """All rows with the runs that are there; what is not there becomes a remark."""
    store = RunStore(runs)
    rows, remarks = [], []
    for entry in manifest.entries:
        found, missing = list[Run](), 0
        for name in entry.runs:
            folder = RunFolder(store.root / name)
            if not folder.is_finished:
                missing += 1
                continue
            try:
                found.append(read_run(folder, entry.label))
            except StoreError as error:
                remarks.append(f"{entry.label}: {error}")
        if missing or not entry.runs:
            remarks.append(f"{entry.label}: {missing or 'all'} of {len(manifest.seeds)} runs are not finished.")
        remarks += [f"{entry.label}: {failure.run} failed: {failure.reason}" for failure in entry.failures]
        is_complete = {run.seed for run in found} >= set(manifest.seeds)
        fixed = (entry.stores_exemplars, entry.settings, entry.grid)
        rows.append(ReportRow(entry.label, entry.method, found, *fixed, is_complete))
    about_data = {run.data_remark: None for row in rows for run in row.runs if run.data_remark}
    return StoredBench(manifest, rows, [*about_data, *remarks, *_unequal_nodes(rows)])


def read_search(manifest: Manifest, runs: Path) -> list[tuple[str, Settings, list[float]]]:
    """Every point that was tried to choose a row's settings: its label, settings and validation scores by seed."""
    return [
        (entry.label, point.settings, _validation_scores(runs, point.runs))
        for entry in manifest.entries
        for point in entry.tried
    ]


def _validation_scores(runs: Path, names: Sequence[str]) -> list[float]:
    scores = []
    for folder in (RunFolder(runs / name) for name in names):
        try:
            scores.append(float(folder.result()["validation"]["average_performance"]))
        except StoreError:
            continue  # a point with the seeds that can be read
    return scores


def _unequal_nodes(rows: Sequence[ReportRow]) -> list[str]:
    nodes: dict[int, set[str]] = {}
    for run in (run for row in rows for run in row.runs):
        nodes.setdefault(run.seed, set()).add(run.nodes)
    seeds = ", ".join(str(seed) for seed in sorted(nodes) if len(nodes[seed]) > 1)
    return [f"Rows differ in graph or split of nodes at seed {seeds}: no fair comparison."] if seeds else []
