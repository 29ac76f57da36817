"""The closed form learns in any order and any pieces, and is merged: always the model of all rows at once."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ipal.learners.analytic.class_sums import PerClassSums, PooledSums
from ipal.learners.analytic.room import GIB, Pooled, Room
from torch_geometric.data import Data

from ipal.config import ProtocolConfig
from ipal.data.streams import TaskStream
from ipal.errors import ConfigError
from ipal.learners import NCM, Analytic
from ipal.learners.analytic.rows import rounded
from tests.learners.analytic_support import (
    POOLED_AND_PER_CLASS,
    Refused,
    assert_same_model,
    assert_unchanged,
    by_label,
    case,
    cases,
    few,
    graph_of,
)
from tests.learners.support import accuracy, learn

DEFAULT = "auto"


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


def test_the_room_of_sums_by_hand():
    room = Room((1,), 0.0, 0, "auto", 2.0**-7, 100, 1024)
    assert room.fits(PooledSums, 1024, 9)  # 1024 * 1024 numbers of 8 bytes are a 128th of a GiB
    assert not room.fits(PooledSums, 1025, 9)
    # Three classes of 4 * 5 / 2 numbers: 240 bytes.
    with pytest.warns(Pooled, match=r"3 classes of their own at width 4 take 2\.2e-07 GiB"):
        replace(room, memory=1e-7).within(PerClassSums.empty(4, torch.device("cpu")), 3)


def test_while_too_few_nodes_have_judged_no_class_has_a_say_in_the_scale():
    one = case(13)
    assert one.model(DEFAULT, one.of(0)[:3]).scale_ == [1.0, 0]


def test_the_sketch_is_narrower_where_the_first_task_has_few_rows():
    random = np.random.default_rng(0)
    wide = Data(x=np.float32(random.random((60, 1100))), y=np.arange(60) % 3)
    assert Analytic(hops=(0,), expansion=0).partial_fit(wide).sums_.width == 768
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


# ------------------------------------------------------------------ protocols


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


def test_scores_of_some_nodes_are_rows_of_those_of_all(tiny):
    labels = torch.from_numpy(tiny.y)
    edges = torch.from_numpy(tiny.graph.edges)
    model = Analytic(hops=(1,), expansion=64).partial_fit(Data(torch.from_numpy(tiny.graph.x), edges, y=labels))
    some = torch.tensor([5, 2, 11])
    whole, part = model.look(tiny.graph), model.look(tiny.graph, some)
    torch.testing.assert_close(part.scores, whole.scores[some])
    assert part.labels.tolist() == whole.labels[some.numpy()].tolist()
