"""What a method keeps is a dataclass: saved, restored, checked and counted without a word of the method's own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ipal import StoreError, TaskStream
from ipal.backend.checks import check_same
from ipal.estimator import files
from ipal.estimator.model import Model
from ipal.methods.bare import Bare
from ipal.methods.base import Parameters, Space, TaskContext
from ipal.state.snapshot import Snapshot
from tests.learning import learn, learned


@dataclass(frozen=True, eq=False)
class Middle:
    """A value within another."""

    centre: Tensor
    """mean of all embeddings"""
    tasks: int


@dataclass(frozen=True, eq=False)
class Plain:
    """One value of each kind."""

    middle: Middle
    """mean of all embeddings, number of tasks"""
    newest: Tensor | None
    """mean of the embeddings of the newest task, from the second on"""
    start: Parameters
    """encoder weights after the newest task"""

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        check_same(self.start, {name: tensor for name, tensor in parameters.items() if name.startswith("encoder.")})


@dataclass(frozen=True, kw_only=True)
class KeepsAll(Bare):
    """A method that says only what it must."""

    name = "keeps-all"
    title = "Keeps all"

    def init(self, space: Space) -> Plain:
        return Plain(Middle(torch.zeros(space.width, device=space.device), 0), None, {})

    def end_task(self, network: Any, memory: Plain, context: TaskContext, rng: torch.Generator) -> Plain:
        mean, known = context.embeddings(network).mean(dim=0), memory.middle
        middle = Middle((known.centre * known.tasks + mean) / (known.tasks + 1), known.tasks + 1)
        start = {name: tensor for name, tensor in network.tensors().items() if name.startswith("encoder.")}
        return Plain(middle, mean if known.tasks else None, start)


def again(snapshot: Snapshot, path: Path) -> Model:
    return files.loaded(snapshot, path, method=KeepsAll)


@pytest.mark.parametrize("tasks", [1, 2])
def test_what_is_kept_is_saved_restored_and_counted(tasks: int, tiny_stream: TaskStream, tmp_path: Path) -> None:
    model = learned(KeepsAll, tiny_stream, tasks)
    files.save(model, tmp_path / "m", moments=True)
    other = again(Snapshot.load(tmp_path / "m"), tmp_path / "m")
    assert other.state.memory.middle.tasks == tasks
    assert list(other.state.memory.start) == list(model.state.memory.start), "in the order of the network"
    straight, continued = (files.checkpoint(learn(one, tiny_stream.task(tasks))) for one in (model, other))
    assert straight.tensors.keys() == continued.tensors.keys()
    for name, tensor in straight.tensors.items():
        assert torch.equal(continued.tensors[name], tensor), name
    items = {item["kind"]: item for item in model.memory_report()["items"]}
    assert items["middle"]["bytes"] == 4 * 8 + 8
    assert items["start"]["what"] == "encoder weights after the newest task"
    assert ("newest" in items) == (tasks > 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"middle.centre": torch.zeros(7)}, r"'memory.middle.centre' has the shape \(7,\) instead of \(8"),
        ({"middle.centre": torch.zeros(8).double()}, "centre' holds torch.float64 instead of torch.float32"),
        ({"middle.centre": torch.full((8,), torch.nan)}, "NaN or infinite"),
        ({"middle.centre": None}, "'memory.middle.centre' is missing"),
        ({"middle.tasks": torch.tensor(-1)}, "'memory.middle.tasks' is no number"),
        ({"start.encoder.biases.0": None}, "'encoder.biases.0' is missing"),
        ({"start.head.biases.0": torch.zeros(2)}, "'head.biases.0' is not part of it"),
        ({"more": torch.zeros(1)}, "'memory.more' is not part of it"),
    ],
)
def test_what_does_not_fit_is_refused(
    change: dict[str, Any], words: str, tiny_stream: TaskStream, tmp_path: Path
) -> None:
    snapshot = files.snapshot(learned(KeepsAll, tiny_stream, 2))
    changed = {**snapshot.tensors, **{f"memory.{name}": tensor for name, tensor in change.items()}}
    tensors = {name: tensor for name, tensor in changed.items() if tensor is not None}
    with pytest.raises(StoreError, match=words):
        again(Snapshot(tensors, snapshot.facts), tmp_path / "m")
