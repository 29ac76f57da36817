"""Stored runs, manifests and pages, written by hand as `ipal run` and `ipal bench` leave them, without torch."""

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from ipal.config import run_config
from ipal.evaluation.metrics import (
    average_forgetting,
    average_performance,
    average_performance_curve,
    measured,
    stored_scores,
)
from ipal.report import paper
from ipal.report.collect import read_run
from ipal.report.page import make_page
from ipal.runs.manifest import GridPoint, Manifest, ManifestRow
from ipal.runs.run_folder import RunFolder, RunStore

CS_SPLIT = (5, 2, 2, 2, 2, 2)


def write_result(
    runs: Path,
    tree: Mapping[str, Any],
    classes: Sequence[Sequence[str]],
    matrix: Sequence[Sequence[float]],
    *,
    confusion: Sequence[Any] | None = None,
    seconds: float = 6.5,
    stores: bool = False,
    **more: Any,
) -> RunFolder:
    """The folder of a finished run with this accuracy matrix (lower triangle)."""
    config, size = run_config(dict(tree)), len(matrix)
    triangle = [[*row, *[None] * (size - len(row))] for row in matrix]
    names = [name for task in classes for name in task]
    after_task = [[]] * size if confusion is None else list(confusion)
    counted = {"classes": names, "after_task": after_task}
    scores = stored_scores({"accuracy_matrix": triangle}, counted)[-1]
    result = {
        "method": config.method,
        "title": paper.title(config.method),
        "dataset": config.dataset,
        "seed": config.seed,
        "average_performance": average_performance(scores),
        "average_forgetting": average_forgetting(scores),
        "average_performance_curve": average_performance_curve(scores.test),
        "metrics": measured(scores),
        "before_learning": [None] * size,
        "accuracy_matrix": triangle,
        "per_class": {},
        "validation": {"average_performance": average_performance(scores), "accuracy_matrix": triangle},
        "protocol": {
            **config.protocol.model_dump(mode="json"),
            "split": list(map(len, classes)),
            "split_hash": f"split{config.seed}",
            "classes": list(map(list, classes)),
            "exemplar_free": not stores,
        },
        "data": {"hash": "graph", "preprocessing": "rows made 0/1", "remark": ""},
        "timing": {
            "seconds_per_task": [seconds / size] * size,
            "seconds_per_epoch": [seconds / size / 10] * size,
            "evaluation_seconds": 0.5,
            "total_seconds": seconds,
            "runs_taking_turns": 1,
        },
        "peak_memory_bytes": 570_000_000,
        "retained": {
            "items": [{"kind": "encoder", "what": "encoder weights", "bytes": 1_500_000}],
            "bytes": 1_500_000,
            "stores_exemplars": stores,
            "stores_all_tasks": config.method == "joint",
            "nodes_behind_class": dict.fromkeys(names, 30),
        },
        **more,
    }
    folder = RunStore(runs).folder_for(config)
    machine = {"device_name": None, "processor": "a processor", "threads": 1, "packages": {"torch": "2.13.0"}}
    folder.start(config, {**machine, "data_root": "/home/somebody/graphs", "command": ["ipal", "run", "--secret"]})
    folder.write_json("confusion.json", counted)
    folder.write_json("result.json", result)
    return folder


def write_run(
    runs: Path,
    dataset: str,
    method: str,
    seed: int,
    matrix: Sequence[Sequence[float]],
    settings: Mapping[str, Any] | None = None,
    protocol: Mapping[str, Any] | None = None,
    validation: float | None = None,
    **more: Any,
) -> str:
    """A finished run on the tasks of CS-CL; its folder's name."""
    own = {name.partition(".")[2]: value for name, value in (settings or {}).items()}
    tree = {"dataset": dataset, "method": method, "seed": seed, "split": CS_SPLIT, "threads": 1, method: own}
    classes = [[f"{task}.{place}" for place in range(number)] for task, number in enumerate(CS_SPLIT)]
    folder = write_result(
        runs, {**tree, "protocol": dict(protocol or {})}, classes, matrix, **{"seconds": 10.0, **more}
    )
    if validation is not None:
        result = folder.result()
        result["validation"]["average_performance"] = validation
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
    more = {"grid": {}, "tried": (), "failures": {}, **more}
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
        failures={},
    )
    return write_manifest(runs, name, [entry], "figure6", dataset)


# ---------------------------------------------------------------------- pages

MATRIX = [[90.0], [80.0, 100.0], [60.0, 90.0, 70.0]]
"""AP 73.33; AF: the first task fell by 30, the second by 10, so −20."""
CONFUSION = [
    [[0, 0, 9], [0, 1, 1], [1, 1, 9], [1, 0, 1]],
    [[0, 0, 8], [0, 2, 2], [1, 1, 8], [1, 2, 2], [2, 2, 10]],
    [[0, 0, 6], [0, 3, 4], [1, 1, 6], [1, 0, 1], [1, 3, 3], [2, 2, 9], [2, 3, 1], [3, 3, 7], [3, 0, 3]],
]
"""Ten test nodes of each of four classes, in tasks of 2 + 1 + 1."""


def write_whole_run(
    runs: Path,
    classes: Sequence[str] = ("a", "b", "c", "d"),
    *,
    method: str = "ipal",
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    protocol: dict[str, Any] | None = None,
    gain: float = 0.0,
    stores: bool = False,
) -> RunFolder:
    """Three tasks of 2 + 1 + 1 classes with these names; `gain` is added to the last row of the matrix."""
    tree = {"dataset": "mine", "method": method, "seed": seed, "split": [2, 1, 1], method: settings or {}}
    folder = write_result(
        runs,
        {**tree, "protocol": protocol or {}},
        [classes[:2], classes[2:3], classes[3:]],
        [*MATRIX[:2], [value + gain for value in MATRIX[2]]],
        confusion=CONFUSION,
        stores=stores,
        model=f"{method}: appnp 8, 2 epochs, gamma 3",
    )
    rows = [
        {"task": t, "epoch": e, "contrast": 1.0 / (e + 1), **({"kept": 0.5} if t else {})}
        for t in range(3)
        for e in range(2)
    ]
    folder.write_history([*rows, {"task": 2, "epoch": 2, "contrast": float("nan"), "kept": float("inf")}])
    return folder


def page_of(folders: Sequence[RunFolder], path: Path) -> Path:
    """The page of these runs."""
    return make_page([], list(map(read_run, folders)), path)


@dataclass
class Parsed(HTMLParser):
    """A page as a browser would take it apart."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    scripts: list[tuple[dict[str, str | None], str]] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: tuple[str, dict[str, str | None]] = ("", {})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = (tag, dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        self._open = ("", {})

    def handle_data(self, data: str) -> None:
        tag, attributes = self._open
        if tag == "script":
            self.scripts.append((attributes, data))
        elif tag == "style":
            self.styles.append(data)
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def charts(self) -> Any:
        """What the page's block of data holds."""
        packed = next(text for attributes, text in self.scripts if attributes.get("id") == "packed")
        return json.loads(gzip.decompress(base64.b64decode(packed)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def parse(path: Path) -> Parsed:
    page = Parsed()
    page.feed(path.read_text())
    page.close()
    return page
