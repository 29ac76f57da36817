"""Streams of small batches, whose classes return: cheap, solved when asked, the same whatever came in which batch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipal.backend.runtime import Runtime
from ipal.closed_form.left_out import FIRST_RIDGE, FIRST_SCALE
from ipal.closed_form.method import Analytic, Solved
from ipal.data.graph import checked_graph
from ipal.data.task import Task
from ipal.estimator import files
from ipal.estimator.model import Model
from ipal.estimator.settings import LearnerConfig
from ipal.methods.base import Method
from ipal.methods.ncm import NCM
from ipal.methods.slda import SLDA
from ipal.state.snapshot import Snapshot
from ipal.system.tracing import Recorder
from tests import learning
from tests.closed_form.analytic_support import POOLED_AND_PER_CLASS, case, equal, memory
from tests.engine.test_interrupted import interrupted_everywhere
from tests.learning import CPU, learn


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


def config(method: type[Method] = Analytic, **options: Any) -> LearnerConfig:
    return learning.config(method, **{"calibration": 0.2, **options})


def solved(model: Model) -> Solved:
    assert isinstance(model.method, Analytic)
    return model.method.solved(model.state.memory)


def predicted(model: Model, task: Task) -> np.ndarray:
    return model.predict_graph(task.graph).labels


def times(recorder: Recorder, name: str) -> int:
    """How often a part was entered."""
    return sum(account.times for path, account in recorder.laps[-1].items() if path[-1:] == (name,))


# ------------------------------------------------------------------ the same, whatever came in which batch


@pytest.mark.parametrize("method", [NCM, SLDA])
def test_small_batches_and_one_large_one_make_the_same_statistics(method: type[Method]):
    task = all_nodes()
    whole, parts = learn(config(method), task), learn(config(method), *batches_of(task))
    order = [parts.labels.index(label) for label in whole.labels]
    one, other = (model.method.statistics(model.state.memory) for model in (whole, parts))
    torch.testing.assert_close(other.sum[order], one.sum, rtol=1e-4, atol=1e-3)
    if method is SLDA:
        torch.testing.assert_close(parts.state.memory.scatter, whole.state.memory.scatter, rtol=1e-4, atol=1e-2)
    assert (predicted(parts, task) == predicted(whole, task)).mean() > 0.99


# ------------------------------------------------------------------ solved when asked


def test_batches_are_not_solved_before_something_is_asked_and_then_once():
    batches, recorder = batches_of(all_nodes()), Recorder()
    first = learn(config(), batches[0], runtime=replace(Runtime.of(), tracer=recorder))
    with recorder.listening():
        model = learn(first, *batches[1:])
        assert times(recorder, "solve") == 0
        assert times(recorder, "ridge") == len(batches) - 1  # some of its rows are left out of every batch
        predicted(model, batches[0])
        model.scores_and_probabilities(batches[1].graph)
        assert solved(model).ridge > 0
        assert times(recorder, "solve") == 1
        predicted(learn(model, batches[0]), batches[0])
        assert times(recorder, "solve") == 2


def test_what_is_asked_in_between_changes_nothing(tmp_path: Path):
    batches = batches_of(all_nodes())
    asked, left_alone = learn(config(), batches[0]), learn(config(), *batches)
    for number, batch in enumerate(batches[1:]):
        predicted(asked, batch)
        asked.memory_report()
        files.save(asked, tmp_path / str(number))
        asked = learn(asked, batch)
    assert equal(files.snapshot(asked), files.snapshot(left_alone))
    assert solved(asked).scale == solved(left_alone).scale


@pytest.mark.parametrize("method", [Analytic, NCM, SLDA])
@pytest.mark.parametrize("after", [1, 2, 11])
def test_a_state_between_two_batches_goes_on_to_the_same_bits(method: type[Method], after: int, tmp_path: Path):
    batches = batches_of(all_nodes())
    straight = learn(config(method), *batches)
    files.checkpoint(learn(config(method), *batches[:after])).save(tmp_path / "checkpoint")
    read = Snapshot.load(tmp_path / "checkpoint")
    resumed = learn(files.restored(config(method), read, CPU, whole=True, source="it"), *batches[after:])
    files.save(straight, tmp_path / "straight")
    files.save(resumed, tmp_path / "resumed")
    assert (tmp_path / "straight").read_bytes() == (tmp_path / "resumed").read_bytes()


@pytest.mark.parametrize("method", [Analytic, NCM, SLDA])
def test_a_batch_interrupted_at_any_line_was_never_begun(method: type[Method]):
    batches = batches_of(all_nodes())

    def known() -> Model:
        return learn(config(method), *batches[:3])

    before = files.checkpoint(known())
    for model in interrupted_everywhere(known, lambda model: learn(model, batches[3]), points=20):
        assert equal(files.checkpoint(model), before)
    assert equal(files.checkpoint(learn(model, *batches[4:])), files.checkpoint(learn(known(), *batches[4:])))


# ------------------------------------------------------------------ ridge and scale


def test_a_ridge_and_a_scale_of_many_small_batches_are_about_those_of_one():
    task = all_nodes(nodes=1200, features=4)  # classes overlap
    whole, parts = learn(config(), task), learn(config(), *batches_of(task, size=40))
    assert parts.state.memory.left_out.count.sum() > 1000
    assert 0.09 < solved(parts).ridge / solved(whole).ridge < 11  # a decade, which is two steps
    assert 0.5 < solved(parts).scale / solved(whole).scale < 2
    assert (predicted(parts, task) == predicted(whole, task)).mean() > 0.97


def test_the_only_node_of_a_class_judges_when_others_have_come():
    x = np.eye(4, dtype=np.float32)
    model = learn(config(), task_of(x[:2], np.array([0, 1])))
    assert model.state.memory.left_out.count.tolist() == []
    assert (solved(model).ridge, solved(model).scale) == (FIRST_RIDGE, FIRST_SCALE)
    model = learn(model, task_of(x[2:], np.array([1, 2])))
    left_out = model.state.memory.left_out
    assert [part.tolist() for part in (left_out.task, left_out.place, left_out.count)] == [[1], [1], [1]]


# ------------------------------------------------------------------ cheap


@POOLED_AND_PER_CLASS
def test_of_more_batches_only_losses_are_kept_a_row_for_every_class_in_one(sums: str, tmp_path: Path):
    batches = batches_of(all_nodes())
    sizes = []
    for number in (5, 20):
        model = learn(config(sums=sums), *batches[:number])
        files.save(model, tmp_path / "model")
        saved = Snapshot.load(tmp_path / "model").tensors
        kept = {name for name in saved if not name.startswith(("calibration", "generator"))}
        parts = {"sums.count", "sums.total", "sums.gram", "tasks", "weights"}
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


def test_sums_of_other_classes_are_shared_and_not_copied():
    one = case(3)
    learner = one.model("per-class", one.nodes)
    before = memory(learner).sums
    learner.partial_fit(one.data(one.of(0)[:1]))
    place = learner.classes_.tolist().index(0)
    for c, gram in enumerate(memory(learner).sums.gram):
        assert (gram is before.gram[c]) == (c != place)


def test_any_stream_will_do():
    assert not Analytic().needs()


def test_a_first_node_alone_is_learned_and_a_thousandth():
    task = all_nodes()
    batches = batches_of(task, size=1)
    model = learn(config(), batches[0])
    assert predicted(model, batches[1]).tolist() == batches[0].labels.tolist()
    assert (predicted(learn(model, *batches[1:]), task) == task.labels).mean() > 0.9
