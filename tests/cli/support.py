"""A small run, and what the tests of the command look at in its folder."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ipal.config import run_config
from ipal.runs import runner
from ipal.runs.run_folder import RunStore
from tests.support import Watcher

GRAPH = "synthetic:nodes=240,classes=6,features=16,signal=3"
SMALL = ["--dataset", GRAPH, "--set", "train.epochs=3", "--threads", 1]


def config_of(folder: Path) -> dict[str, Any]:
    tree = yaml.safe_load((folder / "config.yaml").read_text())
    assert isinstance(tree, dict)
    return tree


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """When each file was last written, and how large it is."""
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.iterdir()}


def assert_same_model(one: Path, other: Path) -> None:
    """Byte for byte."""
    a, b = ((folder / "model.safetensors").read_bytes() for folder in (one, other))
    assert a == b


def interrupted_run(runs: Path, dataset: str = GRAPH, after: int = 4, root: Path | None = None) -> Path:
    """A run like SMALL that was stopped in its second task."""
    asked = run_config({"dataset": dataset, "threads": 1, "train": {"epochs": 3}})
    resolved = runner.resolve(asked, root)
    folder = RunStore(runs).folder_for(resolved.config)
    with pytest.raises(KeyboardInterrupt):
        runner.run(resolved, folder, Watcher(after), checkpoint_every=2)
    return folder.path
