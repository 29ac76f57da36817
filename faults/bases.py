"""Small sound files of every kind, and what is in them: what the mutations start from."""

import json
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import yaml
from numpy.typing import NDArray

from faults.children import PATIENCE, command, fork, must_succeed

NODES, CLASSES, FEATURES = 40, 4, 5
EXPERIMENT: dict[str, Any] = {
    "about": "a study",
    "kind": "study",
    "seeds": 2,
    "all": {"dataset": "synthetic:nodes=60,classes=4,features=5", "train.epochs": 1},
    "entries": {
        "ipal": {"ipal.gamma": 0.5, "grid": {"ipal.gamma": [0.3, 0.5]}},
        "other": {"method": "ewc", "ewc.strength": 10},
        "slda": None,
    },
}
CONFIG: dict[str, Any] = {
    "dataset": "synthetic:nodes=60,classes=4,features=5",
    "method": "ipal",
    "seed": 3,
    "split": [2, 2],
    "threads": 1,
    "protocol": {"batch": {"nodes": 20, "fanouts": [3, "all"]}, "class_order": [3, 2, 1, 0], "train_share": 0.5},
    "encoder": {"layers": 2, "hidden": 8, "width": 4, "dropout": 0.1},
    "train": {"epochs": 1, "lr_base": 0.01},
    "ipal": {"gamma": 0.7},
}


@dataclass
class Bases:
    """Where the sound files are."""

    folder: Path
    arrays: dict[str, NDArray[Any]]
    """Of a dense graph."""
    sparse: dict[str, NDArray[Any]]
    named: dict[str, NDArray[Any]]
    """The dense graph with names of classes and nodes."""
    stock: dict[str, NDArray[Any]]
    """Of a file in the format of the gnn-benchmark."""
    graph_folders: list[Path] = field(default_factory=list)
    models: list[Path] = field(default_factory=list)
    interrupted: list[Path] = field(default_factory=list)
    """Run folders with a checkpoint."""
    finished: list[Path] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)


def make_bases(folder: Path) -> Bases:
    """Made in forks: the process that the workers come from computes nothing."""
    folder.mkdir()
    dense, sparse, stock = _graphs()
    np.savez(folder / "dense.npz", **dense)  # type: ignore[arg-type]
    np.savez(folder / "sparse.npz", **sparse)  # type: ignore[arg-type]
    _write_tables(folder / "tables", dense)
    must_succeed(fork(lambda: _make_models(folder), folder).end(PATIENCE), "models")
    for name in ("dense.npz", "sparse.npz", "tables"):
        words = ["data", folder / name, "--convert", f"{Path(name).stem}.graph"]
        must_succeed(command(words, folder, seconds=PATIENCE), " ".join(map(str, words)))
    finished = sorted(path.parent for path in folder.glob("finished/*/config.yaml"))
    bases = Bases(
        folder=folder,
        arrays=dense,
        sparse=sparse,
        named={**dense, "y": np.char.add("class ", dense["y"].astype(str)), "ids": np.arange(NODES).astype(str)},
        stock=stock,
        graph_folders=[folder / f"{name}.graph" for name in ("dense", "sparse", "tables")],
        models=sorted(folder.glob("finished/*/model.safetensors")),
        interrupted=sorted(path.parent for path in folder.glob("interrupted/*/checkpoint.safetensors")),
        finished=finished,
        manifest=_manifest([path.name for path in finished if "-ipal-" in path.name]),
    )
    (folder / "experiment.yaml").write_text(yaml.safe_dump(EXPERIMENT, sort_keys=False))
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    (folder / "manifest.json").write_text(json.dumps(bases.manifest))
    return bases


