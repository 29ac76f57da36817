"""The closed form's state is a value: saved, loaded and cloned it is the same; sparse features stay sparse."""

from typing import Any

import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone

from ipal.errors import StoreError
from ipal.learners import Analytic
from ipal.learners.state import State
from tests.closed_form.analytic_support import POOLED_AND_PER_CLASS, assert_unchanged, case

# ------------------------------------------------------------------ state as a value


@POOLED_AND_PER_CLASS
def test_saved_and_loaded_sums_and_weights_are_the_same_bits(sums, tmp_path):
    one = case(40, width=16, ridge=None, restart=(0.1, 0.4))
    learner = one.model(sums, one.of(0, 1), one.of(2, 3))
    learner.save(tmp_path / "m")
    loaded = Analytic.load(tmp_path / "m")
    assert {loaded.weights_.dtype, *(half.dtype for half in loaded.sums_.gram)} == {torch.float64}
    assert len(loaded.sums_.gram) == (1 if sums == "pooled" else 4)
    assert (loaded.solved.ridge, loaded.solved.scale) == (learner.solved.ridge, learner.solved.scale)
    assert_unchanged(learner.state(), loaded, learner.labels_)
    for each in (learner, loaded):
        each.forget_rows(one.data(one.of(0, 1), one.of(1)))
    assert_unchanged(learner.state(), loaded, learner.labels_)


def test_a_model_of_other_random_directions_is_refused(tmp_path):
    one = case(41)
    learner = one.model("pooled", one.of(0, 1))
    state = learner.state()
    State(state.tensors, {**state.facts, "map": "0" * 16}).save(tmp_path / "m")
    with pytest.raises(StoreError, match="random directions"):
        Analytic.load(tmp_path / "m")


@POOLED_AND_PER_CLASS
def test_a_saved_model_holds_sums_of_products_as_whole_numbers_of_32_bits(sums, tmp_path):
    one = case(43)
    learner = one.model(sums, one.of(0, 1), one.of(2))
    learner.save(tmp_path / "m")
    tensors = State.load(tmp_path / "m").tensors
    assert tensors["sums.gram"].dtype == torch.int32
    assert tensors["sums.gram"].shape == (1 if sums == "pooled" else 3, 32 * 32)
    assert tensors.keys() >= {"sums.count", "sums.total", "left_out.loss", "left_out.count", "weights"}


def test_a_model_that_was_not_asked_is_solved_before_it_is_saved(tmp_path):
    one = case(44)
    learner = one.model("pooled", one.of(0, 1))
    assert learner.solved_ is None
    learner.save(tmp_path / "m")
    assert torch.equal(Analytic.load(tmp_path / "m").weights_, learner.weights_)


@pytest.mark.parametrize("restart", [None, 0.3, (0.1, 0.2)])
def test_settings_are_parameters_that_scikit_learn_can_clone(restart):
    learner = Analytic(width=16, steps=3, restart=restart, ridge=0.5, sums="per-class", memory=2)
    expected = {"width": 16, "steps": 3, "restart": restart, "ridge": 0.5, "sums": "per-class", "memory": 2.0}
    assert expected.items() <= learner.get_params().items()
    assert clone(learner).get_params() == learner.get_params()
    assert Analytic.from_settings(learner.settings()).get_params() == learner.get_params()


def test_sparse_features_are_never_made_dense_before_they_are_projected(monkeypatch):
    one = case(42, sparse=True, width=8)

    def refuse(self: Any, *arguments: Any, **options: Any) -> None:
        raise AssertionError("made dense")

    for name in ("toarray", "todense"):
        monkeypatch.setattr(sp.csr_array, name, refuse)
    learner = one.model("pooled", one.of(0, 1), one.of(2))
    assert learner.predict(one.data(one.nodes)).shape == one.y.shape
