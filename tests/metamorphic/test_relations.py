"""A hundred cases of the relations of `faults metamorphic`, and that they see what is broken."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults import metamorphic
from faults.core import Case, Failed
from faults.metamorphic import RELATIONS, refusal
from ipal.estimator import edits
from ipal.estimator.convert import sources
from ipal.estimator.learner import Learner

EACH = 5
"""Cases of a relation."""


def tried(relation: Callable[..., None], folder: Path, seed: int = 0) -> list[str | None]:
    first = RELATIONS.index(relation)
    found = []
    for number in range(first, first + EACH * len(RELATIONS), len(RELATIONS)):
        place = folder / f"{number}"
        place.mkdir()
        found.append(refusal(Case(number, random.Random(f"metamorphic {seed} {number}"), place)))
    return found


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.__name__)
def test_it_holds_or_is_refused_and_is_not_always_refused(relation: Callable[..., None], tmp_path: Path) -> None:
    found = tried(relation, tmp_path)
    assert None in found, found
    for sentence in filter(None, found):
        assert sentence.endswith("."), sentence


# ---------------------------------------------------------------------- what is broken is seen


def directions_of_a_data_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sources, "both_ways", lambda data: data)


def scores_depend_on_when_they_are_asked_for(patch: pytest.MonkeyPatch) -> None:
    drawn, scores = np.random.default_rng(0), Learner.predict_proba
    patch.setattr(Learner, "predict_proba", lambda self, data: scores(self, data) + drawn.normal() * np.float32(1e-6))


def the_other_model_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(edits, "merge_models", lambda one, other: one)


def a_person_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(edits, "forget_rows", lambda learner, data: learner)


def the_order_of_nodes_counts(patch: pytest.MonkeyPatch) -> None:
    scores = Learner.decision_function

    def tilted(self: Learner, data: Any) -> Any:
        found = scores(self, data)
        return found + np.linspace(0, 1, len(found))[:, None].astype(np.float32) * np.arange(found.shape[1])

    patch.setattr(Learner, "decision_function", tilted)


BROKEN = {
    directions_of_a_data_are_kept: metamorphic.by_any_route,
    scores_depend_on_when_they_are_asked_for: metamorphic.pickled,
    the_other_model_is_lost: metamorphic.merged_models,
    a_person_stays: metamorphic.forgotten,
    the_order_of_nodes_counts: metamorphic.nodes_in_another_order,
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_what_is_broken_is_seen(broken: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken(monkeypatch)
    with pytest.raises(Failed, match=BROKEN[broken].__name__):
        tried(BROKEN[broken], tmp_path)
