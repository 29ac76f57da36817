"""What all tests share: tiny graphs, a way to run the command, and where the real data lie."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ipal.config import ProtocolConfig
from ipal.datasets import Dataset, load
from ipal.streams import TaskStream, default_split

PROJECT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tests run side by side: each gets one core, and the same numbers every time."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny() -> Dataset:
    """Six classes, 240 nodes, easy to tell apart; splits as 2+2+2."""
    return load("synthetic:nodes=240,classes=6,features=16,signal=3,seed=1")


@pytest.fixture
def tiny_stream(tiny: Dataset) -> TaskStream:
    return TaskStream(tiny.graph, tiny.y, default_split(tiny.num_classes), ProtocolConfig(), seed=0)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The data root with real graphs; without it a test is skipped, and says so."""
    candidates = [Path(os.environ["IPAL_DATA"])] if os.environ.get("IPAL_DATA") else []
    candidates.append(PROJECT.parent / "shared" / "data")
    for root in candidates:
        if (root / "pyg" / "CS" / "raw" / "ms_academic_cs.npz").exists():
            return root
    pytest.skip("real graphs are not here: name their folder with IPAL_DATA")


Ipal = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ipal(tmp_path: Path) -> Ipal:
    """Run the command in an empty folder, as a user would, with an empty data root and no colours."""

    def call(*arguments: object, data: Path | None = None, check: bool = False) -> "subprocess.CompletedProcess[str]":
        environment = {
            **os.environ,
            "IPAL_DATA": str(data or tmp_path / "no-data"),
            "NO_COLOR": "1",
            "COLUMNS": "120",
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [sys.executable, "-m", "ipal", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=300,
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done

    return call


def write_graph(path: Path, **changes: object) -> Path:
    """A small valid graph file in the plain format, with some arrays replaced (None leaves one out)."""
    random = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 10)
    arrays: dict[str, object] = {
        "edge_index": random.integers(0, 40, (2, 120)),
        "y": y,
        "x": random.normal(size=(40, 5)).astype(np.float32) + y[:, None],
    }
    arrays.update(changes)
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path
