"""A finished run with all its files, written by hand: no training, no torch; and what a page of it holds."""

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from ipal.config import run_config
from ipal.evaluation.metrics import measured, stored_scores
from ipal.report import paper
from ipal.report.collect import read_whole_run
from ipal.report.page import make_page
from ipal.runs.run_folder import RunFolder, RunStore

MATRIX = [[90.0, None, None], [80.0, 100.0, None], [60.0, 90.0, 70.0]]
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
    **options: Any,
) -> RunFolder:
    """Three tasks of 2 + 1 + 1 classes with these names; `gain` is added to the last row of the matrix."""
    tree = {"dataset": "mine", "method": method, "seed": seed, "split": [2, 1, 1], method: settings or {}, **options}
    config = run_config({**tree, "protocol": protocol or {}})
    matrix: list[list[Any]] = [*MATRIX[:2], [value + gain for value in MATRIX[2] if value is not None]]
    after = stored_scores({"accuracy_matrix": matrix, "validation": {}}, {"classes": classes, "after_task": CONFUSION})
    result = {
        "method": method,
        "title": paper.title(method),
        "model": f"{method}: appnp 8, 2 epochs, gamma 3",
        "dataset": "mine",
        "seed": seed,
        "average_performance": sum(matrix[2]) / 3,
        "average_forgetting": -20.0 + gain,
        "average_performance_curve": [90.0, 90.0, sum(matrix[2]) / 3],
        "accuracy_matrix": matrix,
        "metrics": measured(after[-1]),
        "before_learning": [None] * 3,
        "per_class": dict(zip(classes, (60.0, 60.0, 90.0, 70.0), strict=True)),
        "validation": {"average_performance": 70.0, "accuracy_matrix": matrix},
        "protocol": {
            **config.protocol.model_dump(mode="json"),
            "split": [2, 1, 1],
            "split_hash": f"split{seed}",
            "classes": [list(classes[:2]), [classes[2]], [classes[3]]],
            "dropped_classes": [],
            "exemplar_free": not stores,
        },
        "data": {"hash": "graph", "preprocessing": "rows made 0/1", "remark": "", "features_looked_beyond_task": False},
        "timing": {
            "seconds_per_task": [1.0, 2.0, 3.0],
            "seconds_per_epoch": [0.1, 0.2, 0.3],
            "evaluation_seconds": 0.5,
            "total_seconds": 6.5,
            "runs_taking_turns": 1,
        },
        "peak_memory_bytes": 400_000_000,
        "retained": {
            "items": [{"kind": "encoder", "what": "encoder weights", "bytes": 1_500_000}],
            "bytes": 1_500_000,
            "stores_exemplars": stores,
            "stores_all_tasks": method == "joint",
            "nodes_behind_class": dict.fromkeys(classes, 30),
        },
        "plugins": {},
    }
    folder = RunStore(runs).folder_for(config)
    machine = {"device_name": None, "processor": "a processor", "threads": 1, "packages": {"torch": "2.13.0"}}
    folder.start(config, {**machine, "data_root": "/home/somebody/graphs", "command": ["ipal", "run", "--secret"]})
    folder.write_json("result.json", result)
    folder.write_json("confusion.json", {"classes": list(classes), "after_task": CONFUSION})
    still, moved = {"shift": 0.0, "gap": 0.1}, {"shift": 0.75, "gap": 0.25}
    first, third, last = list(classes[:2]), classes[2], classes[3]
    moments = [
        dict.fromkeys(first, still),
        {**dict.fromkeys(first, moved), third: still},
        {**dict.fromkeys([*first, third], moved), last: still},
    ]
    folder.write_json("drift.json", {"unit": "spread", "after_task": moments})
    rows = [
        {"task": t, "epoch": e, "contrast": 1.0 / (e + 1), **({"kept": 0.5} if t else {})}
        for t in range(3)
        for e in range(2)
    ]
    folder.write_history([*rows, {"task": 2, "epoch": 2, "contrast": float("nan"), "kept": float("inf")}])
    return folder


def closer_look(classes: Sequence[str] = ("a", "b", "c", "d")) -> dict[str, Any]:
    """What `ipal.analysis.run_view.look_closely` could have found."""
    return {
        "audit": {
            "nodes_behind_class": {**dict.fromkeys(classes[:3], 30), classes[3]: 4},
            "flagged": {classes[3]: {"few-nodes": "few nodes (4): their mean says much about each of them"}},
            "retained": {"items": [], "bytes": 1_500_000, "stores_exemplars": False},
            "remarks": ["What trained weights give away is not measured."],
        },
        "plane": {
            "points": {
                "x": [0.0, 1.0, 2.0, 3.0],
                "y": [0.0, 1.0, 0.0, 1.0],
                "class": list(classes),
                "predicted": [classes[0], classes[0], classes[2], classes[3]],
                "hard": [False, True, False, False],
            },
            "prototypes": {"x": [0.5, 1.5], "y": [0.5, 1.5], "class": [classes[0], classes[3]]},
            "prototypes_are": "stored prototypes",
            "about": "Four nodes of this graph.",
        },
        "defaults": {},
        "remarks": ["Something could not be shown."],
    }


def page_of(folders: Sequence[RunFolder], path: Path, closer: dict[str, Any] | None = None) -> Path:
    """The page of these runs."""
    return make_page([read_whole_run(folder, closer=closer) for folder in folders], path)


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

    def data(self, name: str) -> Any:
        """What the page's block of data holds: charts or facts."""
        packed = next(text for attributes, text in self.scripts if attributes.get("id") == "packed")
        return json.loads(gzip.decompress(base64.b64decode(packed)))[name]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def parse(path: Path) -> Parsed:
    page = Parsed()
    page.feed(path.read_text())
    page.close()
    return page
