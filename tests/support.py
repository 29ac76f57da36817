"""Plain helpers that more than one folder of tests imports; fixtures are in conftest.py."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

if TYPE_CHECKING:  # for their names alone
    import pytest

    from ipal.evaluation.rows import Row

# ---------------------------------------------------------------------- the command

Ipal = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What stdout holds, which must be JSON and nothing else."""
        assert self.code == 0, self.err
        return json.loads(self.out)


Command = Callable[..., Outcome]


def complaint(done: Outcome, *words: str, underway: bool = False) -> str:
    """The one sentence of a refused command. Where a run was under way, its progress may stand before it."""
    assert done.code == 2, done
    assert done.out == ""
    assert "Traceback" not in done.err
    lines = done.err.strip().splitlines()
    assert underway or len(lines) == 1, f"more than one line: {done.err}"
    assert lines[-1].startswith("Error: "), done.err
    for word in words:
        assert word in lines[-1]
    return lines[-1]


class Watcher:
    """Watches a run, and interrupts it after some epochs."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.left = stop_after

    def started(self, tasks: int, epochs: int, done: int) -> None: ...
    def learned(self, *_: object) -> None: ...

    def epoch(self, task: int, terms: dict[str, float]) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt

    def task(self, index: int, row: "Row") -> None: ...


# ---------------------------------------------------------------------- graph files


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


def sparse_parts(prefix: str, matrix: sp.csr_array, values: str = "data") -> dict[str, NDArray[Any]]:
    """A sparse matrix as the arrays that graph files hold: `values` is what the format calls its numbers."""
    return {
        f"{prefix}_{values}": matrix.data,
        f"{prefix}_indices": matrix.indices,
        f"{prefix}_indptr": matrix.indptr,
        f"{prefix}_shape": np.array(matrix.shape),
    }


def rows_of(data: Any, mask: Any = None) -> list[bytes]:
    """Features of the nodes of a graph, or of those in a mask: what a node can be recognised by in another graph."""
    if not hasattr(data, "edge_index"):  # types of nodes, each with features of its own
        return []
    x = data.x.toarray() if sp.issparse(data.x) else np.asarray(data.x)
    return [row.tobytes() for row in (x if mask is None else x[np.asarray(mask)])]


# ---------------------------------------------------------------------- packages


def install_package(
    folder: Path,
    monkeypatch: "pytest.MonkeyPatch",
    modules: dict[str, str],
    entries: dict[str, dict[str, str]],
    name: str = "",
) -> None:
    """As pip would leave it, for the time of a test: modules, and a dist-info folder with their entry points."""
    from ipal.runs.resolved import REGISTRIES

    name = name or next(iter(modules))
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in of.items()) for group, of in entries.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(groups))
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
        _forgotten(monkeypatch, sys.modules, module)
    for registry in REGISTRIES:
        _forgotten(monkeypatch, vars(registry), "entries")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)


def _forgotten(monkeypatch: "pytest.MonkeyPatch", known: dict[str, Any], name: str) -> None:
    """Not known now, and as it is now at the end of the test, whatever is found meanwhile."""
    monkeypatch.setitem(known, name, known.get(name))
    monkeypatch.delitem(known, name)
