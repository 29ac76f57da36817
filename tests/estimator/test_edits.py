"""Classes renamed, merged, split and corrected are those of a model that was taught so; the rest is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from torch_geometric.data import Data

import ipal
from ipal import NCM, SLDA, Analytic, TaskStream
from ipal.closed_form.ridge import RIDGES
from ipal.data.datasets import Dataset
from ipal.errors import ConfigError, DataError
from ipal.estimator import files
from ipal.estimator.learners import learner_class
from ipal.estimator.registry import METHODS
from ipal.methods.base import Method
from ipal.methods.ipal import IPAL
from ipal.methods.pcl import PCL
from ipal.methods.shared.prototypes import PrototypeMemory
from tests.closed_form.analytic_support import (
    Case,
    Refused,
    assert_same_model,
    case,
    cases,
    few,
    memory,
)
from tests.learning import learn, learned

EVERY_METHOD = pytest.mark.parametrize("method", list(METHODS.values()), ids=list(METHODS))
WITH_SUMS = pytest.mark.parametrize("method", [NCM, SLDA])


def labelled(case: Case, y: np.ndarray, train: Any = None, **more: Any) -> Data:
    """The graph of a case with other labels."""
    mask = case.mask(case.nodes if train is None else train)
    return Data(x=case.x, edge_index=torch.from_numpy(case.edges), y=torch.from_numpy(y), train_mask=mask, **more)


def taught(case: Case, y: np.ndarray) -> Analytic:
    return Analytic(**case.options).partial_fit(labelled(case, y))


def assert_same_sums(a: Any, b: Any, case: Case) -> None:
    order = [a.model_.labels.index(label) for label in b.model_.labels]
    mine, theirs = (getattr(one.model_.state.memory, "sums", one.model_.state.memory) for one in (a, b))
    assert mine.count[order].tolist() == theirs.count.tolist()
    torch.testing.assert_close(mine.sum[order], theirs.sum, rtol=1e-5, atol=1e-5)
    data = case.data(case.nodes)
    np.testing.assert_allclose(a.predict_proba(data)[:, order], b.predict_proba(data), atol=2e-4)


# ------------------------------------------------------------------ renaming


@EVERY_METHOD
def test_a_renamed_class_is_the_same_under_another_name_in_every_method(
    method: type[Method], tiny_stream: TaskStream, tmp_path: Path
) -> None:
    model = learned(method, tiny_stream, 2)
    old = model.labels[1]
    renamed = ipal.rename_class(learner_class(method)._of(model), old, 77).model_
    assert renamed.labels == tuple(77 if label == old else label for label in model.labels)
    graph = tiny_stream.task(2).graph
    expected = model.predict_graph(graph).labels
    assert np.array_equal(renamed.predict_graph(graph).labels, np.where(expected == old, 77, expected))
    files.save(renamed, tmp_path / "m")
    assert files.load(tmp_path / "m").labels == renamed.labels
    model, renamed = (learn(one, tiny_stream.task(2)) for one in (model, renamed))  # as if nothing had happened
    for name, tensor in files.checkpoint(model).tensors.items():
        assert torch.equal(files.checkpoint(renamed).tensors[name], tensor), name


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (99, 5, "Class 99 was never learned; known are 0, 1, 2, 3"),
        (0, 1, "Class 1 is known already"),
        (0, "zero", "are whole numbers"),
        (0, 2**63, "are whole numbers"),
    ],
)
def test_impossible_names_are_refused(old: Any, new: Any, words: str) -> None:
    learner = taught(case(3), case(3).y)
    with Refused(learner, words):
        ipal.rename_class(learner, old, new)


# ------------------------------------------------------------------ merging


@few
@given(case=cases)
def test_merged_classes_are_those_of_a_model_that_never_told_them_apart(case: Case) -> None:
    a, b = (int(label) for label in case.random.choice(case.classes, 2, replace=False))
    into = int(case.random.choice([a, b, 50]))
    learner = taught(case, case.y)
    assert ipal.merge_classes(learner, [a, b], into=into) is learner
    united = np.where(np.isin(case.y, [a, b]), into, case.y)
    assert_same_model(learner, taught(case, united), case)
    assert learner.classes_.tolist().index(into) == min(a, b)


@WITH_SUMS
@few
@given(case=cases)
def test_classes_of_class_means_are_merged_and_corrected_exactly(method: Any, case: Case) -> None:
    made = {"steps": 2, "calibration": 0.0}
    a, b, c = (int(label) for label in case.random.choice(case.classes, 3, replace=False))
    learner = ipal.merge_classes(method(**made).partial_fit(case.data(case.nodes)), [a, b], into=b)
    united = np.where(case.y == a, b, case.y)
    told = method(**made).partial_fit(labelled(case, united))
    assert_same_sums(learner, told, case)
    learner = told
    right = np.where(case.random.random(len(united)) < 0.3, 60, united)
    right = np.where(united == c, b, right)  # one class is left without a node
    ipal.relabel(learner, labelled(case, united, new_y=torch.from_numpy(right)))
    assert c not in learner.classes_
    assert_same_sums(learner, method(**made).partial_fit(labelled(case, right)), case)


def test_united_prototypes_are_moments_of_all_nodes() -> None:
    rows = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    parts = torch.tensor([0] * 6 + [1] * 14 + [2] * 10)

    def prototypes(labels: torch.Tensor) -> PrototypeMemory:
        some = [rows[labels == label] for label in labels.unique()]
        mean, variance = (torch.stack([fn(one) for one in some]) for fn in (_mean, _variance))
        return PrototypeMemory(mean, variance, torch.bincount(labels))

    found = prototypes(parts).merged(torch.tensor([1, 0, 1]), 2)
    expected = prototypes((parts != 1).long())
    for name, tensor in vars(expected).items():
        torch.testing.assert_close(vars(found)[name], tensor)


def _mean(rows: torch.Tensor) -> torch.Tensor:
    return rows.mean(dim=0)


def _variance(rows: torch.Tensor) -> torch.Tensor:
    return rows.var(dim=0, correction=0)


@pytest.mark.parametrize("method", [IPAL, PCL])
def test_prototypes_are_pooled_and_the_encoder_stays(
    method: type[Method], tiny_stream: TaskStream, tmp_path: Path
) -> None:
    model = learned(method, tiny_stream, 2)
    a, b, *rest = model.labels
    before = model.nodes_behind_class()
    merged = ipal.merge_classes(learner_class(method)._of(model), [a, b], into=90).model_
    assert merged.nodes_behind_class() == {
        "90": before[str(a)] + before[str(b)],
        **{str(c): before[str(c)] for c in rest},
    }
    assert merged.state.network is model.state.network
    files.save(merged, tmp_path / "m")
    learn(files.load(tmp_path / "m"), tiny_stream.task(2))


@EVERY_METHOD
def test_what_is_not_exact_is_refused_with_a_sentence(method: type[Method], tiny_stream: TaskStream) -> None:
    learner = learner_class(method)._of(learned(method, tiny_stream, 1))
    task, (first, *others) = tiny_stream.task(0), learner.classes_.tolist()
    labels = np.full(task.graph.num_nodes, first)
    labels[task.nodes] = task.labels
    data = Data(x=task.graph.x, edge_index=torch.from_numpy(task.graph.edges), y=labels, new_y=labels + 100)
    data.train_mask = torch.zeros(len(labels), dtype=torch.bool)
    data.train_mask[task.nodes] = True
    if method.name in ("analytic", "ncm", "slda"):
        assert set(ipal.relabel(learner, data).classes_) == {label + 100 for label in (first, *others)}
        return
    with Refused(learner, f"'{method.name}' cannot forget or correct labels exactly", error=ConfigError):
        ipal.relabel(learner, data)
    if method.name not in ("ipal", "ipal-online", "pcl"):
        with Refused(learner, f"'{method.name}' cannot merge classes exactly", error=ConfigError):
            ipal.merge_classes(learner, [first, *others], into=first)


@pytest.mark.parametrize(
    ("labels", "into", "words"),
    [([0], 0, "at least two"), ([0, 0], 0, "at least two"), ([0, 9], 0, "never learned"), ([0, 1], 2, "known already")],
)
def test_impossible_mergers_are_refused(labels: list[int], into: int, words: str) -> None:
    learner = taught(case(3), case(3).y)
    with Refused(learner, words):
        ipal.merge_classes(learner, labels, into=into)


def test_what_was_left_out_of_merged_classes_is_added_up() -> None:
    graph = case(3, ridge=None)
    learner = taught(graph, graph.y)
    before = memory(learner).left_out
    merged = memory(ipal.merge_classes(learner, [0, 2], into=0))
    after, place = merged.left_out, [0, 1, 0, *range(2, len(before.place) - 1)]
    assert after.place.tolist() == [place[c] for c in before.place.tolist()]
    assert torch.equal(after.loss, before.loss)
    assert torch.equal(after.count, before.count)
    # As one class they count once: the mean over classes is that of their nodes together.
    loss = before.loss.clone()
    loss[0] += loss[2]
    count = before.count.clone()
    count[0] += count[2]
    rest = [row for row in range(len(count)) if row != 2]
    added = type(before)(before.task[rest], torch.arange(len(rest)), loss[rest], count[rest])
    assert after.best(RIDGES) == pytest.approx(added.best(RIDGES))


# ------------------------------------------------------------------ splitting and correcting


@few
@given(case=cases)
def test_a_split_class_is_that_of_a_model_that_always_told_its_parts_apart(case: Case) -> None:
    whole = np.where(case.y == case.classes[1], case.classes[0], case.y)
    own = np.isin(np.arange(len(whole)), np.flatnonzero(whole == case.classes[0]))
    learner = taught(case, whole)
    assert ipal.relabel(learner, labelled(case, whole, new_y=torch.from_numpy(case.y))) is learner
    assert_same_model(learner, taught(case, case.y), case)
    # Merged again, it is what it was; split in full, its old name is gone.
    other = labelled(case, whole, new_y=torch.from_numpy(np.where(own, case.y + 40, case.y)))
    learner = ipal.relabel(taught(case, whole), other)
    assert case.classes[0] not in learner.classes_
    ipal.merge_classes(learner, [case.classes[0] + 40, case.classes[1] + 40], into=case.classes[0])
    assert_same_model(learner, taught(case, whole), case)


@few
@given(case=cases)
def test_corrected_labels_are_those_of_a_model_that_was_taught_them(case: Case) -> None:
    wrong = np.where(case.random.random(len(case.y)) < 0.2, case.random.permutation(case.y), case.y)
    if np.array_equal(wrong, case.y):
        return
    learner = taught(case, wrong)
    ipal.relabel(learner, labelled(case, wrong, new_y=torch.from_numpy(case.y)))
    assert_same_model(learner, taught(case, case.y), case)
    # Where only those that were wrong are given, it is not the graph that taught.
    learner, some = taught(case, wrong), np.flatnonzero(wrong != case.y)
    with Refused(learner, "none that the model learned"):
        ipal.relabel(learner, labelled(case, wrong, some, new_y=torch.from_numpy(case.y)))


def test_corrections_that_cannot_be_are_refused_and_change_nothing() -> None:
    graph = case(3, width=128)
    learner, data = taught(graph, graph.y), graph.data(graph.nodes)
    with Refused(learner, "data.new_y"):
        ipal.relabel(learner, data)
    with Refused(learner, "This changes nothing"):
        ipal.relabel(learner, labelled(graph, graph.y, new_y=torch.from_numpy(graph.y)))
    with Refused(learner, "was never learned"):
        ipal.relabel(learner, labelled(graph, graph.y + 9, new_y=torch.from_numpy(graph.y)))
    swapped = np.roll(graph.y, 1)
    with Refused(learner, "none that the model learned"):
        ipal.relabel(learner, labelled(graph, swapped, new_y=torch.from_numpy(graph.y)))
    with Refused(learner, "was never learned"):
        ipal.relabel(learner, Data(x=data.x, edge_index=data.edge_index, y=graph.y.astype(str), new_y=data.y))
    with pytest.raises(DataError, match="one per node is needed"):
        ipal.relabel(learner, labelled(graph, graph.y, new_y=torch.zeros(3)))


def test_true_is_no_class_although_it_equals_one(tiny: Dataset) -> None:
    graph = ipal.graph_from(tiny)
    learner = ipal.Analytic(width=32).partial_fit(graph)
    for change in (
        lambda: ipal.forget_class(learner, True, graph),
        lambda: ipal.merge_classes(learner, [1, 2], True),
        lambda: ipal.merge_classes(learner, [True, 2], 2),
        lambda: ipal.rename_class(learner, np.True_, 9),
        lambda: ipal.rename_class(learner, 1, True),
    ):
        with pytest.raises(DataError, match="True is no class"):
            change()
