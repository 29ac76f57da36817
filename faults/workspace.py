"""A folder as a user has one: runs, models, a graph; the long commands in it, and what each of them leaves."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from faults.children import PATIENCE, command, fork, must_succeed
from faults.core import Failed
from faults.runs import tensors

GRAPH = "synthetic:nodes=150,classes=6,features=12,signal=0.3,homophily=0.2"
OTHER = f"{GRAPH},seed=1"
TRAIN = ["--set", "train.epochs=2", "--set", "encoder.hidden=8", "--set", "encoder.width=8"]
NARROW = ["--method", "analytic", "--set", "analytic.width=16"]
NARROW += ["--set", "analytic.steps=1", "--split", "3,3"]
TAUGHT = ("--graph", "task-0.npz", "--graph", "task-1.npz")
"""What the first run has learned."""
NOT_COMPARED = {"log.txt", ".lock"}


@dataclass(frozen=True)
class Long:
    """A command that writes something, inside a workspace."""

    name: str
    arguments: tuple[str, ...]
    target: str
    """What it writes: a file or a folder."""
    needs: tuple[str, ...] = ()
    """Modules without which it is not tried."""


LONG = (
    Long("merge", ("merge", "first", "second", "-o", "merged.safetensors", "--force"), "merged.safetensors"),
    Long("forget", ("forget", "first", "--class", "0", *TAUGHT), "runs"),
    Long(
        "forget -o",
        ("forget", "first", "--class", "1", *TAUGHT, "-o", "less.safetensors", "--force"),
        "less.safetensors",
    ),
    Long("relabel -o", ("relabel", "first", *TAUGHT, "-o", "right.safetensors", "--force"), "right.safetensors"),
    Long("rename", ("rename", "first", "0", "--to", "9"), "runs"),
    Long(
        "rename -o",
        ("rename", "first", "0", "1", "--to", "1", "-o", "fewer.safetensors", "--force"),
        "fewer.safetensors",
    ),
    Long("data --convert", ("data", GRAPH, "--convert", "mine.graph"), "mine.graph"),
    Long("predict", ("predict", "third", "--graph", OTHER, "-o", "out.csv", "--force"), "out.csv"),
    Long("audit", ("audit", "third", "--data", GRAPH, "--json"), "nothing"),
    Long("report --html", ("report", "third", "--html", "-o", "page.html"), "page.html", needs=("jinja2",)),
    Long(
        "export",
        ("export", "third", "-o", "out.onnx", "--force"),
        "out.onnx",
        needs=("onnx", "onnxruntime"),
    ),
)


def possible() -> list[Long]:
    """The commands whose libraries are here."""
    return [one for one in LONG if all(find_spec(name) for name in one.needs)]


def furnish(folder: Path) -> Path:
    """A workspace with three finished runs."""
    folder.mkdir()
    for name, options in {
        "first": ["--dataset", GRAPH, *NARROW],
        "second": ["--dataset", OTHER, *NARROW],
        "third": ["--dataset", GRAPH, *TRAIN],
    }.items():
        must_succeed(command(["run", *options, "--runs", f"{name}-runs"], folder, seconds=PATIENCE), f"run {name}")
        (folder / "runs").mkdir(exist_ok=True)
        (made,) = (folder / f"{name}-runs").iterdir()
        made.rename(folder / "runs" / f"{name}-{made.name}")
        (folder / f"{name}-runs").rmdir()
    must_succeed(fork(lambda: _write_tasks(folder), folder).end(PATIENCE), "tasks")
    return folder


def _write_tasks(folder: Path) -> None:
    """The tasks of the first run, and other labels for some nodes of the last."""
    from ipal.runs import runner
    from ipal.runs.run_folder import RunFolder

    (run,) = (folder / "runs").glob("first-*")
    stream = runner.resolve(RunFolder(run).config()).stream
    for number in range(len(stream)):
        task = stream.task(number)
        y = np.full(task.graph.num_nodes, -1)
        y[task.nodes] = task.labels
        right = np.where((y >= 0) & (np.arange(len(y)) % 7 == 0), y[task.nodes[0]], y)
        arrays = {"x": task.graph.x, "edge_index": task.graph.edges, "y": y, "train": y >= 0, "new_y": right}
        np.savez(folder / f"task-{number}.npz", **arrays)


def copied(workspace: Path, folder: Path) -> Path:
    return Path(shutil.copytree(workspace, folder, dirs_exist_ok=True))


Contents = dict[str, Any]
"""By path: what a file holds, as far as it is compared."""


def contents(folder: Path, *, hidden: bool = False) -> Contents:
    """All files below; models by their tensors, because the order in their header may differ."""
    found: Contents = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_hidden = any(part.startswith(".") for part in parts)
        if path.is_file() and path.name not in NOT_COMPARED and (hidden or not is_hidden):
            found["/".join(parts)] = _content(path)
    return found


def _content(path: Path) -> Any:
    try:
        return tensors(path) if path.suffix == ".safetensors" else path.read_bytes()
    except (ValueError, KeyError, TypeError) as error:
        raise Failed(f"{path.name} is not whole: {error}") from error


def varying(one: Contents, other: Contents) -> set[str]:
    """Files that differ between two times that a command went well: with times in them, say."""
    return {name for name in one.keys() & other.keys() if one[name] != other[name]}


def must_be_whole(folder: Path, before: Contents, after: Contents, free: Iterable[str]) -> Contents:
    """Every file is as before the command or as after it; of those that vary, it can be read."""
    found = contents(folder)
    for name in before.keys() - found.keys():
        raise Failed(f"{name} is gone")
    for name, content in found.items():
        if name in free:
            _must_be_readable(folder / name)
        elif name not in before and name not in after:
            raise Failed(f"{name} was not there, and does not belong there")
        elif not any(name in known and known[name] == content for known in (before, after)):
            raise Failed(f"{name} is neither as before nor as after")
    return found


def must_be_done(folder: Path, after: Contents, free: Iterable[str]) -> None:
    """Every file is as the command leaves it."""
    found, free = contents(folder), set(free)
    for name in found.keys() ^ after.keys():
        raise Failed(f"{name} is {'missing' if name in after else 'too many'}")
    for name in found.keys() - free:
        if found[name] != after[name]:
            raise Failed(f"{name} holds something else than without the fault")


def _must_be_readable(path: Path) -> None:
    content = path.read_bytes()
    if path.suffix == ".json":
        try:
            json.loads(content)
        except ValueError as error:
            raise Failed(f"{path.name} is not whole: {error}") from error
    elif path.suffix == ".html" and not content.rstrip().endswith(b"</html>"):
        raise Failed(f"{path.name} is not whole")
    elif not content:
        raise Failed(f"{path.name} is empty")