def _graphs() -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    random = np.random.default_rng(0)
    y = np.repeat(np.arange(CLASSES), NODES // CLASSES)
    x = (random.normal(size=(NODES, FEATURES)) + y[:, None]).astype(np.float32)
    edges = random.integers(0, NODES, (2, 3 * NODES))
    marks = {"train": np.ones(NODES, dtype=bool), "forget": np.arange(NODES) < 3}
    dense: dict[str, NDArray[Any]] = {"edge_index": edges, "y": y, "x": x, **marks}
    matrix = sp.csr_array(np.where(x > 1, x, 0))
    parts = {"values": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": np.array(matrix.shape)}
    sparse = {"edge_index": edges, "y": y, **{f"x_{name}": part for name, part in parts.items()}}
    adjacency = sp.csr_array((np.ones(edges.shape[1], np.float32), (edges[0], edges[1])), shape=(NODES, NODES))
    stock: dict[str, NDArray[Any]] = {"labels": y}
    for name, one in {"adj": adjacency, "attr": matrix}.items():
        stock |= {f"{name}_data": one.data, f"{name}_indices": one.indices, f"{name}_indptr": one.indptr}
        stock[f"{name}_shape"] = np.array(one.shape)
    return dense, sparse, stock


def _write_tables(folder: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """A graph as CSV, and as Parquet where that can be written."""
    folder.mkdir()
    names, kinds = [f"n{number}" for number in range(NODES)], ["red", "green", "blue"]
    lines = ["id,label,colour," + ",".join(f"f{place}" for place in range(FEATURES))]
    for number, (label, row) in enumerate(zip(arrays["y"], arrays["x"], strict=True)):
        label = f"class {label}" if number % 9 else ""
        lines.append(",".join([names[number], label, kinds[number % 3], *map(str, row)]))
    (folder / "nodes.csv").write_text("\n".join(lines) + "\n")
    ends = [f"{names[source]},{names[target]},1.5" for source, target in arrays["edge_index"].T]
    (folder / "edges.csv").write_text("\n".join(["source,target,weight", *ends]) + "\n")
    if find_spec("pyarrow"):
        must_succeed(fork(lambda: _write_parquet(folder), folder).end(PATIENCE), "tables")


def _write_parquet(folder: Path) -> None:
    import csv

    import pyarrow
    from pyarrow import parquet

    for name in ("nodes", "edges"):
        with (folder / f"{name}.csv").open(newline="") as file:
            header, *rows = csv.reader(file)
        columns: dict[str, Any] = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
        for column in columns:
            if column == "weight" or column[0] == "f":
                columns[column] = [float(value) for value in columns[column]]
        if name == "nodes":
            columns["vector"] = [[1.0, 2.0, float(row)] for row in range(len(rows))]
        parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")


def _make_models(folder: Path) -> None:
    """A finished run of every method, and some interrupted ones."""
    from faults.kills_forked import Nobody
    from ipal.config import run_config
    from ipal.estimator.registry import METHODS
    from ipal.runs import runner
    from ipal.runs.run_folder import RunStore

    small = {"train": {"epochs": 2}, "encoder": {"hidden": 4, "width": 4}, "threads": 1}
    graph = str(folder / "dense.npz")
    for name in METHODS:
        own = {"analytic": {"width": 8, "steps": 1, "restart": 0.2}} if name == "analytic" else {}
        resolved = runner.resolve(run_config({"dataset": graph, "method": name, **small, **own}))
        finished = RunStore(folder / "finished").folder_for(resolved.config)
        runner.run(resolved, finished, Nobody(), checkpoint_every=1)
        if name in {"ipal", "ewc", "er-gnn", "slda", "gem"}:
            interrupted = RunStore(folder / "interrupted").folder_for(resolved.config)
            epochs = runner.run_by_epochs(resolved, interrupted, Nobody(), checkpoint_every=1)
            for _ in range(3 if name != "slda" else 1):
                next(epochs, None)
            epochs.close()


def _manifest(runs: list[str]) -> dict[str, Any]:
    entry = {
        "label": "ipal",
        "method": "ipal",
        "stores_exemplars": False,
        "settings": {"ipal.gamma": 0.5},
        "runs": runs,
        "grid": {"ipal.gamma": [0.5]},
        "tried": [{"settings": {"ipal.gamma": 0.5}, "runs": runs}],
        "failures": {},
    }
    return {
        "name": "study",
        "about": "",
        "kind": "study",
        "dataset": "dense",
        "seeds": [0],
        "command": "ipal bench study.yaml",
        "entries": [entry],
    }
