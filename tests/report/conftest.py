"""A small report: four methods on CS-CL, its ablations, a proxy and a grid."""

import shutil
from pathlib import Path

import pytest

from tests.report.support import write_entry, write_grid, write_manifest


@pytest.fixture(scope="session")
def written_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds; AP means: Joint 95, EWC 50, ER-GNN 81, IPAL 80, and one method of our own."""
    folder = tmp_path_factory.mktemp("written") / "runs"
    grid = {"ewc.strength": (1, 10, 100)}
    table1 = [
        write_entry(folder, "cs", "ipal", [79.0, 80.0, 81.0], forgetting=-5.0),
        write_entry(folder, "cs", "er-gnn", [80.0, 81.0, 82.0], forgetting=-8.0, stores=True, seconds=20.0),
        write_entry(folder, "cs", "joint", [94.0, 95.0, 96.0], forgetting=0.0, stores=True),
        write_entry(folder, "cs", "ewc", [48.0, 50.0, 52.0], settings={"ewc.strength": 100.0}, grid=grid),
        write_entry(folder, "cs", "own_one", [60.0, 61.0, 62.0], label="own_one & 50 %"),
    ]
    write_manifest(folder, "table1-cs", table1)
    proxy = [write_entry(folder, "corafull-proxy", "ipal", [30.0, 31.0, 32.0])]
    write_manifest(folder, "table1-proxy", proxy, dataset="corafull-proxy")
    parts = {"all parts": {}, "means": {"ipal.node_weights": "uniform"}, "fd": {"ipal.distillation": "fd"}}
    # The first one is the same run as in Table 1: equal settings, one folder.
    table2 = [
        write_entry(folder, "cs", "ipal", [79.0 - place, 80.0, 81.0], label, settings, forgetting=-5.0)
        for place, (label, settings) in enumerate(parts.items())
    ]
    write_manifest(folder, "table2-cs", table2, "table2")
    write_grid(folder, "figure6-cs", "cs", {0.1: [70.0, 72.0], 0.5: [80.0, 82.0], 1.0: [75.0, 75.0]})
    return folder


@pytest.fixture
def runs(written_once: Path, tmp_path: Path) -> Path:
    """A copy of these runs, to be changed at will."""
    return Path(shutil.copytree(written_once, tmp_path / "runs"))
