"""What the tests of bad input share: small inputs that are sound, and ways to damage or refuse them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from ipal.config import run_config
from ipal.data.graph import Graph
from ipal.errors import DataError
from ipal.estimator.convert.pyg import graph_of
from ipal.runs import runner
from ipal.runs.run_folder import RunFolder, RunStore
from tests.support import Command, Watcher, complaint

# Hard enough that accuracies are no round hundreds: equal matrices then mean equal runs.
GRAPH = "synthetic:nodes=240,classes=6,features=16,signal=0.3,homophily=0.2"
SMALL = ["--dataset", GRAPH, "--set", "train.epochs=2", "--threads", 1]
LEARN = ["--set", "train.epochs=1", "--threads", 1]

RANDOM = np.random.default_rng(0)
E = RANDOM.integers(0, 40, (2, 120))
X = RANDOM.normal(size=(40, 5))
Y = np.repeat(np.arange(4), 10)
N = len(X)


def one(values: np.ndarray[Any, Any], place: Any, value: object) -> np.ndarray[Any, Any]:
    changed = values.copy()
    changed[place] = value
    return changed


def refused(command: Command, path: Path, *words: str) -> str:
    """`path` as a graph is refused, by `run` and by `data`, and no run is left behind."""
    before = sorted(path.parent.iterdir())
    sentence = complaint(command("run", "--dataset", path, *LEARN), *words)
    complaint(command("data", path), *words)
    assert sorted(path.parent.iterdir()) == before
    return sentence


def some_data(**changes: Any) -> Data:
    parts = {"x": X.astype(np.float32), "edge_index": E, "y": Y}
    data = Data(**{name: torch.from_numpy(value) for name, value in parts.items()})
    for name, value in changes.items():
        setattr(data, name, torch.as_tensor(value) if isinstance(value, np.ndarray) else value)
    return data


def expected() -> np.ndarray:
    return graph_of(some_data()).edges


def converted(part: str, value: Any, line: str, convert: Callable[[Any], Any] | None) -> Graph | None:
    """The graph of some data whose part was refused with this line and then converted; None where nothing converts."""
    data = some_data()
    data[part] = value
    with pytest.raises(DataError) as refusal:
        graph_of(data)
    assert line in str(refusal.value)
    if convert is None:
        return None
    data[part] = convert(value)
    return graph_of(data)


def wanted() -> runner.Resolved:
    return runner.resolve(
        run_config({"dataset": GRAPH, "threads": 1, "train": {"epochs": 4, "lr_base": 0.01, "lr_next": 0.01}})
    )


def learn(runs: Path, stop_after: int | None = None) -> RunFolder:
    resolved = wanted()
    folder = RunStore(runs).folder_for(resolved.config)
    try:
        runner.run(resolved, folder, Watcher(stop_after), checkpoint_every=2)
    except KeyboardInterrupt:
        assert stop_after is not None
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in {".lock", "log.txt"}}
