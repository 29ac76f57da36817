"""Analytic: what sums allow is exact, what they do not is refused and leaves the model as it was."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from torch_geometric.data import Data

from ipal.config import ProtocolConfig
from ipal.data.datasets import load
from ipal.data.streams import TaskStream, default_split
from ipal.errors import ConfigError, DataError, StoreError
from ipal.learners import NCM, Analytic
from ipal.learners.analytic import selection
from ipal.learners.analytic.class_sums import PerClassSums, PooledSums
from ipal.learners.analytic.learner import ENOUGH_ROWS, FIRST_RIDGE
from ipal.learners.analytic.room import EXPANSIONS, GIB, WIDEST_SKETCH, Pooled
from ipal.learners.analytic.rows import rounded
from ipal.learners.analytic.selection import HOPS, RIDGES
from ipal.learners.state import State
from tests.learners.support import accuracy, learn

few = settings(deadline=None, max_examples=15)
POOLED_AND_PER_CLASS = pytest.mark.parametrize("sums", ["pooled", "per-class"])
DEFAULT = "auto"


@dataclass(frozen=True, eq=False)
class Case:
    """A small labelled graph, and settings that leave nothing to choose."""

    x: Any
    edges: np.ndarray
    y: np.ndarray
    options: dict[str, Any]
    random: np.random.Generator

    @property
    def nodes(self) -> np.ndarray:
        return np.arange(len(self.y))

    @property
    def classes(self) -> np.ndarray:
        return np.unique(self.y)

    def of(self, *labels: int) -> np.ndarray:
        """All nodes of some classes."""
        return np.flatnonzero(np.isin(self.y, labels))

    def model(self, sums: str, *parts: Iterable[int]) -> Analytic:
        """A model that learned these nodes, part by part, in the one graph."""
        learner = Analytic(sums=sums, **self.options)
        for part in parts:
            learner.partial_fit(self.data(part))
        return learner

    def data(self, train: Iterable[int], forget: Iterable[int] | None = None) -> Data:
        more = {} if forget is None else {"forget_mask": self.mask(forget)}
        edges = torch.from_numpy(self.edges)
        return Data(x=self.x, edge_index=edges, y=torch.from_numpy(self.y), train_mask=self.mask(train), **more)

    def mask(self, nodes: Iterable[int]) -> torch.Tensor:
        mask = torch.zeros(len(self.y), dtype=torch.bool)
        mask[torch.as_tensor(np.asarray(nodes, dtype=np.int64))] = True
        return mask

    def without(self, gone: np.ndarray) -> "Case":
        """The graph from which some nodes were taken, the others numbered anew."""
        stay = np.setdiff1d(self.nodes, gone)
        place = np.full(len(self.y), -1)
        place[stay] = np.arange(len(stay))
        edges = place[self.edges]
        return replace(self, x=self.x[stay], y=self.y[stay], edges=edges[:, (edges >= 0).all(axis=0)])


def case(seed: int = 0, sparse: bool = False, **options: Any) -> Case:
    """By the seed: 30 to 80 nodes, 4 to 6 classes, none with less than three nodes."""
    random = np.random.default_rng(seed)
    n, classes, features = random.integers(30, 81), random.integers(4, 7), random.integers(6, 21)
    y = random.permutation(np.concatenate([np.repeat(np.arange(classes), 3), random.integers(0, classes, n)])[:n])
    x = random.normal(size=(n, features)) + 2 * random.normal(size=(classes, features))[y]
    x = np.float32(np.where(random.random(x.shape) < 0.5, 0, x))
    edges = random.integers(0, n, (2, 3 * n))
    edges = edges[:, (y[edges[0]] == y[edges[1]]) | (random.random(3 * n) < 0.4)]
    edges[0, : n // 3] = random.integers(0, n)  # a hub
    both = np.concatenate([edges, edges[::-1]], axis=1)
    fixed = {"hops": (0, 2), "expansion": 32, "ridge": 0.01, "passes": 0, **options}
    return Case(sp.csr_array(x) if sparse else x, both, y, fixed, random)


cases = st.builds(
    case,
    seed=st.integers(0, 10**6),
    sparse=st.booleans(),
    hops=st.sampled_from([(0,), (1,), (2,), (0, 1), (1, 2, 3)]),
    expansion=st.sampled_from([0, 16, 64]),
    ridge=st.sampled_from([1e-3, 0.1, 1.0]),
    sketch=st.sampled_from([5, 1024]),
)


def by_label(learner: Analytic) -> np.ndarray:
    return learner.weights_.numpy()[:, np.argsort(learner.labels_)]


def assert_same_model(a: Analytic, b: Analytic, case: Case) -> None:
    """Weights to rounding, and all that follows from them."""
    assert sorted(a.labels_) == sorted(b.labels_)
    assert dict(sorted(a.nodes_behind_class().items())) == dict(sorted(b.nodes_behind_class().items()))
    expected = by_label(b)
    assert np.linalg.norm(by_label(a) - expected) <= 1e-6 * np.linalg.norm(expected)
    data = case.data(case.nodes)
    scores = np.sort(b.predict_proba(data), axis=1)
    clear = scores[:, -1] - scores[:, -2] > 1e-5 if scores.shape[1] > 1 else np.full(len(scores), True)
    assert np.array_equal(a.predict(data)[clear], b.predict(data)[clear])


def assert_unchanged(before: State, learner: Analytic, labels: list[Any]) -> None:
    after = learner.state()
    assert learner.labels_ == labels
    assert after.facts == before.facts
    assert after.tensors.keys() == before.tensors.keys()
    assert all(torch.equal(before.tensors[name], after.tensors[name]) for name in before.tensors)


class Refused:
    """Something is refused with these words, and the model stays as it was."""

    def __init__(self, learner: Analytic, *words: str, error: type[Exception] = DataError) -> None:
        self.learner, self.words, self.error = learner, words, error

    def __enter__(self) -> None:
        self.before, self.labels = self.learner.state(), list(self.learner.labels_)

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        assert kind is not None, "it was not refused"
        if not issubclass(kind, self.error):
            return False
        for word in self.words:
            assert word in str(value), str(value)
        assert_unchanged(self.before, self.learner, self.labels)
        return True


# ------------------------------------------------------------------ learning, in any order and any pieces


@POOLED_AND_PER_CLASS
@few
@given(case=cases)
def test_the_order_and_grouping_of_classes_do_not_matter(case, sums):
    whole = case.model(sums, case.nodes)
    order = case.random.permutation(case.classes)
    cuts = np.sort(case.random.choice(np.arange(1, len(order)), 2, replace=False))
    parts = [case.of(*labels) for labels in np.split(order, cuts)]
    assert_same_model(case.model(sums, *parts), whole, case)


@few
@given(case=cases, pieces=st.integers(2, 12))
def test_rows_in_any_pieces_are_the_rows_at_once(case, pieces):
    parts = np.array_split(case.random.permutation(case.nodes), pieces)
    assert_same_model(case.model("per-class", *parts), case.model("per-class", case.nodes), case)


def test_one_row_at_a_time_is_all_rows_at_once():
    few_rows = case(3)
    one_by_one = few_rows.model("per-class", *few_rows.random.permutation(few_rows.nodes).reshape(-1, 1))
    assert_same_model(one_by_one, few_rows.model("per-class", few_rows.nodes), few_rows)


def test_pooled_and_per_class_sums_give_the_same_model():
    one = case(5, expansion=64)
    assert_same_model(one.model("pooled", one.nodes), one.model("per-class", one.nodes), one)


def test_the_weights_are_those_of_the_balanced_ridge_written_out():
    one = case(8, hops=(1,), expansion=0, ridge=0.3)
    learner = one.model("pooled", one.nodes)
    phi = rounded(torch.from_numpy(learner.embed(one.data(one.nodes))).double()).numpy()
    targets = np.eye(len(one.classes))[one.y]
    weight = 1 / np.bincount(one.y)[one.y]
    gram = (phi * weight[:, None]).T @ phi
    ridge = 0.3 * np.trace(gram) / len(gram) * np.eye(len(gram))
    np.testing.assert_allclose(
        by_label(learner), np.linalg.solve(gram + ridge, (phi * weight[:, None]).T @ targets), rtol=1e-6, atol=1e-9
    )


def test_nodes_without_any_feature_are_learned_and_predicted():
    learner = Analytic(hops=(0, 1), expansion=0, ridge=0.1)
    learner.partial_fit(Data(x=torch.zeros(4, 3), y=torch.tensor([0, 0, 1, 1])))
    assert learner.predict_proba(Data(x=torch.zeros(1, 3))).tolist() == [[0.5, 0.5]]


# ------------------------------------------------------------------ the default model takes what comes


def bits(learner: Analytic) -> dict[Any, tuple[Any, ...]]:
    """The sums of every class: number of rows, sum and products."""
    sums = learner.sums_
    return {
        label: (int(sums.count[c]), sums.total[c].tolist(), sums.gram[c].tolist())
        for c, label in enumerate(learner.labels_)
    }


@few
@given(case=cases, pieces=st.integers(2, 8))
def test_the_default_model_has_the_same_sums_to_the_bit_whatever_comes_in_which_order(case, pieces):
    whole = case.model(DEFAULT, case.nodes)
    assert isinstance(whole.sums_, PerClassSums)
    parts = np.array_split(case.random.permutation(case.nodes), pieces)
    in_parts = case.model(DEFAULT, *parts)
    half = len(parts) // 2
    shared = case.model(DEFAULT, *parts[:half]).merged(case.model(DEFAULT, *parts[half:]))
    label, gone = int(case.random.choice(case.classes)), parts[0]
    forgotten = case.model(DEFAULT, case.nodes, *([case.of(label)] if len(case.of(label)) else []))
    forgotten.forget_class(label).partial_fit(case.data(case.of(label)))
    taken = case.model(DEFAULT, case.nodes).forget_rows(case.data(case.nodes, gone)).partial_fit(case.data(gone))
    for other in (in_parts, shared, forgotten, taken):
        assert bits(other) == bits(whole)
        assert_same_model(other, whole, case)


def test_sums_that_outgrow_the_memory_are_pooled_with_a_warning_and_stay_exact(tmp_path):
    one = case(50, expansion=64, memory=1.01 * 2 * 64 * 65 / 2 * 8 / GIB)  # two classes, or all in one matrix
    learner = one.model(DEFAULT, one.of(0), one.of(1))
    learner.partial_fit(one.data(one.of(1)[:1])).forget_rows(one.data(one.of(0, 1), one.of(1)[:1]))
    with Refused(learner, "Class 1", "in parts", "analytic.memory"):
        learner.partial_fit(one.data(one.of(1, 2)))
    with pytest.warns(Pooled, match=r"3 classes.*analytic\.memory.*raise.*analytic\.expansion"):
        learner.partial_fit(one.data(one.of(2)))
    assert isinstance(learner.sums_, PooledSums)
    assert_same_model(learner, one.model("pooled", one.of(0, 1, 2)), one)
    learner.save(tmp_path / "m")
    assert isinstance(Analytic.load(tmp_path / "m").sums_, PooledSums)
    with pytest.warns(Pooled):
        merged = one.model(DEFAULT, one.of(0, 1)).merged(one.model(DEFAULT, one.of(2)))
    assert_same_model(merged, learner, one)


def test_the_sketch_is_narrower_where_the_first_task_has_few_rows():
    random = np.random.default_rng(0)
    wide = Data(x=np.float32(random.random((60, 1100))), y=np.arange(60) % 3)
    assert Analytic(hops=(0,), expansion=0).partial_fit(wide).sums_.width == 512
    assert Analytic(hops=(0,), expansion=0, sketch=700).partial_fit(wide).sums_.width == 700


# ------------------------------------------------------------------ merging


@few
@given(case=cases)
def test_merged_models_of_different_classes_are_the_model_of_all(case):
    order = case.random.permutation(case.classes)
    one, two, three = (case.model("pooled", case.of(*labels)) for labels in (order[:1], order[1:3], order[3:]))
    whole = case.model("pooled", case.nodes)
    for merged in (one.merged(two).merged(three), three.merged(one.merged(two)), two.merged(three).merged(one)):
        assert_same_model(merged, whole, case)


@few
@given(case=cases)
def test_merged_models_that_share_classes_are_the_model_of_all_rows(case):
    parts = np.array_split(case.random.permutation(case.nodes), 3)
    one, two, three = (case.model("per-class", part) for part in parts)
    states = [(each.state(), each, list(each.labels_)) for each in (one, two, three)]
    whole = case.model("per-class", case.nodes)
    for merged in (one.merged(two).merged(three), three.merged(two.merged(one))):
        assert_same_model(merged, whole, case)
    for before, each, labels in states:
        assert_unchanged(before, each, labels)


def test_a_merged_model_goes_on_learning_and_is_saved(tmp_path):
    one = case(11)
    merged = one.model("per-class", one.of(0)).merged(one.model("per-class", one.of(1)))
    merged.save(tmp_path / "m")
    later = Analytic.load(tmp_path / "m").partial_fit(one.data(one.of(*one.classes[2:])))
    assert_same_model(later, one.model("per-class", one.nodes), one)
    assert merged.choices()["merged"] is True


def test_a_merged_model_has_the_smaller_ridge_and_its_scale_whichever_comes_first():
    one = case(ridge="auto")
    a, b = (one.model("per-class", one.of(label)) for label in (0, 1))
    a.ridge_, a.scale_ = 0.1, [5.0, 2]
    b.ridge_, b.scale_ = 0.01, [9.0, 3]
    for merged in (a.merged(b), b.merged(a)):
        assert (merged.ridge_, merged.scale_) == (0.01, [9.0, 5])


def test_models_that_map_nodes_differently_are_not_merged():
    one = case(4)
    learner = one.model("pooled", one.of(0))
    others = {
        "hops": {"hops": (1,)},
        "expansion": {"expansion": 16},
        "seed": {"seed": 1},
        "sketch": {"sketch": 3},
        "ridge": {"ridge": 0.5},
        "sums": {"sums": "per-class"},
    }
    for word, changes in others.items():
        other = Analytic(**{"sums": "pooled", **one.options, **changes}).partial_fit(one.data(one.of(1)))
        with Refused(learner, "cannot be merged", word):
            learner.merged(other)
    with Refused(learner, "class 0", "per-class"):
        learner.merged(one.model("pooled", one.of(0, 1)))
    named = one.data(one.of(1))
    named.y = one.y.astype(str)
    with Refused(learner, "numbers", "strings"):
        learner.merged(Analytic(sums="pooled", **one.options).partial_fit(named))
    narrow = replace(one, x=one.x[:, :-1])
    with Refused(learner, "number of features"):
        learner.merged(narrow.model("pooled", one.of(1)))
    with Refused(learner, "learned nothing", error=ConfigError):
        learner.merged(Analytic())
    with Refused(learner, "Only models of the closed form", "not one of 'ncm'"):
        learner.merged(NCM().partial_fit(one.data(one.of(1))))


def test_a_prediction_reaches_as_far_as_the_farthest_hop():
    one = case(hops=(3, 0, 1))
    assert one.model("pooled", one.of(0)).reach == 3


# ------------------------------------------------------------------ forgetting


@few
@given(case=cases)
def test_forgetting_rows_is_never_having_learned_them(case):
    parts = np.array_split(case.random.permutation(case.nodes), 3)
    learner = case.model("per-class", *parts)
    assert learner.forget_rows(case.data(case.nodes, parts[0][: len(parts[0]) // 2])) is learner
    learner.forget_rows(case.data(parts[1], parts[1]))  # the mask may be smaller than all that taught
    kept = np.concatenate([parts[0][len(parts[0]) // 2 :], parts[2]])
    assert_same_model(learner, case.model("per-class", kept), case)


@few
@given(case=cases)
def test_pooled_sums_forget_rows_where_all_rows_of_their_classes_are_given(case):
    learner = case.model("pooled", *(case.of(label) for label in case.classes))
    gone = case.random.choice(case.nodes, len(case.nodes) // 3, replace=False)
    touched = case.of(*np.unique(case.y[gone]))
    learner.forget_rows(case.data(touched, gone))
    assert_same_model(learner, case.model("pooled", np.setdiff1d(case.nodes, gone)), case)


@POOLED_AND_PER_CLASS
@few
@given(case=cases)
def test_a_task_learned_and_forgotten_again_leaves_the_model_as_before(case, sums):
    first, second = case.of(*case.classes[:2]), case.of(*case.classes[2:])
    before, after = case.model(sums, first), case.model(sums, first, second)
    after.forget_rows(case.data(second, second))
    assert_same_model(after, before, case)
    assert after.labels_ == before.labels_


@few
@given(case=cases)
def test_forgetting_a_class_is_never_having_learned_it(case):
    learner = case.model("per-class", *np.array_split(case.random.permutation(case.nodes), 2))
    label = int(case.random.choice(case.classes))
    learner.forget_class(label)
    assert label not in learner.classes_
    assert_same_model(learner, case.model("per-class", np.flatnonzero(case.y != label)), case)
    # It may come again.
    learner.partial_fit(case.data(case.of(label)))
    assert_same_model(learner, case.model("per-class", case.nodes), case)


@POOLED_AND_PER_CLASS
@few
@given(case=cases, share=st.floats(0.05, 0.6))
def test_forgetting_nodes_is_training_on_the_graph_without_them(case, sums, share):
    train = np.sort(case.random.choice(case.nodes, 2 * len(case.nodes) // 3, replace=False))
    gone = case.random.choice(case.nodes, max(1, int(share * len(case.nodes))), replace=False)  # some never taught
    if not len(np.setdiff1d(train, gone)):
        return
    learner = case.model(sums, train).forget_nodes(case.data(train, gone))
    rest = case.without(gone)
    stay = np.setdiff1d(case.nodes, gone)
    never = rest.model(sums, np.flatnonzero(np.isin(stay, train)))
    assert_same_model(learner, never, rest)


@POOLED_AND_PER_CLASS
@pytest.mark.parametrize("taught", [True, False])
def test_forgetting_a_hub_redoes_all_that_it_reached(sums, taught):
    one = case(21, hops=(1, 2), expansion=64)
    hub = np.array([np.bincount(one.edges[0]).argmax()])
    train = one.nodes if taught else np.setdiff1d(one.nodes, hub)
    learner = one.model(sums, train)
    before = learner.weights_.clone()
    learner.forget_nodes(one.data(train, hub))
    assert float((learner.weights_ - before).norm() / before.norm()) > 1e-3
    rest = one.without(hub)
    assert_same_model(learner, rest.model(sums, rest.nodes), rest)


@POOLED_AND_PER_CLASS
def test_directed_edges_are_forgotten_in_their_direction(sums):
    both = case(22)
    one = replace(both, edges=both.edges[:, : both.edges.shape[1] // 2])
    gone = one.nodes[::7]
    rest = one.without(gone)
    learner = one.model(sums, one.nodes).forget_nodes(one.data(one.nodes, gone))
    assert_same_model(learner, rest.model(sums, rest.nodes), rest)


@POOLED_AND_PER_CLASS
def test_all_nodes_of_a_graph_may_be_forgotten(sums):
    one, label = case(6), case(6).classes[-1]
    own = one.without(np.flatnonzero(one.y != label))
    learner = one.model(sums, np.flatnonzero(one.y != label))
    before = learner.weights_.clone()
    learner.partial_fit(own.data(own.nodes)).forget_nodes(own.data(own.nodes, own.nodes))
    torch.testing.assert_close(learner.weights_, before, rtol=1e-6, atol=1e-9)


@POOLED_AND_PER_CLASS
def test_nodes_that_reached_nobody_are_forgotten_without_a_trace(sums):
    one = case(7)
    lonely = replace(one, edges=one.edges[:, (one.edges != 0).all(axis=0)])
    train = lonely.nodes[1:]
    learner = lonely.model(sums, train)
    before = learner.weights_.clone()
    learner.forget_nodes(lonely.data(train, [0]))
    assert torch.equal(learner.weights_, before)


# ------------------------------------------------------------------ what is refused


def test_what_pooled_sums_cannot_do_exactly_is_refused():
    one = case(30)
    learner = one.model("pooled", one.of(0, 1), one.of(2, 3))
    some = one.of(1)[:2]
    with Refused(learner, "Class 1", "in parts", "sums=per-class"):
        learner.partial_fit(one.data(one.of(1, *one.classes[4:])))
    with Refused(learner, "class 1", "all its nodes at once", "sums=per-class"):
        learner.forget_rows(one.data(some, some))
    with Refused(learner, "class 1", "all its nodes at once", "sums=per-class"):
        learner.forget_nodes(one.data(some, some))
    with Refused(learner, "class 1", "give all its nodes", "sums=per-class"):
        learner.forget_class(1)


@POOLED_AND_PER_CLASS
def test_what_was_never_learned_is_not_forgotten(sums):
    one = case(31, expansion=64)
    learned, unknown = one.of(0, 1, 2), one.of(3)
    learner = one.model(sums, learned)
    with Refused(learner, "Class 3 was never learned", "known are 0, 1, 2"):
        learner.forget_rows(one.data(one.nodes, unknown))
    with Refused(learner, "Class 3 was never learned"):
        learner.forget_nodes(one.data(one.nodes, learned[:1]))
    for label in (3, "0"):
        with Refused(learner, f"Class {label} was never learned"):
            learner.forget_class(label)
    with Refused(learner, "not in train_mask"):
        learner.forget_rows(one.data(learned, one.nodes[:20]))
    with Refused(learner, "Nothing would be left"):
        learner.forget_rows(one.data(learned, learned))
    with Refused(learner, "forget_mask"):
        learner.forget_rows(one.data(learned))
    with Refused(learner, "marks no node"):
        learner.forget_nodes(one.data(learned, []))
    with Refused(learner, "train_mask"):
        learner.forget_nodes(one.data([], learned[:1]))
    with Refused(learner, "trained on"):
        learner.forget_rows(replace(one, x=one.x[:, 1:]).data(learned, one.of(0)))


@POOLED_AND_PER_CLASS
def test_more_nodes_than_were_learned_are_not_forgotten(sums):
    one = case(32)
    # Nodes of class 0 that were not learned are said to have taught.
    learner = one.model(sums, np.concatenate([one.of(0)[2:], one.of(1)]))
    with Refused(learner, "Class 0", "said to have taught"):
        learner.forget_rows(one.data(one.of(0), one.of(0)))
    with Refused(learner, "Class 0", "said to have taught"):
        learner.forget_nodes(one.data(one.of(0), one.of(0)))


def test_the_same_nodes_are_not_forgotten_twice():
    one = case(36, expansion=4)  # many more nodes than columns: what remains would still look like a sum of squares
    learner = one.model("per-class", np.concatenate([one.of(0), one.of(1)]))
    again = one.data(np.concatenate([one.of(0), one.of(1)]), one.of(0)[:2])
    learner.forget_rows(again)
    with Refused(learner, "Class 0", "not forgotten before"):
        learner.forget_rows(again)


@POOLED_AND_PER_CLASS
def test_as_many_other_nodes_as_were_learned_are_not_forgotten(sums):
    one = case(33, expansion=64)
    half = len(one.of(0)) // 2
    learner = one.model(sums, np.concatenate([one.of(0)[:half], one.of(1)]))
    with Refused(learner, "class 0", "not those that were learned"):
        learner.forget_rows(one.data(one.of(0)[-half:], one.of(0)[-half:]))
    # The right nodes, but their neighbours have changed since.
    other = replace(one, edges=one.edges[:, one.random.permutation(one.edges.shape[1])[::2]])
    with Refused(learner, "class 0", "graph has changed"):
        learner.forget_rows(other.data(one.of(0)[:half], one.of(0)[:half]))
    with Refused(learner, "not those that were learned"):
        learner.forget_nodes(other.data(np.concatenate([one.of(0)[:half], one.of(1)]), one.of(0)[:1]))


def test_one_foreign_node_is_noticed_where_a_class_has_fewer_nodes_than_columns():
    one = case(34, expansion=64, hops=(0,))
    learner = one.model("per-class", np.concatenate([one.of(0)[1:], one.of(1)]))
    with Refused(learner, "class 0", "not those that were learned"):
        learner.forget_rows(one.data(one.of(0)[:1], one.of(0)[:1]))


@POOLED_AND_PER_CLASS
def test_a_task_that_cannot_be_learned_changes_nothing(sums):
    one = case(35)
    learner = one.model(sums, one.of(0, 1))
    named = one.data(one.of(2))
    named.y = one.y.astype(str)
    with Refused(learner, "of one kind"):
        learner.partial_fit(named)
    with Refused(learner, "trained on"):
        learner.partial_fit(replace(one, x=one.x[:, 1:]).data(one.of(2)))
    with Refused(learner, "No node"):
        learner.partial_fit(one.data([]))


def test_more_classes_than_the_memory_holds_are_refused_and_change_nothing():
    enough = 2 * 64 * 65 / 2 * 8 / GIB
    one = case(36, expansion=64, memory=1.01 * enough)
    learner = one.model("per-class", one.of(0), one.of(1))
    with Refused(learner, "3 classes at width 64", "analytic.memory", error=ConfigError):
        learner.partial_fit(one.data(one.of(2)))
    with Refused(learner, "analytic.memory", error=ConfigError):
        learner.merged(one.model("per-class", one.of(3)))
    # Where not even the first task fits, there is no model yet.
    fresh = Analytic(sums="per-class", **one.options)
    with pytest.raises(ConfigError, match=r"analytic\.memory"):
        fresh.partial_fit(one.data(one.of(0, 1, 2)))
    assert not fresh.is_fitted
    # Without an expansion the sums are as wide as what is propagated.
    for hops in ("auto", (0, 1)):
        with pytest.raises(ConfigError, match=f"width {one.x.shape[1] * (1 if hops == 'auto' else 2)} "):
            Analytic(sums="pooled", expansion=0, hops=hops, memory=1e-7).partial_fit(one.data(one.nodes))


# ------------------------------------------------------------------ what it chooses by itself

SMALL = 1024**2 * 8 / GIB
"""Memory for pooled sums of width 1024, and no more."""


def blobs(features: int, noise: float, homophily: float, seed: int = 0, nodes: int = 240) -> Data:
    """Four classes around random centres; a share of the edges stays inside a class, the rest runs anywhere."""
    random = np.random.default_rng(seed)
    y = np.arange(nodes) % 4
    x = np.eye(4, features)[y] * 2 + noise * random.normal(size=(nodes, features))
    ends = random.integers(0, nodes, (2, 8 * nodes))
    inside = random.random(8 * nodes) < homophily
    ends[1, inside] = ends[0, inside] + 4 * random.integers(0, nodes // 4, inside.sum())
    ends %= nodes
    edges = np.concatenate([ends, ends[::-1]], axis=1)
    train = torch.from_numpy(random.random(nodes) < 0.6)
    return Data(x=np.float32(x), edge_index=torch.from_numpy(edges), y=torch.from_numpy(y), train_mask=train)


def test_what_is_chosen_among_is_what_published_numbers_were_chosen_among():
    assert HOPS[:7] == ((0,), (1,), (2,), (3,), (4,), (5,), (6,))
    assert HOPS[7:] == ((0, 1), (0, 2), (1, 2), (2, 3), (0, 1, 2), (1, 2, 3))
    assert RIDGES == (0.001, 0.0032, 0.01, 0.032, 0.1, 0.32, 1.0, 3.2, 10.0, 32.0)
    assert EXPANSIONS == (0, 256, 512, 1024, 2048, 4096)
    assert (WIDEST_SKETCH, ENOUGH_ROWS, FIRST_RIDGE) == (1024, 32, 0.1)
    own = selection
    assert (own.DEFAULT_HOPS, own.NEAR, own.CORNER, own.LEFT_OUT_ROWS) == ((2,), 1.02, 2048, 1024)
    assert (own.REHEARSED_ROWS, own.FEW_COLUMNS, own.CLEARLY) == (768, 512, 2)
    assert own.REHEARSED_RIDGES == (0.001, 0.01, 0.1, 1.0, 10.0)


def test_neighbours_are_asked_where_they_help_and_only_there():
    noisy, clean = blobs(16, 1.5, 0.9), blobs(16, 0.1, 0.0)
    choices = [Analytic(memory=SMALL).partial_fit(data).choices() for data in (noisy, clean)]
    assert min(choices[0]["hops"]) >= 1
    assert choices[1]["hops"] == [0]
    for choice in choices:
        enough = min(choice["hops_errors"].values()) + choice["hops_error_deviation"]
        assert choice["hops_errors"]["+".join(map(str, choice["hops"]))] <= enough
        assert choice["expansion_errors"].keys() == {"0"}  # an expansion would be wider than there are rows
        assert "leave-one-out" in choice["reason"]


def test_features_are_expanded_where_a_line_does_not_part_the_classes():
    random = np.random.default_rng(0)
    angle = random.uniform(0, 2 * np.pi, 300)
    quarter = (angle // (np.pi / 4)).astype(int) % 2  # eight sectors, in turn
    rings = Data(x=np.float32(np.stack([np.cos(angle), np.sin(angle)], axis=1)), y=quarter)
    errors = Analytic(memory=SMALL, hops=(0,)).partial_fit(rings).choices()["expansion_errors"]
    assert errors["256"] < 0.5 * errors["0"]
    line = Data(x=np.float32(np.eye(4)[np.arange(300) % 4] + 0.05 * random.normal(size=(300, 4))), y=np.arange(300) % 4)
    chosen = Analytic(memory=SMALL, hops=(0,)).partial_fit(line)
    assert chosen.choices()["expansion_errors"]["0"] < 0.02  # hardly any need
    assert (chosen.predict(line) == line.y).all()


def test_the_choice_asks_training_nodes_alone_and_the_seed_decides_it(monkeypatch):
    monkeypatch.setattr("ipal.learners.analytic.room.EXPANSIONS", (0, 64))  # is chosen as 1024 is, and sooner
    data = blobs(8, 1.0, 0.8)
    first = Analytic(memory=SMALL, seed=2).partial_fit(data)
    other = data.clone()
    hidden = ~data.train_mask
    other.y[hidden] = other.y[hidden].flip(0) + 1
    other.x = data.x.copy()
    other.x[hidden.numpy()] = 0
    choice = Analytic(memory=SMALL, seed=2).partial_fit(other).choices()
    for name in ("hops", "expansion", "hops_errors", "expansion_errors"):
        assert choice[name] == first.choices()[name]
    again = Analytic(memory=SMALL, seed=2).partial_fit(data)
    assert again.state().facts == first.state().facts
    assert torch.equal(again.weights_, first.weights_)


def test_the_ridge_is_chosen_at_every_task_and_told():
    stream = TaskStream(*graph_of(load("synthetic:nodes=240,classes=6,features=16,seed=1")), ProtocolConfig(), 0)
    learner = learn(Analytic(expansion=64), stream.task(0))
    before = learner.state()
    learn(learner, stream.task(1), stream.task(2))
    told = learner.choices()["ridge"]
    assert len(told) == 3
    assert told[-1]["chosen"] == learner.ridge_
    assert [one["classes"] for one in told] == [2, 2, 2]

    def mean(ridge: str) -> float:
        return sum(one["errors"][ridge] / min(one["errors"].values()) for one in told)

    assert mean(f"{learner.ridge_:g}") <= 1.02 * min(map(mean, told[0]["errors"]))
    assert len(before.facts["choices"]["ridge"]) == 1  # a state is a value


def test_with_one_class_first_the_defaults_are_used_and_nothing_breaks():
    data = blobs(8, 0.5, 0.8)
    learner = Analytic(memory=SMALL)
    for label in range(4):
        part = data.clone()
        part.train_mask = data.train_mask & (data.y == label)
        learner.partial_fit(part)
    assert learner.choices()["hops"] == [2]
    assert learner.choices()["expansion"] == 0
    assert learner.choices()["hops_errors"] == {}
    assert "one class" in learner.choices()["reason"]
    hidden = ~data.train_mask.numpy()
    assert np.mean(learner.predict(data)[hidden] == data.y.numpy()[hidden]) > 0.9


def test_memory_and_expected_classes_limit_the_expansion():
    data = blobs(8, 0.5, 0.8, nodes=4000)
    data.train_mask &= data.y == 0  # one class of 600 rows: 512 columns are enough
    square, half = 512**2 * 8 / GIB, 512 * 513 / 2 * 8 / GIB

    def chosen(**options: Any) -> int:
        learner = Analytic(**options).partial_fit(data)
        report = learner.memory_report()["bytes"]
        assert report < 1.05 * options["memory"] * GIB + 2**17
        return learner.choices()["expansion"]

    assert chosen(memory=0.99 * square) == 256
    assert chosen(memory=square) == chosen(memory=100 * square) == 512
    assert chosen(sums="per-class", memory=10 * half) == 0  # for a hundred classes
    assert chosen(sums="per-class", memory=10 * half, expected_classes=10) == 512
    assert chosen(sums="per-class", memory=10 * half, expected_classes=11) == 256


def test_without_an_expansion_too_the_chosen_width_is_within_the_memory():
    data = blobs(16, 1.5, 0.9)
    for hops in (1, 2, 3):
        most = (16 * hops) ** 2 * 8 / GIB
        learner = Analytic(memory=most, sums="pooled").partial_fit(data)
        assert learner.choices()["expansion"] == 0
        assert all(key.count("+") < hops for key in learner.choices()["hops_errors"])
        assert learner.sums_.gram.numel() * 8 <= most * GIB


# ------------------------------------------------------------------ probabilities


def calibration_error(p: np.ndarray, truth: np.ndarray) -> float:
    """Expected difference between confidence and accuracy, in 15 bins of confidence."""
    sure, right = p.max(axis=1), p.argmax(axis=1) == truth
    bins = np.minimum((sure * 15).astype(int), 14)
    return float(sum(abs((sure - right)[bins == b].sum()) for b in range(15)) / len(p))


def test_probabilities_are_calibrated_on_nodes_that_were_not_learned():
    data = load("synthetic:nodes=1500,classes=6,features=16,signal=1,seed=3")
    stream = TaskStream(*graph_of(data), ProtocolConfig(), 0)
    learner = learn(Analytic(expansion=256), *(stream.task(index) for index in range(3)))
    found, raw = [], []
    for exam in stream.exams(2):
        scores = learner.scores(exam.graph)
        truth = np.array([learner.labels_.index(label) for label in exam.test.labels])
        for into, p in ((found, learner.probabilities(scores, exam.graph)), (raw, scores.softmax(dim=1))):
            into.append((p.numpy()[exam.test.nodes], truth))
    errors = [calibration_error(*map(np.concatenate, zip(*each, strict=True))) for each in (found, raw)]
    assert errors[0] < 0.08
    assert errors[0] < 0.3 * errors[1]


# ------------------------------------------------------------------ state as a value


@POOLED_AND_PER_CLASS
def test_saved_and_loaded_sums_and_weights_are_the_same_bits(sums, tmp_path):
    one = case(40, sketch=5)
    learner = one.model(sums, one.of(0, 1), one.of(2, 3))
    learner.save(tmp_path / "m")
    loaded = Analytic.load(tmp_path / "m")
    assert loaded.weights_.dtype == loaded.sums_.gram.dtype == loaded.sums_.total.dtype == torch.float64
    assert_unchanged(learner.state(), loaded, learner.labels_)
    for each in (learner, loaded):
        each.forget_rows(one.data(one.of(0, 1), one.of(1)))
    assert_unchanged(learner.state(), loaded, learner.labels_)


def test_a_model_of_other_random_directions_is_refused(tmp_path):
    one = case(41)
    learner = one.model("pooled", one.of(0, 1))
    state = learner.state()
    drawn_otherwise = {**state.facts["map"], "fingerprint": "0" * 16}
    State(state.tensors, {**state.facts, "map": drawn_otherwise}).save(tmp_path / "m")
    with pytest.raises(StoreError, match="random directions"):
        Analytic.load(tmp_path / "m")


@pytest.mark.parametrize("hops", ["auto", (1, 2)])
def test_settings_are_parameters_that_scikit_learn_can_clone(hops):
    learner = Analytic(hops=hops, expansion=7, ridge=0.5, sums="per-class", memory=2, expected_classes=3, sketch=9)
    expected = {"hops": hops, "expansion": 7, "ridge": 0.5, "sums": "per-class", "memory": 2.0, "expected_classes": 3}
    assert expected.items() <= learner.get_params().items()
    assert clone(learner).get_params() == learner.get_params()
    assert Analytic.from_settings(learner.settings()).get_params() == learner.get_params()


def test_sparse_features_are_never_made_dense_before_they_are_projected(monkeypatch):
    one = case(42, sparse=True, sketch=5, hops="auto", expansion=16)

    def refuse(self: Any, *arguments: Any, **options: Any) -> None:
        raise AssertionError("made dense")

    for name in ("toarray", "todense"):
        monkeypatch.setattr(sp.csr_array, name, refuse)
    learner = one.model("pooled", one.of(0, 1), one.of(2))
    assert learner.predict(one.data(one.nodes)).shape == one.y.shape


# ------------------------------------------------------------------ protocols


def graph_of(data: Any) -> tuple[Any, np.ndarray, tuple[int, ...]]:
    return data.graph, data.y, default_split(data.num_classes)


@pytest.mark.parametrize(
    "protocol",
    [
        {"test_graph": "seen"},
        {"train_graph": "seen", "test_graph": "seen"},
        {"visibility": "inductive"},
        {"visibility": "inductive", "test_graph": "seen", "accuracy": "micro"},
        {"edges": "directed"},
    ],
    ids=str,
)
@POOLED_AND_PER_CLASS
def test_every_protocol_is_learned(protocol, sums, tiny):
    stream = TaskStream(*graph_of(tiny), ProtocolConfig(**protocol), 0)
    learner = Analytic(expansion=64, sums=sums)
    for index in range(3):
        learn(learner, stream.task(index))
    assert np.mean([accuracy(learner, stream, index) for index in range(3)]) > 0.7
