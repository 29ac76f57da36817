"""Stored runs as a report needs them: which run belongs to which row, and what is missing or cannot be read."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipal.errors import ConfigError, StoreError, did_you_mean
from ipal.evaluation.metrics import titled
from ipal.report import paper
from ipal.runs.manifest import Manifest, ManifestRow, Settings, all_manifests, manifest_path, read_manifest
from ipal.runs.run_folder import RunFolder, RunStore

PROTOCOL_FIELDS = (
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
)


@dataclass(frozen=True)
class Run:
    """What a report uses of one result."""

    result: Mapping[str, Any]
    seed: int
    method: str
    title: str
    """Of the method."""
    scores: dict[str, float]
    """Metrics by title, as AP; those that are not defined are left out."""
    curve: NDArray[np.float64]
    matrix: NDArray[np.float64]
    """NaN above the diagonal."""
    protocol: dict[str, Any]
    nodes: str
    """Hashes of the graph and its split: same text, same nodes in every part."""
    seconds: float
    seconds_per_epoch: float
    peak_bytes: float
    taking_turns: float
    """Runs that took turns in one process: the peak memory is theirs together."""
    retained_bytes: float
    machine: str
    data_remark: str
    """The remark that every result on this graph carries."""
    is_upper_reference: bool
    """Whether its method keeps all tasks: it bounds the others from above, so it is not ranked."""

    @property
    def rules(self) -> dict[str, Any]:
        """The part of the protocol that must agree where numbers are compared."""
        return {field: self.protocol.get(field) for field in (*PROTOCOL_FIELDS, "split")}

    def titled(self, label: str) -> str:
        """The title of a row with this label: that of the method where it is the method's name."""
        return self.title if paper.plain_name(label) == paper.plain_name(self.method) else paper.title(label)


@dataclass(frozen=True)
class ReportRow:
    """One entry of a manifest with those of its runs that could be read."""

    entry: ManifestRow
    runs: tuple[Run, ...]
    is_complete: bool

    @property
    def key(self) -> str:
        """The method's name without signs if the row is the plain method, else the row's label."""
        plain = paper.plain_name(self.entry.label)
        return plain if plain == paper.plain_name(self.entry.method) or plain in paper.METHODS else self.entry.label

    @property
    def title(self) -> str:
        return self.runs[0].titled(self.entry.label) if self.runs else paper.title(self.entry.label)

    @property
    def marked_title(self) -> str:
        return f"{self.title} †" if self.entry.stores_exemplars else self.title

    @property
    def is_upper_reference(self) -> bool:
        return any(run.is_upper_reference for run in self.runs)

    @property
    def is_ours(self) -> bool:
        """Whether its method is the paper's own, whole or a part of it."""
        return paper.plain_name(self.entry.method) == paper.OURS

    @property
    def switch(self) -> str:
        """Settings fixed by the experiment file, as text: what makes a row of Table 2. Empty for the whole method."""
        fixed = {name: value for name, value in self.entry.settings.items() if name not in self.entry.grid}
        return ",".join(f"{name}={value}" for name, value in sorted(fixed.items()))

    def by_seed(self, score: str) -> dict[int, float]:
        return {run.seed: run.scores[score] for run in self.runs if score in run.scores}

    def over_runs(self, field: str) -> list[float]:
        return [getattr(run, field) for run in self.runs]


@dataclass(frozen=True)
class StoredBench:
    """A manifest with its rows read."""

    manifest: Manifest
    rows: tuple[ReportRow, ...]
    remarks: tuple[str, ...]

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

    @property
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

    def find(self, switch: str) -> ReportRow | None:
        """The row of the paper's method with this switch and runs to show."""
        return next((row for row in self.rows if row.is_ours and row.runs and row.switch == switch), None)

    @property
    def reference(self) -> ReportRow | None:
        """The row of the paper's method that the others are compared with: that of its name, or the whole one."""
        rows = [row for row in self.rows if row.is_ours]
        return min(rows, key=lambda row: (row.key != paper.OURS, row.switch != ""), default=None)

    @property
    def best(self) -> ReportRow | None:
        """The row with the highest AP of those that keep no nodes, under the usual protocol."""
        able = [row for row in self.rows if row.by_seed("AP") and self.is_usual(row)]
        able = [row for row in able if not row.entry.stores_exemplars and not row.is_upper_reference]
        return max(able, key=lambda row: fmean(row.by_seed("AP").values()), default=None)

    @property
    def comparisons(self) -> int:
        """How many rows are compared with another at once."""
        return max(1, sum(bool(row.runs) for row in self.rows) - 1)


