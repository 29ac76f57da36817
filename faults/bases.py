"""Small sound files of every kind, and what is in them: what the mutations start from."""

import json
from dataclasses import dataclass, field
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
    "encoder": {"hidden": 8, "width": 4, "dropout": 0.1},
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
    must_succeed(fork(lambda: _make_models(folder), folder).end(PATIENCE), "models")
    for name in ("dense", "sparse"):
        words = ["data", "--convert", folder / f"{name}.npz", "-o", f"{name}.graph"]
        must_succeed(command(words, folder, seconds=PATIENCE), " ".join(map(str, words)))
    finished = sorted(path.parent for path in folder.glob("finished/*/config.yaml"))
    bases = Bases(
        folder=folder,
        arrays=dense,
        sparse=sparse,
        stock=stock,
        graph_folders=[folder / "dense.graph", folder / "sparse.graph"],
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


def _make_models(folder: Path) -> None:
    """A finished run of every method, and some interrupted ones."""
    from faults.kills_forked import Nobody
    from ipal.config import run_config
    from ipal.learners import METHODS
    from ipal.runs import runner
    from ipal.runs.run_folder import RunStore

    small = {"train": {"epochs": 2}, "encoder": {"hidden": 4, "width": 4}, "threads": 1}
    graph = str(folder / "dense.npz")
    for name in METHODS:
        own = {"analytic": {"expansion": 8, "hops": [1], "sums": "per-class"}} if name == "analytic" else {}
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
        "failures": [],
    }
    return {
        "format": 1,
        "name": "study",
        "about": "",
        "kind": "study",
        "dataset": "dense",
        "seeds": [0],
        "command": "ipal bench study.yaml",
        "entries": [entry],
    }
