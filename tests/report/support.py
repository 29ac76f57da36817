"""Stored runs and manifests as `ipal run` and `ipal bench` leave them, written by hand: no training, no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ipal.config import run_config
from ipal.evaluation.metrics import (
    Scores,
    average_forgetting,
    average_performance,
    average_performance_curve,
    measured,
)
from ipal.report import paper
from ipal.runs.manifest import GridPoint, Manifest, ManifestRow
from ipal.runs.run_folder import RunStore

CS_SPLIT = (5, 2, 2, 2, 2, 2)


def write_run(
    runs: Path,
    dataset: str,
    method: str,
    seed: int,
    matrix: Sequence[Sequence[float]],
    settings: Mapping[str, Any] | None = None,
    seconds: float = 10.0,
    stores: bool = False,
    protocol: Mapping[str, Any] | None = None,
    validation: float | None = None,
) -> str:
    """A finished run with this accuracy matrix (lower triangle); its folder's name."""
    size = len(matrix)
    tree: dict[str, Any] = {"dataset": dataset, "method": method, "seed": seed, "split": CS_SPLIT, "threads": 1}
    tree[method] = {name.partition(".")[2]: value for name, value in (settings or {}).items()}
    config = run_config({**tree, "protocol": dict(protocol or {})})
    full = np.full((size, size), np.nan)
    for index, row in enumerate(matrix):
        full[index, : len(row)] = row
    triangle = [[None if np.isnan(value) else value for value in row] for row in full.tolist()]
    classes = [[f"{task}.{place}" for place in range(number)] for task, number in enumerate(CS_SPLIT)]
    performance = average_performance(Scores(full))
    result = {
        "method": method,
        "title": paper.title(method),
        "dataset": dataset,
        "seed": seed,
        "average_performance": performance,
        "average_forgetting": average_forgetting(Scores(full)),
        "average_performance_curve": average_performance_curve(full),
        "metrics": measured(Scores(full)),
        "before_learning": [None] * size,
        "accuracy_matrix": triangle,
        "per_class": {},
        "validation": {
            "average_performance": performance if validation is None else validation,
            "accuracy_matrix": triangle,
        },
        "protocol": {
            **config.protocol.model_dump(mode="json"),
            "split": list(CS_SPLIT),
            "split_hash": f"split{seed}",
            "classes": classes,
            "exemplar_free": not stores,
        },
        "data": {"hash": "graph", "preprocessing": "", "remark": "", "features_looked_beyond_task": False},
        "timing": {
            "seconds_per_task": [seconds / size] * size,
            "seconds_per_epoch": [seconds / size / 10] * size,
            "evaluation_seconds": 0.0,
            "total_seconds": seconds,
            "runs_taking_turns": 1,
        },
        "peak_memory_bytes": 570_000_000,
        "retained": {
            "items": [],
            "bytes": 10_700_000,
            "stores_exemplars": stores,
            "stores_all_tasks": method == "joint",
            "nodes_behind_class": {},
        },
        "plugins": {},
    }
    folder = RunStore(runs).folder_for(config)
    folder.start(config, {"device_name": None, "processor": "a processor", "threads": 1})
    names = [name for task in classes for name in task]
    folder.write_json("confusion.json", {"classes": names, "after_task": [[]] * size})
    folder.write_json("result.json", result)
    return folder.path.name


def six_tasks(performance: float, forgetting: float = -10.0) -> list[list[float]]:
    """A matrix of CS-CL's six tasks with this AP and this AF: each task falls step by step."""
    start = performance - forgetting * 5 / 6
    rows = []
    for after in range(6):
        fallen = [forgetting * (after - on) / max(5 - on, 1) for on in range(after)]
        rows.append([*(start + fall for fall in fallen), start])
    return rows


def write_entry(
    runs: Path,
    dataset: str,
    method: str,
    scores: Sequence[float],
    label: str = "",
    settings: Mapping[str, Any] | None = None,
    forgetting: float = -10.0,
    stores: bool = False,
    **more: Any,
) -> ManifestRow:
    """A row with one run for each score, seeds from 0."""
    more = {"grid": {}, "tried": (), "failures": (), **more}
    options = {name: more.pop(name) for name in ("seconds", "protocol", "validation") if name in more}
    names = [
        write_run(runs, dataset, method, seed, six_tasks(score, forgetting), settings, stores=stores, **options)
        for seed, score in enumerate(scores)
    ]
    return ManifestRow(
        label=label or method,
        method=method,
        stores_exemplars=stores,
        settings=dict(settings or {}),
        runs=tuple(names),
        **more,
    )


def write_manifest(
    runs: Path, name: str, entries: Sequence[ManifestRow], kind: Any = "table1", dataset: str = "cs", seeds: int = 3
) -> Manifest:
    manifest = Manifest(
        name=name,
        about=f"about {name}",
        kind=kind,
        dataset=dataset,
        seeds=tuple(range(seeds)),
        command=f"ipal bench experiments/{name}.yaml",
        entries=tuple(entries),
    )
    manifest.write(runs)
    return manifest


def write_grid(runs: Path, name: str, dataset: str, scores: Mapping[float, Sequence[float]]) -> Manifest:
    """A bench of kind figure6: validation AP by gamma."""
    points = []
    for gamma, values in scores.items():
        names = [
            write_run(runs, dataset, "ipal", seed, six_tasks(value), {"ipal.gamma": gamma}, validation=value)
            for seed, value in enumerate(values)
        ]
        points.append(GridPoint(settings={"ipal.gamma": gamma}, runs=tuple(names)))
    entry = ManifestRow(
        label="ipal",
        method="ipal",
        stores_exemplars=False,
        settings=points[0].settings,
        runs=points[0].runs,
        grid={"ipal.gamma": tuple(scores)},
        tried=tuple(points),
        failures=(),
    )
    return write_manifest(runs, name, [entry], "figure6", dataset)
