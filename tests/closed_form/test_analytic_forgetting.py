"""The closed form forgets as if it had never learned; what sums do not allow is refused and changes nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ipal
from ipal import Analytic, forget_class, forget_nodes, forget_rows
from ipal.errors import NotFittedError
from tests.closed_form.analytic_support import (
    POOLED_AND_PER_CLASS,
    Refused,
    assert_same_model,
    assert_same_sums,
    case,
    cases,
    few,
    solved,
)

# ------------------------------------------------------------------ forgetting


@POOLED_AND_PER_CLASS
@few
@given(case=cases)
def test_forgetting_rows_is_never_having_learned_them(case, sums):
    parts = np.array_split(case.random.permutation(case.nodes), 3)
    learner = case.model(sums, *parts)
    assert forget_rows(learner, case.data(case.nodes, parts[0][: len(parts[0]) // 2])) is learner
    forget_rows(learner, case.data(parts[1], parts[1]))  # the mask may be smaller than all that taught
    kept = np.concatenate([parts[0][len(parts[0]) // 2 :], parts[2]])
    assert_same_model(learner, case.model(sums, kept), case)


@POOLED_AND_PER_CLASS
@few
@given(case=cases)
def test_forgetting_a_class_is_never_having_learned_it(case, sums):
    learner = case.model(sums, *np.array_split(case.random.permutation(case.nodes), 2))
    label = int(case.random.choice(case.classes))
    others = [other for other in learner.classes_.tolist() if other != label]
    if sums == "per-class":
        forget_class(learner, label)
    else:
        forget_rows(learner, case.data(case.of(label), case.of(label)))
    assert learner.classes_.tolist() == others, "in the order in which they came"
    assert_same_model(learner, case.model(sums, np.flatnonzero(case.y != label)), case)
    # It may come again.
    learner.partial_fit(case.data(case.of(label)))
    assert_same_model(learner, case.model(sums, case.nodes), case)


@POOLED_AND_PER_CLASS
@few
@given(case=cases, share=st.floats(0.05, 0.6))
def test_forgetting_nodes_is_training_on_the_graph_without_them(case, sums, share):
    train = np.sort(case.random.choice(case.nodes, 2 * len(case.nodes) // 3, replace=False))
    gone = case.random.choice(case.nodes, max(1, int(share * len(case.nodes))), replace=False)  # some never taught
    if not len(np.setdiff1d(train, gone)):
        return
    learner = forget_nodes(case.model(sums, train), case.data(train, gone))
    rest = case.without(gone)
    stay = np.setdiff1d(case.nodes, gone)
    never = rest.model(sums, np.flatnonzero(np.isin(stay, train)))
    assert_same_model(learner, never, rest)


@POOLED_AND_PER_CLASS
@pytest.mark.parametrize("taught", [True, False])
def test_forgetting_a_hub_redoes_all_that_it_reached(sums, taught):
    one = case(21, width=64)
    hub = np.array([np.bincount(one.edges[0]).argmax()])
    train = one.nodes if taught else np.setdiff1d(one.nodes, hub)
    learner = one.model(sums, train)
    before = solved(learner).weights.clone()
    forget_nodes(learner, one.data(train, hub))
    assert float((solved(learner).weights - before).norm() / before.norm()) > 1e-3
    rest = one.without(hub)
    assert_same_model(learner, rest.model(sums, rest.nodes), rest)


@POOLED_AND_PER_CLASS
def test_directed_edges_are_forgotten_in_their_direction(sums):
    both = case(22)
    one = replace(both, edges=both.edges[:, : both.edges.shape[1] // 2])
    gone = one.nodes[::7]
    rest = one.without(gone)
    learner = forget_nodes(one.model(sums, one.nodes), one.data(one.nodes, gone))
    assert_same_model(learner, rest.model(sums, rest.nodes), rest)


@POOLED_AND_PER_CLASS
def test_all_nodes_of_a_graph_may_be_forgotten(sums):
    one, label = case(6), case(6).classes[-1]
    own = one.without(np.flatnonzero(one.y != label))
    learner = one.model(sums, np.flatnonzero(one.y != label))
    before = solved(learner).weights.clone()
    forget_nodes(learner.partial_fit(own.data(own.nodes)), own.data(own.nodes, own.nodes))
    assert torch.equal(solved(learner).weights, before)


@POOLED_AND_PER_CLASS
def test_nodes_that_reached_nobody_are_forgotten_without_a_trace(sums):
    one = case(7)
    lonely = replace(one, edges=one.edges[:, (one.edges != 0).all(axis=0)])
    train = lonely.nodes[1:]
    learner = lonely.model(sums, train)
    before = solved(learner).weights.clone()
    forget_nodes(learner, lonely.data(train, [0]))
    assert torch.equal(solved(learner).weights, before)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("what", ["forget_rows", "forget_nodes", "forget_class"])
def test_a_model_that_learned_nothing_forgets_nothing(what):
    one = case(29)
    given = 0 if what == "forget_class" else one.data(one.nodes)  # and nothing is asked of what is to be forgotten
    with pytest.raises(NotFittedError, match="This model has learned nothing yet"):
        getattr(ipal, what)(Analytic(), given)


def test_pooled_sums_forget_no_class_without_its_nodes():
    one = case(30)
    learner = one.model("pooled", one.of(0, 1), one.of(2, 3))
    with Refused(learner, "Pooled sums", "class 1", "forget all its nodes", "(--rows)", "analytic.sums=per-class"):
        forget_class(learner, 1)
    forget_rows(learner, one.data(one.of(1), one.of(1)))
    assert_same_sums(learner, one.model("pooled", one.of(0, 2, 3)))


def test_some_nodes_of_a_class_are_learned_and_forgotten_by_themselves_with_pooled_sums():
    one = case(30)
    some = one.of(1)[:2]
    learner = one.model("pooled", one.of(0, 1), one.of(2, 3))
    learner.partial_fit(one.data(one.of(1, *one.classes[4:])))  # class 1 comes again
    for _ in range(2):  # it was learned twice
        forget_rows(learner, one.data(some, some))
    rest = np.setdiff1d(one.of(1), some)
    first, last = np.concatenate([one.of(0), rest]), np.concatenate([rest, one.of(*one.classes[4:])])
    assert_same_sums(learner, one.model("pooled", first, one.of(2, 3), last))


@POOLED_AND_PER_CLASS
def test_what_was_never_learned_is_not_forgotten(sums):
    one = case(31, width=64)
    learned, unknown = one.of(0, 1, 2), one.of(3)
    learner = one.model(sums, learned)
    with Refused(learner, "Class 3 was never learned", "known are 0, 1, 2"):
        forget_rows(learner, one.data(one.nodes, unknown))
    with Refused(learner, "Class 3 was never learned"):
        forget_nodes(learner, one.data(one.nodes, learned[:1]))
    for label in (3, "0"):
        with Refused(learner, f"Class {label} was never learned"):
            forget_class(learner, label)
    with Refused(learner, "not in train_mask"):
        forget_rows(learner, one.data(learned, one.nodes[:20]))
    with Refused(learner, "Nothing would be left"):
        forget_rows(learner, one.data(learned, learned))
    with Refused(learner, "forget_mask"):
        forget_rows(learner, one.data(learned))
    with Refused(learner, "marks no node"):
        forget_nodes(learner, one.data(learned, []))
    with Refused(learner, "train_mask"):
        forget_nodes(learner, one.data([], learned[:1]))
    with Refused(learner, "trained on"):
        forget_rows(learner, replace(one, x=one.x[:, 1:]).data(learned, one.of(0)))


@POOLED_AND_PER_CLASS
def test_more_nodes_than_were_learned_are_not_forgotten(sums):
    one = case(32)
    # Nodes of class 0 that were not learned are said to have taught.
    learner = one.model(sums, np.concatenate([one.of(0)[2:], one.of(1)]))
    with Refused(learner, "Class 0", "said to have taught"):
        forget_rows(learner, one.data(one.of(0), one.of(0)))
    with Refused(learner, "Class 0", "said to have taught"):
        forget_nodes(learner, one.data(one.of(0), one.of(0)))


@POOLED_AND_PER_CLASS
def test_the_same_nodes_are_not_forgotten_twice(sums):
    one = case(36, width=4)  # many more nodes than columns: what remains would still look like a sum of squares
    learner = one.model(sums, np.concatenate([one.of(0), one.of(1)]))
    again = one.data(np.concatenate([one.of(0), one.of(1)]), one.of(0)[:2])
    forget_rows(learner, again)
    with Refused(learner, "Class 0", "not forgotten before"):
        forget_rows(learner, again)


@POOLED_AND_PER_CLASS
def test_as_many_other_nodes_as_were_learned_are_not_forgotten(sums):
    one = case(33, width=128)
    half = len(one.of(0)) // 2
    learner = one.model(sums, np.concatenate([one.of(0)[:half], one.of(1)]))
    with Refused(learner, "class 0", "not those that were learned"):
        forget_rows(learner, one.data(one.of(0)[-half:], one.of(0)[-half:]))
    # The right nodes, but their neighbours have changed since.
    other = replace(one, edges=one.edges[:, one.random.permutation(one.edges.shape[1])[::2]])
    with Refused(learner, "class 0", "graph has changed"):
        forget_rows(learner, other.data(one.of(0)[:half], one.of(0)[:half]))
    with Refused(learner, "not those that were learned"):
        forget_nodes(learner, other.data(np.concatenate([one.of(0)[:half], one.of(1)]), one.of(0)[:1]))


@POOLED_AND_PER_CLASS
def test_one_foreign_node_is_noticed_where_there_are_fewer_nodes_than_columns(sums):
    one = case(34, width=128, steps=0)
    learner = one.model(sums, np.concatenate([one.of(0)[1:], one.of(1)]))
    with Refused(learner, "class 0", "not those that were learned"):
        forget_rows(learner, one.data(one.of(0)[:1], one.of(0)[:1]))


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
