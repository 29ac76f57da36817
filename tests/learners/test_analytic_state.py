"""The closed form's state is a value: saved, loaded and cloned it is the same; sparse features stay sparse."""

from typing import Any

import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone

from ipal.errors import StoreError
from ipal.learners import Analytic
from ipal.learners.state import State
from tests.learners.analytic_support import POOLED_AND_PER_CLASS, assert_unchanged, case

# ------------------------------------------------------------------ state as a value


@POOLED_AND_PER_CLASS
def test_saved_and_loaded_sums_and_weights_are_the_same_bits(sums, tmp_path):
    one = case(40, sketch=5)
    learner = one.model(sums, one.of(0, 1), one.of(2, 3))
    learner.save(tmp_path / "m")
    loaded = Analytic.load(tmp_path / "m")
    assert {loaded.weights_.dtype, *(part.dtype for part in loaded.sums_.parts([0, 1]))} == {torch.float64}
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


@POOLED_AND_PER_CLASS
def test_a_file_of_an_earlier_version_has_the_sketch_and_the_sums_of_its_settings(sums, tmp_path):
    one = case(43, sketch=5)
    learner = one.model(sums, one.of(0, 1), one.of(2))
    state = learner.state()
    earlier = {name: value for name, value in state.facts["map"].items() if name not in ("sketch", "sums")}
    State(state.tensors, {**state.facts, "map": earlier}).save(tmp_path / "m")
    assert_unchanged(state, Analytic.load(tmp_path / "m"), learner.labels_)


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
