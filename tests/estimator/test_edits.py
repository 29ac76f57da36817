"""Classes renamed, merged, split and corrected are those of a model that was taught so; the rest is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from torch_geometric.data import Data

import ipal
from ipal import TaskStream
from ipal.errors import ConfigError, DataError
from ipal.learners import IPAL, METHODS, NCM, PCL, SLDA, Analytic
from ipal.nn.prototypes import PrototypeMemory
from tests.closed_form.analytic_support import POOLED_AND_PER_CLASS, Case, Refused, assert_same_model, case, cases, few
from tests.learning import learn, learned, make

EVERY_METHOD = pytest.mark.parametrize("method", list(METHODS.values()), ids=list(METHODS))
WITH_SUMS = pytest.mark.parametrize("method", [NCM, SLDA])


def labelled(case: Case, y: np.ndarray, train: Any = None, **more: Any) -> Data:
    """The graph of a case with other labels."""
    mask = case.mask(case.nodes if train is None else train)
    return Data(x=case.x, edge_index=torch.from_numpy(case.edges), y=torch.from_numpy(y), train_mask=mask, **more)


def taught(case: Case, y: np.ndarray, sums: str = "per-class") -> Analytic:
    return Analytic(sums=sums, **case.options).partial_fit(labelled(case, y))


def assert_same_sums(a: Any, b: Any, case: Case) -> None:
    order = [a.labels_.index(label) for label in b.labels_]
    assert a.sums_.count[order].tolist() == b.sums_.count.tolist()
    torch.testing.assert_close(a.sums_.sum[order], b.sums_.sum, rtol=1e-5, atol=1e-5)
    data = case.data(case.nodes)
    np.testing.assert_allclose(a.predict_proba(data)[:, order], b.predict_proba(data), atol=2e-4)


# ------------------------------------------------------------------ renaming


@EVERY_METHOD
def test_a_renamed_class_is_the_same_under_another_name_in_every_method(
    method: Any, tiny_stream: TaskStream, tmp_path: Path
) -> None:
    learner, other = (learned(method, tiny_stream, 2) for _ in range(2))
    old = learner.labels_[1]
    assert learner.rename_class(old, 77) is learner
    assert learner.labels_ == [77 if label == old else label for label in other.labels_]
    graph = tiny_stream.task(2).graph
    expected = other.predict_graph(graph)
    assert np.array_equal(learner.predict_graph(graph), np.where(expected == old, 77, expected))
    for name, tensor in other.tensors().items():
        assert torch.equal(learner.tensors()[name], tensor), name
    learner.save(tmp_path / "m")
    assert ipal.load(tmp_path / "m").labels_ == learner.labels_
    learn(learner, tiny_stream.task(2))  # it goes on as if nothing had happened
    learn(other, tiny_stream.task(2))
    for name, tensor in other.tensors().items():
        assert torch.equal(learner.tensors()[name], tensor), name


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (99, 5, "Class 99 was never learned; known are 0, 1, 2, 3"),
        (0, 1, "Class 1 is known already"),
        (0, "zero", "are whole numbers"),
        (0, 1.5, "are whole numbers"),
        (0, 2**63, "are whole numbers"),
    ],
)
def test_impossible_names_are_refused(old: Any, new: Any, words: str) -> None:
    learner = taught(case(3), case(3).y)
    with Refused(learner, words):
        learner.rename_class(old, new)


def test_an_empty_model_and_one_that_is_learning_change_no_class(tiny_stream: TaskStream) -> None:
    with pytest.raises(ConfigError, match="learned nothing yet"):
        NCM().rename_class(0, 1)
    learner = learned(METHODS["bare"], tiny_stream, 1)
    steps = learner.learn(tiny_stream.task(1))
    next(steps)
    with pytest.raises(ConfigError, match="is being learned"):
        learner.rename_class(learner.labels_[0], 50)


# ------------------------------------------------------------------ merging


@POOLED_AND_PER_CLASS
@few
@given(case=cases)
def test_merged_classes_are_those_of_a_model_that_never_told_them_apart(case: Case, sums: str) -> None:
    a, b = (int(label) for label in case.random.choice(case.classes, 2, replace=False))
    into = int(case.random.choice([a, b, 50]))
    learner = taught(case, case.y, sums)
    assert learner.merge_classes([a, b], into=into) is learner
    united = np.where(np.isin(case.y, [a, b]), into, case.y)
    assert_same_model(learner, taught(case, united, sums), case)
    assert learner.labels_.index(into) == min(a, b)


@WITH_SUMS
@few
@given(case=cases)
def test_classes_of_class_means_are_merged_and_corrected_exactly(method: Any, case: Case) -> None:
    made = {"steps": 2, "calibration": 0.0}
    a, b, c = (int(label) for label in case.random.choice(case.classes, 3, replace=False))
    learner = method(**made).partial_fit(case.data(case.nodes)).merge_classes([a, b], into=b)
    united = np.where(case.y == a, b, case.y)
    assert_same_sums(learner, method(**made).partial_fit(labelled(case, united)), case)
    right = np.where(case.random.random(len(united)) < 0.3, 60, united)
    right = np.where(united == c, b, right)  # one class is left without a node
    learner.relabel(labelled(case, united, new_y=torch.from_numpy(right)))
    assert c not in learner.labels_
    assert_same_sums(learner, method(**made).partial_fit(labelled(case, right)), case)


def test_united_prototypes_are_moments_of_all_nodes() -> None:
    rows = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    parts = torch.tensor([0] * 6 + [1] * 14 + [2] * 10)

    def memory(labels: torch.Tensor) -> PrototypeMemory:
        some = [rows[labels == label] for label in labels.unique()]
        mean, variance = (torch.stack([fn(one) for one in some]) for fn in (_mean, _variance))
        return PrototypeMemory(mean, variance, torch.bincount(labels))

    found = memory(parts).united(torch.tensor([1, 0, 1]), 2)
    expected = memory((parts != 1).long())
    for name, tensor in vars(expected).items():
        torch.testing.assert_close(vars(found)[name], tensor)


def _mean(rows: torch.Tensor) -> torch.Tensor:
    return rows.mean(dim=0)


def _variance(rows: torch.Tensor) -> torch.Tensor:
    return rows.var(dim=0, correction=0)


@pytest.mark.parametrize("method", [IPAL, PCL])
def test_prototypes_are_pooled_and_the_encoder_stays(method: Any, tiny_stream: TaskStream, tmp_path: Path) -> None:
    learner = learned(method, tiny_stream, 2)
    a, b, *rest = learner.labels_
    before, weights = learner.nodes_behind_class(), learner.parameters()
    learner.merge_classes([a, b], into=90)
    assert learner.nodes_behind_class() == {
        "90": before[str(a)] + before[str(b)],
        **{str(c): before[str(c)] for c in rest},
    }
    assert all(torch.equal(weights[name], now) for name, now in learner.parameters().items())
    learner.save(tmp_path / "m")
    learn(ipal.load(tmp_path / "m"), tiny_stream.task(2))


@EVERY_METHOD
def test_what_is_not_exact_is_refused_with_a_sentence(method: Any, tiny_stream: TaskStream) -> None:
    learner = learned(method, tiny_stream, 1)
    task = tiny_stream.task(0)
    labels = np.full(task.graph.num_nodes, learner.labels_[0])
    labels[task.nodes] = task.labels
    data = Data(x=task.graph.x, edge_index=torch.from_numpy(task.graph.edges), y=labels, new_y=labels + 100)
    data.train_mask = torch.zeros(len(labels), dtype=torch.bool)
    data.train_mask[task.nodes] = True
    if method in (Analytic, NCM, SLDA):
        assert set(learner.relabel(data).labels_) == {label + 100 for label in np.unique(task.labels).tolist()}
        return
    with Refused(learner, f"'{method.name}' cannot correct labels exactly", error=ConfigError):
        learner.relabel(data)
    if method not in (IPAL, PCL):
        with Refused(learner, f"'{method.name}' cannot merge classes exactly", error=ConfigError):
            learner.merge_classes(learner.labels_[:2], into=learner.labels_[0])


@pytest.mark.parametrize(
    ("labels", "into", "words"),
    [([0], 0, "at least two"), ([0, 0], 0, "at least two"), ([0, 9], 0, "never learned"), ([0, 1], 2, "known already")],
)
def test_impossible_mergers_are_refused(labels: list[int], into: int, words: str) -> None:
    learner = taught(case(3), case(3).y)
    with Refused(learner, words):
        learner.merge_classes(labels, into=into)


@POOLED_AND_PER_CLASS
def test_what_was_left_out_of_merged_classes_is_added_up(sums: str) -> None:
    graph = case(3, ridge=None)
    learner = taught(graph, graph.y, sums)
    before = learner.left_out_
    learner.merge_classes([0, 2], into=0)
    assert learner.left_out_.count[0] == before.count[0] + before.count[2]
    torch.testing.assert_close(learner.left_out_.loss[0], before.loss[0] + before.loss[2])
    assert torch.equal(learner.left_out_.loss[1], before.loss[1])


# ------------------------------------------------------------------ splitting and correcting


@POOLED_AND_PER_CLASS
@few
@given(case=cases)
def test_a_split_class_is_that_of_a_model_that_always_told_its_parts_apart(case: Case, sums: str) -> None:
    whole = np.where(case.y == case.classes[1], case.classes[0], case.y)
    own = np.flatnonzero(whole == case.classes[0])
    learner = taught(case, whole, sums)
    assert learner.split_class(int(case.classes[0]), labelled(case, case.y, own)) is learner
    assert_same_model(learner, taught(case, case.y, sums), case)
    # Merged again, it is what it was; split in full, its old name is gone.
    learner = taught(case, whole, sums).split_class(case.classes[0], labelled(case, case.y + 40, own))
    assert case.classes[0] not in learner.labels_
    learner.merge_classes([case.classes[0] + 40, case.classes[1] + 40], into=case.classes[0])
    assert_same_model(learner, taught(case, whole, sums), case)


@POOLED_AND_PER_CLASS
@few
@given(case=cases)
def test_corrected_labels_are_those_of_a_model_that_was_taught_them(case: Case, sums: str) -> None:
    wrong = np.where(case.random.random(len(case.y)) < 0.2, case.random.permutation(case.y), case.y)
    if np.array_equal(wrong, case.y):
        return
    learner = taught(case, wrong, sums)
    learner.relabel(labelled(case, wrong, new_y=torch.from_numpy(case.y)))
    assert_same_model(learner, taught(case, case.y, sums), case)
    # Also where only those that were wrong are given.
    learner = taught(case, wrong, sums)
    learner.relabel(labelled(case, wrong, np.flatnonzero(wrong != case.y), new_y=torch.from_numpy(case.y)))
    assert_same_model(learner, taught(case, case.y, sums), case)


@POOLED_AND_PER_CLASS
def test_corrections_that_cannot_be_are_refused_and_change_nothing(sums: str) -> None:
    graph = case(3, width=128)
    learner, data = taught(graph, graph.y, sums), graph.data(graph.nodes)
    with Refused(learner, "data.new_y"):
        learner.relabel(data)
    with Refused(learner, "says the same"):
        learner.relabel(labelled(graph, graph.y, new_y=torch.from_numpy(graph.y)))
    with Refused(learner, "was never learned"):
        learner.relabel(labelled(graph, graph.y + 9, new_y=torch.from_numpy(graph.y)))
    swapped = np.roll(graph.y, 1)
    with Refused(learner, "not those that were learned"):
        some = np.flatnonzero(swapped != graph.y)[:3]
        learner.relabel(labelled(graph, swapped, some, new_y=torch.from_numpy(graph.y)))
    own = graph.of(0)
    with Refused(learner, "names no new class"):
        learner.split_class(0, labelled(graph, graph.y, own))
    with Refused(learner, "Class 1 is known already"):
        learner.split_class(0, labelled(graph, np.where(graph.y == 0, 1, graph.y), own))
    with Refused(learner, "was learned from"):
        learner.split_class(0, labelled(graph, graph.y + 20))
    with pytest.raises(DataError, match="one per node is needed"):
        learner.relabel(labelled(graph, graph.y, new_y=torch.zeros(3)))


# ------------------------------------------------------------------ the growing graph


@EVERY_METHOD
def test_every_method_takes_the_whole_graph_each_month_with_new_labels_of_known_classes(method: Any) -> None:
    graph = case(5)
    months = graph.random.integers(0, 3, len(graph.y))
    learner = make(method, **({"task_free": True} if method is IPAL else {}), epochs=2)
    for month in range(3):
        here = np.flatnonzero(months <= month)
        part = graph.without(np.flatnonzero(months > month))
        learner.partial_fit(part.data(np.flatnonzero(months[here] == month)))
    assert set(learner.classes_.tolist()) == set(graph.classes.tolist())
    assert len(learner.predict(graph.data(graph.nodes))) == len(graph.y)
    if counts := learner.nodes_behind_class():
        assert counts == {str(label): int((graph.y == label).sum()) for label in learner.labels_}
