"""The closed form forgets as if it had never learned; what is not exact is refused and changes nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ipal import Analytic, forget_class, forget_nodes, forget_rows
from ipal.estimator import files
from tests.closed_form.analytic_support import (
    Refused,
    assert_same_model,
    case,
    cases,
    few,
    solved,
)

pytestmark = pytest.mark.filterwarnings("ignore:The model learned:ipal.errors.Qualified")


def assert_never_learned(learner: Analytic, never: Analytic) -> None:
    """All that is kept is the same to the bit: sums, losses, calibration, lessons and classes in their order."""
    one, other = (files.snapshot(each.model_) for each in (learner, never))
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name]), name
    assert learner.classes_.tolist() == never.classes_.tolist()
    prints = [[lesson.fingerprint for lesson in each.model_.lessons] for each in (learner, never)]
    assert prints[0] == prints[1]


# ------------------------------------------------------------------ forgetting


@few
@given(case=cases, share=st.floats(0.05, 0.6))
def test_forgetting_nodes_is_training_on_the_graph_without_them(case, share):
    train = np.sort(case.random.choice(case.nodes, 2 * len(case.nodes) // 3, replace=False))
    gone = case.random.choice(case.nodes, max(1, int(share * len(case.nodes))), replace=False)  # some never taught
    if not len(np.setdiff1d(train, gone)):
        return
    learner = forget_nodes(case.model(train), case.data(train, gone))
    rest = case.without(gone)
    stay = np.setdiff1d(case.nodes, gone)
    never = rest.model(np.flatnonzero(np.isin(stay, train)))
    assert_never_learned(learner, never)
    assert_same_model(learner, never, rest)


@pytest.mark.parametrize("taught", [True, False])
def test_forgetting_a_hub_redoes_all_that_it_reached(taught):
    one = case(21, width=64)
    hub = np.array([np.bincount(one.edges[0]).argmax()])
    train = one.nodes if taught else np.setdiff1d(one.nodes, hub)
    learner = one.model(train)
    before = solved(learner).weights.clone()
    forget_nodes(learner, one.data(train, hub))
    assert float((solved(learner).weights - before).norm() / before.norm()) > 1e-3
    rest = one.without(hub)
    assert_same_model(learner, rest.model(rest.nodes), rest)


def test_all_nodes_of_a_graph_may_be_forgotten():
    one, label = case(6), case(6).classes[-1]
    own = one.without(np.flatnonzero(one.y != label))
    learner = one.model(np.flatnonzero(one.y != label))
    before = solved(learner).weights.clone()
    forget_nodes(learner.partial_fit(own.data(own.nodes)), own.data(own.nodes, own.nodes))
    assert torch.equal(solved(learner).weights, before)


# ------------------------------------------------------------------ what is refused


def test_what_was_never_learned_is_not_forgotten():
    one = case(31, width=64)
    learned, unknown = one.of(0, 1, 2), one.of(3)
    learner = one.model(learned)
    with Refused(learner, "Class 3 was never learned", "known are 0, 1, 2"):
        forget_rows(learner, one.data(one.nodes, unknown))
    with Refused(learner, "Class 3 was never learned"):
        forget_nodes(learner, one.data(one.nodes, learned[:1]))
    for label in (3, "0"):
        with Refused(learner, f"Class {label} was never learned"):
            forget_class(learner, label, one.data(learned))
    with Refused(learner, "This changes nothing that the model learned"):
        forget_class(learner, 2, one.data(one.of(0, 1)))
    with Refused(learner, "This changes nothing that the model learned"):
        forget_rows(learner, one.data(learned, unknown))
    with Refused(learner, "Nothing would be left"):
        forget_rows(learner, one.data(learned, learned))
    with Refused(learner, "forget_mask"):
        forget_rows(learner, one.data(learned))
    with Refused(learner, "which nodes are to be forgotten"):
        forget_nodes(learner, one.data(learned, []))
    with Refused(learner, "This changes nothing"):
        forget_nodes(learner, one.data([], learned[:1]))
    with Refused(learner, "trained on"):
        forget_rows(learner, replace(one, x=one.x[:, 1:]).data(learned, one.of(0)))
