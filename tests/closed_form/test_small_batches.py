"""Streams of small batches, whose classes return: cheap, and solved when asked."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipal.closed_form.method import Analytic, Solved
from ipal.closed_form.ridge import FIRST_RIDGE, FIRST_SCALE
from ipal.data.graph import checked_graph
from ipal.data.task import Task
from ipal.estimator import files
from ipal.estimator.model import Model
from ipal.estimator.settings import LearnerConfig
from ipal.state.snapshot import Snapshot
from tests import learning
from tests.closed_form.analytic_support import equal
from tests.learning import learn


def task_of(x: np.ndarray, y: np.ndarray) -> Task:
    """Nodes without edges, all of which teach."""
    graph = checked_graph(x, np.zeros((2, 0), dtype=np.int64), undirected=True)
    return Task(graph, np.arange(len(y)), y)


def all_nodes(classes: int = 4, nodes: int = 400, features: int = 12) -> Task:
    """Nodes around a centre for each class, in random order."""
    random = np.random.default_rng(0)
    y = random.integers(0, classes, nodes)
    x = np.float32(2 * random.normal(size=(classes, features))[y] + random.normal(size=(nodes, features)))
    return task_of(x, y)


def batches_of(task: Task, size: int = 20) -> list[Task]:
    """The nodes of a task, some at a time."""
    x, y = np.asarray(task.graph.x), task.labels
    return [task_of(x[part], y[part]) for part in np.array_split(task.nodes, len(y) // size)]


def config(**options: Any) -> LearnerConfig:
    return learning.config(Analytic, **{"calibration": 0.2, **options})


def solved(model: Model) -> Solved:
    assert isinstance(model.method, Analytic)
    return model.method.solved(model.state.memory)


def predicted(model: Model, task: Task) -> np.ndarray:
    return model.predict_graph(task.graph).labels


# ------------------------------------------------------------------ solved when asked


def test_batches_are_not_solved_before_something_is_asked_and_then_once(monkeypatch: pytest.MonkeyPatch):
    batches, solve, times = batches_of(all_nodes()), Analytic._solve, []
    monkeypatch.setattr(Analytic, "_solve", lambda *given: times.append(1) or solve(*given))
    model = learn(config(), *batches)
    assert len(times) == 0
    predicted(model, batches[0])
    model.scores_and_probabilities(batches[1].graph)
    assert solved(model).ridge > 0
    assert len(times) == 1
    predicted(learn(model, batches[0]), batches[0])
    assert len(times) == 2


# ------------------------------------------------------------------ ridge and scale


def test_the_only_node_of_a_class_judges_when_others_have_come():
    x = np.eye(4, dtype=np.float32)
    model = learn(config(), task_of(x[:2], np.array([0, 1])))
    assert model.state.memory.left_out.count.tolist() == []
    assert (solved(model).ridge, solved(model).scale) == (FIRST_RIDGE, FIRST_SCALE)
    model = learn(model, task_of(x[2:], np.array([1, 2])))
    left_out = model.state.memory.left_out
    assert [part.tolist() for part in (left_out.task, left_out.place, left_out.count)] == [[1], [1], [1]]


# ------------------------------------------------------------------ cheap


def test_of_more_batches_only_losses_are_kept_a_row_for_every_class_in_one(tmp_path: Path):
    batches = batches_of(all_nodes())
    sizes = []
    for number in (5, 20):
        model = learn(config(), *batches[:number])
        files.save(model, tmp_path / "model")
        saved = Snapshot.load(tmp_path / "model").tensors
        kept = {name for name in saved if not name.startswith(("calibration", "generator"))}
        parts = {"sums.count", "sums.total", "sums.gram", "tasks"}
        losses = {f"left_out.{name}" for name in ("task", "place", "loss", "count")}
        assert kept == {f"memory.{name}" for name in parts | losses}
        assert model.memory_report()["bytes"] == sum(one.numel() * one.element_size() for one in saved.values())
        assert model.memory_report()["only_while_learning"] == []
        assert equal(files.snapshot(files.load(tmp_path / "model")), files.snapshot(model))
        sizes.append({name: saved[f"memory.{name}"].shape for name in parts})
        assert model.state.memory.tasks == number
        assert saved["memory.left_out.task"].tolist() == np.repeat(np.arange(number), 4).tolist()
        assert sorted(saved["memory.left_out.place"].tolist()[:4]) == [0, 1, 2, 3]
    assert sizes[0] == sizes[1]
