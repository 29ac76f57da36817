"""The closed form learns in any order and any pieces, and is merged: always the model of all rows at once."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from ipal import NCM, Analytic, forget_class, forget_rows, merge_models
from ipal.closed_form.ridge import RIDGES
from ipal.closed_form.sums import rounded
from ipal.errors import CapacityError, ConfigError, StoreError
from ipal.estimator import files
from ipal.state.snapshot import Snapshot
from ipal.system import free_memory
from tests.closed_form.analytic_support import (
    Refused,
    assert_same_model,
    assert_same_sums,
    by_label,
    case,
    cases,
    equal,
    few,
    memory,
    solved,
)

# ------------------------------------------------------------------ learning, in any order and any pieces


@few
@given(case=cases)
def test_the_order_and_grouping_of_classes_do_not_matter(case):
    whole = case.model(case.nodes)
    order = case.random.permutation(case.classes)
    cuts = np.sort(case.random.choice(np.arange(1, len(order)), 2, replace=False))
    parts = [case.of(*labels) for labels in np.split(order, cuts)]
    assert_same_model(case.model(*parts), whole, case)


@few
@given(case=cases, pieces=st.integers(2, 8))
def test_sums_are_the_same_to_the_bit_whatever_came_went_and_came_again(case, pieces):
    whole = case.model(case.nodes)
    parts = np.array_split(case.random.permutation(case.nodes), pieces)
    half = len(parts) // 2
    shared = merge_models(case.model(*parts[:half]), case.model(*parts[half:]))
    taken = forget_rows(case.model(case.nodes), case.data(case.nodes, parts[0])).partial_fit(case.data(parts[0]))
    gone = case.of(int(case.random.choice(case.classes)))
    forgotten = case.model(case.nodes)
    forget_class(forgotten, case.y[gone[0]], case.data(case.nodes))
    assert len(forgotten.classes_) == len(case.classes) - 1
    for other in (shared, taken, forgotten.partial_fit(case.data(gone))):
        assert_same_model(other, whole, case)


def rows_of(learner, one) -> np.ndarray:
    return rounded(torch.from_numpy(learner.embed(one.data(one.nodes))).double()).numpy()


def test_weights_are_those_of_the_ridge_written_out():
    one = case(8, steps=1, ridge=0.3)
    learner = one.model(one.nodes)
    phi, number = rows_of(learner, one), len(one.classes)
    means = np.stack([phi[one.y == label].mean(axis=0) for label in one.classes])
    # Every class has its own mean and the scatter of all: that of their rows, of which a class has N / C in the mean.
    around = phi - means[one.y]
    gram = number / len(phi) * around.T @ around + means.T @ means
    expected = np.linalg.solve(gram + 0.3 * np.eye(len(gram)), means.T)
    np.testing.assert_allclose(by_label(learner), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("where", "steps", "restarts"), [("isolated", 16, (0.02, 0.3)), ("seen", 10, (0.2,)), ("both", 10, (0.2,))]
)
def test_steps_and_restarts_follow_from_the_graphs_that_are_predicted(where, steps, restarts):
    one = case(12, steps=None, restart=None, test_graph=where)
    said = replace(one, options={**one.options, "steps": 3, "restart": 0})
    for options, expected in ((one, (steps, restarts, steps)), (said, (3, (0,), 3))):
        learner = options.model(one.nodes)
        made = memory(learner).map
        assert (made.steps, made.restarts, learner.model_.reach) == expected


# ------------------------------------------------------------------ room


def test_a_width_that_does_not_fit_is_refused_before_anything_is_learned(monkeypatch):
    one = case(50)  # 32 columns: two matrices of eight bytes each
    monkeypatch.setattr(free_memory, "available", lambda: 2 * 8 * 32 * 32)
    assert len(one.model(one.nodes).classes_) == len(one.classes)
    monkeypatch.setattr(free_memory, "available", lambda: 2 * 8 * 32 * 32 - 1)
    with pytest.raises(CapacityError, match=r"A closed form of 32 columns.*set a smaller analytic\.width"):
        one.model(one.nodes)


def test_more_classes_than_columns_are_refused_and_change_nothing():
    one = case(51, width=4)
    learner = one.model(one.of(0, 1, 2, 3))
    new = replace(one, y=one.y + 4).data(one.of(0))
    with Refused(learner, "4 is too few columns for 5 classes", "set at least 5", error=ConfigError):
        learner.partial_fit(new)
    with Refused(learner, "analytic.width", error=ConfigError):
        merge_models(learner, Analytic(**one.options).partial_fit(new))


def test_every_restart_needs_some_columns():
    one = case(52, width=7, restart=(0.1, 0.2))
    with pytest.raises(ConfigError, match=r"width=7 is too few columns for 2 restarts.*at least 8"):
        one.model(one.of(0))
    replace(one, options={**one.options, "width": 8}).model(one.of(0))


# ------------------------------------------------------------------ merging


def test_merged_models_that_share_classes_have_the_losses_of_both():
    one = case(14, ridge=None)
    a, b = one.model(one.nodes[::2]), one.model(one.nodes[1::2])
    merged = merge_models(a, b)
    mine, theirs, both = (memory(each).left_out for each in (a, b, merged))
    at = torch.tensor([merged.classes_.tolist().index(label) for label in b.classes_])
    assert torch.equal(both.loss, torch.cat([mine.loss, theirs.loss]))
    assert both.count.tolist() == [*mine.count.tolist(), *theirs.count.tolist()]
    assert both.place.tolist() == [*mine.place.tolist(), *at[theirs.place].tolist()]
    assert both.task.tolist() == [0] * len(mine.task) + [1] * len(theirs.task)
    assert memory(merged).tasks == 2
    found, other_way = solved(merged), solved(merge_models(b, a))
    assert found.ridge in RIDGES
    assert (other_way.ridge, other_way.scale) == pytest.approx((found.ridge, found.scale))


def test_models_that_map_nodes_differently_are_not_merged():
    one = case(4)
    learner = one.model(one.of(0))
    others = {
        "analytic.width is 32 in one and 16": {"width": 16},
        "analytic.steps": {"steps": 3},
        "analytic.restart": {"restart": (0.2, 0.4)},
        "seed": {"seed": 1},
        "ridge": {"ridge": 0.5},
    }
    for word, changes in others.items():
        other = Analytic(**{**one.options, **changes}).partial_fit(one.data(one.of(1)))
        with Refused(learner, "cannot be merged", word):
            merge_models(learner, other)
    named = one.data(one.of(1))
    named.y = one.y.astype(str)
    with Refused(learner, "numbers", "strings"):
        merge_models(learner, Analytic(**one.options).partial_fit(named))
    narrow = replace(one, x=one.x[:, :-1])
    with Refused(learner, "number of features"):
        merge_models(learner, narrow.model(one.of(1)))
    with Refused(learner, "learned nothing", error=ConfigError):
        merge_models(learner, Analytic())
    with Refused(learner, "A model of 'analytic' cannot be merged with one of 'ncm'"):
        merge_models(learner, NCM().partial_fit(one.data(one.of(1))))


def test_defaults_said_and_unsaid_are_merged():
    one = case(15)
    unsaid = replace(one, options={**one.options, "steps": None, "restart": None})
    said = replace(one, options={**one.options, "steps": 10, "restart": 0.2})
    both = merge_models(unsaid.model(one.of(0, 1)), said.model(one.of(1, 2)))
    assert memory(both).sums.count.tolist() == [len(one.of(0)), 2 * len(one.of(1)), len(one.of(2))]
    assert_same_sums(both, said.model(one.of(0, 1), one.of(1, 2)))


# ------------------------------------------------------------------ state as a value


def test_saved_and_loaded_sums_and_weights_are_the_same_bits(tmp_path):
    one = case(40, width=16, ridge=None, restart=(0.1, 0.4))
    learner = one.model(one.of(0, 1), one.of(2, 3))
    learner.save(tmp_path / "m")
    loaded = Analytic.load(tmp_path / "m")
    assert {solved(loaded).weights.dtype, memory(loaded).sums.gram.dtype} == {torch.float64}
    assert (solved(loaded).ridge, solved(loaded).scale) == (solved(learner).ridge, solved(learner).scale)
    assert equal(files.snapshot(loaded.model_), files.snapshot(learner.model_))
    for each in (learner, loaded):
        forget_rows(each, [one.data(one.of(0, 1), one.of(1)), one.data(one.of(2, 3))])
    assert equal(files.snapshot(loaded.model_), files.snapshot(learner.model_))


def test_a_model_of_other_random_directions_is_refused(tmp_path):
    one = case(41)
    found = files.snapshot(one.model(one.of(0, 1)).model_)
    Snapshot(found.tensors, {**found.facts, "identity": "0" * 16}).save(tmp_path / "m")
    with pytest.raises(StoreError, match="random directions"):
        Analytic.load(tmp_path / "m")


def test_sparse_features_are_never_made_dense_before_they_are_projected(monkeypatch):
    one = case(42, sparse=True, width=8)

    def refuse(self: Any, *arguments: Any, **options: Any) -> None:
        raise AssertionError("made dense")

    for name in ("toarray", "todense"):
        monkeypatch.setattr(sp.csr_array, name, refuse)
    learner = one.model(one.of(0, 1), one.of(2))
    assert learner.predict(one.data(one.nodes)).shape == one.y.shape
