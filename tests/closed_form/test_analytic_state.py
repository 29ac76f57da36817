"""The closed form's state is a value: saved, loaded and cloned it is the same; sparse features stay sparse."""

from typing import Any

import pytest
import scipy.sparse as sp
import torch

from ipal import Analytic, forget_rows
from ipal.errors import StoreError
from ipal.estimator import files
from ipal.state.snapshot import Snapshot
from tests.closed_form.analytic_support import POOLED_AND_PER_CLASS, case, equal, memory, solved

# ------------------------------------------------------------------ state as a value


@POOLED_AND_PER_CLASS
def test_saved_and_loaded_sums_and_weights_are_the_same_bits(sums, tmp_path):
    one = case(40, width=16, ridge=None, restart=(0.1, 0.4))
    learner = one.model(sums, one.of(0, 1), one.of(2, 3))
    learner.save(tmp_path / "m")
    loaded = Analytic.load(tmp_path / "m")
    gram = memory(loaded).sums.gram
    assert {solved(loaded).weights.dtype, *(half.dtype for half in gram)} == {torch.float64}
    assert len(gram) == (1 if sums == "pooled" else 4)
    assert (solved(loaded).ridge, solved(loaded).scale) == (solved(learner).ridge, solved(learner).scale)
    assert equal(files.snapshot(loaded.model_), files.snapshot(learner.model_))
    for each in (learner, loaded):
        forget_rows(each, [one.data(one.of(0, 1), one.of(1)), one.data(one.of(2, 3))])
    assert equal(files.snapshot(loaded.model_), files.snapshot(learner.model_))


def test_a_model_of_other_random_directions_is_refused(tmp_path):
    one = case(41)
    found = files.snapshot(one.model("pooled", one.of(0, 1)).model_)
    Snapshot(found.tensors, {**found.facts, "identity": "0" * 16}).save(tmp_path / "m")
    with pytest.raises(StoreError, match="random directions"):
        Analytic.load(tmp_path / "m")


def test_sparse_features_are_never_made_dense_before_they_are_projected(monkeypatch):
    one = case(42, sparse=True, width=8)

    def refuse(self: Any, *arguments: Any, **options: Any) -> None:
        raise AssertionError("made dense")

    for name in ("toarray", "todense"):
        monkeypatch.setattr(sp.csr_array, name, refuse)
    learner = one.model("pooled", one.of(0, 1), one.of(2))
    assert learner.predict(one.data(one.nodes)).shape == one.y.shape