@dataclass(frozen=True)
class Grid:
    """Validation AP at each value of gamma, all other settings the same."""

    label: str
    points: tuple[tuple[float, tuple[float, ...]], ...]
    """gamma, and the validation AP of every seed."""


def usual(protocols: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The most frequent one; the first of those that are equally frequent."""
    texts = Counter(json.dumps(protocol) for protocol in protocols)
    return dict(json.loads(texts.most_common(1)[0][0])) if texts else {}


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
        found, missing = [], 0
        for name in entry.runs:
            folder = RunFolder(store.root / name)
            if not folder.is_finished:
                missing += 1
                continue
            try:
                found.append(read_run(folder))
            except StoreError as error:
                remarks.append(f"{entry.label}: {error}")
        if missing or not entry.runs:
            remarks.append(f"{entry.label}: {missing or 'all'} of {len(manifest.seeds)} runs are not finished.")
        remarks += [f"{entry.label}: {failure.run} failed: {failure.reason}" for failure in entry.failures]
        rows.append(ReportRow(entry, tuple(found), is_complete={run.seed for run in found} >= set(manifest.seeds)))
    about_data = {run.data_remark: None for row in rows for run in row.runs if run.data_remark}
    return StoredBench(manifest, tuple(rows), (*about_data, *remarks, *_unequal_nodes(rows)))


def read_grids(manifest: Manifest, runs: Path) -> list[Grid]:
    """Validation scores of all points of the grid, one line for each combination of the settings beside gamma."""
    lines: dict[str, dict[float, tuple[float, ...]]] = {}
    for row, settings, scores in read_search(manifest, runs):
        gamma = settings.get(paper.GAMMA)
        if isinstance(gamma, int | float) and scores:
            others = [f"{name}={value}" for name, value in sorted(settings.items()) if name != paper.GAMMA]
            lines.setdefault(", ".join([row, *others]), {})[float(gamma)] = scores
    return [Grid(label, tuple(sorted(points.items()))) for label, points in lines.items()]


def read_search(manifest: Manifest, runs: Path) -> list[tuple[str, Settings, tuple[float, ...]]]:
    """Every point that was tried to choose a row's settings: its label, settings and validation scores by seed."""
    return [
        (entry.label, point.settings, tuple(_validation_scores(runs, point.runs)))
        for entry in manifest.entries
        for point in entry.tried
    ]


def _validation_scores(runs: Path, names: Sequence[str]) -> list[float]:
    scores = []
    for folder in (RunFolder(runs / name) for name in names):
        try:
            scores.append(float(folder.result()["validation"]["average_performance"]))
        except StoreError:
            continue  # a point with the seeds that can be read; the figure shows how many
    return scores


def read_run(folder: RunFolder) -> Run:
    """What a report uses of a finished run."""
    result = folder.result()
    protocol, timing = result["protocol"], result["timing"]
    return Run(
        result=result,
        seed=int(result["seed"]),
        method=result["method"],
        title=result["title"],
        scores=titled(result["metrics"]),
        curve=np.array(result["average_performance_curve"], dtype=np.float64),
        matrix=np.array(result["accuracy_matrix"], dtype=np.float64),
        protocol=protocol,
        nodes=f"{result['data']['hash']} {protocol.get('split_hash', '')}",
        seconds=float(timing["total_seconds"]),
        seconds_per_epoch=float(np.mean(timing["seconds_per_epoch"])),
        peak_bytes=float(result["peak_memory_bytes"]),
        taking_turns=float(timing["runs_taking_turns"]),
        retained_bytes=float(result["retained"]["bytes"]),
        machine=_machine(folder),
        data_remark=str(result["data"]["remark"] or ""),
        is_upper_reference=bool(result["retained"]["stores_all_tasks"]),
    )


def _machine(folder: RunFolder) -> str:
    """What the run's times were measured on; scores do not need it, so it may be missing."""
    try:
        known = folder.environment()
        return f"{known['device_name'] or known['processor']}, threads: {known['threads']}"
    except (StoreError, KeyError):
        return "unknown machine"


def _unequal_nodes(rows: Sequence[ReportRow]) -> list[str]:
    nodes: dict[int, set[str]] = {}
    for run in (run for row in rows for run in row.runs):
        nodes.setdefault(run.seed, set()).add(run.nodes)
    seeds = ", ".join(str(seed) for seed in sorted(nodes) if len(nodes[seed]) > 1)
    return [f"Rows differ in graph or split of nodes at seed {seeds}: no fair comparison."] if seeds else []
