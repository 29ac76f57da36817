"""The shape of the methods: few classes above each, one hook for the loss, declared state, safe defaults."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

import ipal
from ipal import ConfigError, StoreError, TaskStream
from ipal.backend.batches import Batch
from ipal.data.streams import Task
from ipal.learners import METHODS, Bare, Learner
from ipal.learners.kept import Kept, PerParameter
from ipal.learners.saved import of_state
from ipal.learners.state import State
from ipal.learners.stateful import Stateful
from ipal.learners.trained import Lesson, TrainedLearner
from tests.learning import learn, learned

EVERY_METHOD = pytest.mark.parametrize("method", list(METHODS.values()), ids=list(METHODS))


def ours(method: type) -> list[type]:
    """The classes of learners above a method; `Stateful` is how all of them are saved, and none changes that."""
    return [base for base in method.__mro__ if base.__module__.split(".")[0] == "ipal" and base is not Stateful]


@EVERY_METHOD
def test_a_method_is_at_most_three_classes_deep_and_no_diamond(method: type) -> None:
    line = ours(method)
    assert len(line) <= 3, line
    for base in line:
        assert len([parent for parent in base.__bases__ if parent in line]) <= 1, base


@EVERY_METHOD
def test_a_method_writes_no_serialisation_of_its_own(method: type) -> None:
    written = {"tensors", "load_tensors", "facts", "load_facts", "save", "load", "state", "restore"}
    assert not written & vars(method).keys()
    assert {kept.name for kept in vars(method).get("kept", ())} <= method.declared().keys()


def test_generic_code_knows_no_method_by_name() -> None:
    root = Path(ipal.__file__).parent
    classes = {method.__name__ for method in METHODS.values()}
    for room in ("backend", "data", "nn", "evaluation", "runs", "bench", "analysis", "deploy", "trackers", "cli"):
        for path in (root / room).rglob("*.py"):
            tree = ast.parse(path.read_text())
            imported = {
                alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
            }
            assert not imported & classes, path


# ---------------------------------------------------------------------- what is declared


@dataclass(kw_only=True, eq=False)
class Plain(TrainedLearner[Lesson]):
    """A method that says only what it must, and keeps one value of each kind."""

    name = "plain"
    kept = (
        Kept("centre", "mean of all embeddings", shape=("width",)),
        Kept("newest", "mean of the embeddings of the newest task, from the second on"),
        Kept("parts", "means of the embeddings of the tasks"),
        PerParameter("start", "encoder weights after the newest task", part="encoder."),
    )

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.centre_ = torch.zeros(self.encoder.width)
        self.newest_: Tensor | None = None
        self.parts_: list[Tensor] = []
        self.start_: dict[str, Tensor] = {}

    def end_task(self, task: Task, lesson: Lesson) -> None:
        mean = self.training_embeddings(task).mean(dim=0)
        self.newest_ = mean if self.parts_ else None
        self.parts_.append(mean)
        self.centre_ = torch.stack(self.parts_).mean(dim=0)
        self.start_ = {name: p for name, p in self.parameters().items() if name.startswith("encoder.")}


def test_steps_are_recorded_only_where_a_method_says_so() -> None:
    assert not Plain.recordable
    assert not Plain.stores_exemplars

    class Other(Bare):
        def loss(self, batch: Batch, lesson: Lesson) -> dict[str, Tensor]:
            return super().loss(batch, lesson)

    class Renamed(Bare):
        name = "renamed"

    assert not Other.recordable, "another loss"
    assert Renamed.recordable


@pytest.mark.parametrize("tasks", [1, 2])
def test_declared_values_are_saved_restored_and_counted(tasks: int, tiny_stream: TaskStream, tmp_path: Path) -> None:
    learner = learned(Plain, tiny_stream, tasks)
    learner.save(tmp_path / "m", moments=True)
    again = of_state(Plain, State.load(tmp_path / "m"), tmp_path / "m", "cpu")
    assert list(again.start_) == [name for name in again.parameters() if name.startswith("encoder.")]
    for name, tensor in learner.tensors().items():
        assert torch.equal(again.tensors()[name], tensor), name
    task = tiny_stream.task(tasks)
    learn(learner, task)
    learn(again, task)
    for name, tensor in learner.tensors().items():
        assert torch.equal(again.tensors()[name], tensor), name
    kinds = {item["kind"]: item["bytes"] for item in learner.memory_report()["items"]}
    assert kinds["centre"] == kinds["newest"] == 4 * 8
    assert kinds["parts"] == 4 * 8 * (tasks + 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"centre": torch.zeros(7)}, r"'centre' has the shape \(7,\) instead of \(8,\)"),
        ({"centre": torch.zeros(8, dtype=torch.float64)}, "'centre' holds torch.float64 instead of torch.float32"),
        ({"centre": None}, "'centre' is missing"),
        ({"parts.0": None}, "'0' is missing"),
        ({"parts.2": torch.full((8,), torch.nan)}, "NaN or infinite"),
        ({"start.encoder.biases.0": None}, "'encoder.biases.0' is missing"),
        ({"start.head.biases.0": torch.zeros(2)}, "'head.biases.0' is not part of it"),
        ({"more": torch.zeros(1)}, "'more' is not part of it"),
    ],
)
def test_declared_values_that_do_not_fit_are_refused(
    change: dict[str, Any], words: str, tiny_stream: TaskStream, tmp_path: Path
) -> None:
    state = learned(Plain, tiny_stream, 2).state()
    tensors = {name: tensor for name, tensor in {**state.tensors, **change}.items() if tensor is not None}
    with pytest.raises(StoreError, match=words):
        of_state(Plain, State(tensors, state.facts), tmp_path / "m", "cpu")


def test_a_method_that_is_not_exported_says_what_is_missing(tiny_stream: TaskStream) -> None:
    learner = learned(METHODS["ncm"], tiny_stream, 1)
    with pytest.raises(ConfigError, match="'ncm' does not say how it is exported"):
        Learner.exported(learner, None)


# ---------------------------------------------------------------------- files of earlier versions

LAYOUT = {
    "ncm": {"generator", "sums.sum", "sums.count"},
    "slda": {"generator", "sums.sum", "sums.count", "scatter", "discriminant.weights", "discriminant.offsets"},
    "analytic": {
        "generator",
        "sums.count",
        "sums.total",
        "sums.gram",
        "left_out.loss",
        "left_out.count",
        "weights",
    },
    "ewc": {
        f"{group}{part}.{kind}.{number}"
        for group in ("", "importance.", "anchor.")
        for part in ("encoder", "head")
        for kind in ("weights", "biases")
        for number in range(2)
    }
    | {"generator"},
    "efc": {
        f"{part}.{kind}.{number}" for part in ("encoder", "head") for kind in ("weights", "biases") for number in (0, 1)
    }
    | {"generator", "prototypes.mean", "prototypes.variance", "prototypes.count", "covariance", "feature_matrix"},
}


@pytest.mark.parametrize("method", LAYOUT)
def test_names_in_files_are_those_of_earlier_versions(method: str, tiny_stream: TaskStream, tmp_path: Path) -> None:
    learned(METHODS[method], tiny_stream, 2).save(tmp_path / "m")
    assert set(State.load(tmp_path / "m").tensors) == LAYOUT[method]
