"""The closed form forgets as if it had never learned; what is not exact is refused and changes nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ipal
from ipal import Analytic, forget_class, forget_nodes, forget_rows, merge_classes, merge_models
from ipal.errors import NotFittedError
from ipal.estimator import files
from tests.closed_form.analytic_support import (
    POOLED_AND_PER_CLASS,
    Refused,
    assert_same_model,
    case,
    cases,
    few,
    memory,
    solved,
)


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


@POOLED_AND_PER_CLASS
@few
@given(case=cases)
def test_forgetting_rows_is_never_having_learned_them(case, sums):
    first, second, third = np.array_split(case.random.permutation(case.nodes), 3)
    gone, rest = np.array_split(first, 2)
    learner = case.model(sums, first, second, third)
    # In any order; a graph of which all is forgotten never came.
    graphs = [case.data(third), case.data(first, gone), case.data(second, second)]
    assert forget_rows(learner, graphs) is learner
    assert_never_learned(learner, case.model(sums, rest, third))
    assert_same_model(learner, case.model(sums, np.concatenate([rest, third])), case)


@POOLED_AND_PER_CLASS
@few
@given(case=cases)
def test_forgetting_a_class_is_never_having_learned_it(case, sums):
    one, two = np.array_split(case.random.permutation(case.nodes), 2)
    learner = case.model(sums, one, two)
    label = int(case.random.choice(case.classes))
    others = case.model(sums, *(part[case.y[part] != label] for part in (one, two)))
    forget_class(learner, label, [case.data(part) for part in (one, two)])
    assert_never_learned(learner, others)
    assert_same_model(learner, case.model(sums, np.flatnonzero(case.y != label)), case)
    # It may come again.
    learner.partial_fit(case.data(case.of(label)))
    assert_same_model(learner, case.model(sums, case.nodes), case)


@POOLED_AND_PER_CLASS
def test_forgetting_chooses_the_ridge_and_calibrates_anew(sums):
    one = case(37, ridge=None, calibration=0.2, width=64)
    early, late, gone = one.nodes[::2], one.nodes[1::2], one.nodes[1::8]
    learner = forget_rows(one.model(sums, early, late), one.data(late, gone))
    assert_never_learned(learner, one.model(sums, early, np.setdiff1d(late, gone)))
    assert memory(learner).tasks == 2
    assert set(memory(learner).left_out.task.tolist()) == {0, 1}


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
    assert_never_learned(learner, never)
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
    given = [0] * (what == "forget_class")
    with pytest.raises(NotFittedError, match="This model has learned nothing yet"):
        getattr(ipal, what)(Analytic(), *given, one.data(one.nodes))  # nothing is asked of what is to be forgotten


@POOLED_AND_PER_CLASS
def test_all_graphs_from_the_first_one_concerned_are_needed(sums):
    one = case(30)
    first, second, third = one.of(0), one.of(1), one.of(2, 3)
    learner = one.model(sums, first, second, third)
    with Refused(learner, "1 graph(s) more", f"missing: the graph with {len(third)} training nodes"):
        forget_class(learner, 1, one.data(second))
    with Refused(learner, "2 graph(s) more", f"with {len(second)} training nodes", f"with {len(third)} training nodes"):
        forget_rows(learner, one.data(first, first[:1]))
    with Refused(learner, "1 graph(s) more", f"with {len(second)} training nodes"):
        forget_nodes(learner, [one.data(first, first[:1]), one.data(third)])
    forget_class(learner, 1, [one.data(second), one.data(third)])
    assert_never_learned(learner, one.model(sums, first, third))


@POOLED_AND_PER_CLASS
def test_some_nodes_of_a_class_that_came_twice_are_forgotten_in_both_graphs(sums):
    one = case(30)
    some, again = one.of(1)[:2], one.of(1, *one.classes[4:])
    parts = (one.of(0, 1), one.of(2, 3), again)
    learner = one.model(sums, *parts)
    forget_rows(learner, [one.data(parts[0], some), one.data(parts[1]), one.data(again, some)])
    never = one.model(sums, np.setdiff1d(parts[0], some), parts[1], np.setdiff1d(again, some))
    assert_never_learned(learner, never)


@POOLED_AND_PER_CLASS
@pytest.mark.filterwarnings("ignore:These training nodes of this graph were learned before")
def test_a_graph_that_came_twice_is_given_once_for_both(sums):
    one = case(38)
    part, between, gone = one.of(0, 1), one.of(3), one.of(1)[:1]
    rest = np.setdiff1d(part, gone)
    learner = one.model(sums, one.of(2), part, between, part)
    with Refused(learner, "Graph 1 of these is given"):
        forget_rows(learner, [*[one.data(part, gone)] * 3, one.data(between)])
    forget_rows(learner, [one.data(part, gone), one.data(between)])
    assert_never_learned(learner, one.model(sums, one.of(2), rest, between, rest))
    assert learner.history_[-1]["nodes"] == 2


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
            forget_class(learner, label, one.data(learned))
    with Refused(learner, "No training node of these graphs is of class 2"):
        forget_class(learner, 2, one.data(one.of(0, 1)))
    with Refused(learner, "none of them ever taught"):
        forget_rows(learner, one.data(learned, unknown))
    with Refused(learner, "Nothing would be left"):
        forget_rows(learner, one.data(learned, learned))
    with Refused(learner, "forget_mask"):
        forget_rows(learner, one.data(learned))
    with Refused(learner, "which nodes are to be forgotten"):
        forget_nodes(learner, one.data(learned, []))
    with Refused(learner, "train_mask"):
        forget_nodes(learner, one.data([], learned[:1]))
    with Refused(learner, "trained on"):
        forget_rows(learner, replace(one, x=one.x[:, 1:]).data(learned, one.of(0)))


@POOLED_AND_PER_CLASS
def test_the_same_nodes_are_not_forgotten_twice(sums):
    one = case(36, width=4)  # many more nodes than columns: what remains would still look like a sum of squares
    learned, gone = one.of(0, 1), one.of(0)[:2]
    learner = forget_rows(one.model(sums, learned), one.data(learned, gone))
    with Refused(learner, "none that taught the model", "without what was forgotten since"):
        forget_rows(learner, one.data(learned, gone))
    # The graph as the model knows it by now may be given again.
    rest = np.setdiff1d(learned, gone)
    forget_rows(learner, one.data(rest, rest[:1]))
    assert_never_learned(learner, one.model(sums, rest[1:]))


@POOLED_AND_PER_CLASS
def test_graphs_other_than_those_that_taught_are_refused(sums):
    one = case(33)
    learned = np.concatenate([one.of(0)[:-1], one.of(1)])
    learner = one.model(sums, learned)
    gone, extra = one.of(0)[:1], one.of(0)
    others = {
        "as many other nodes": one.data(np.concatenate([one.of(0)[1:], one.of(1)]), one.of(0)[1:2]),
        "more nodes": one.data(np.concatenate([extra, one.of(1)]), gone),
        "fewer nodes": one.data(learned[:-1], gone),
        "other edges": replace(one, edges=one.edges[:, 1:]).data(learned, gone),
        "other features": replace(one, x=np.float32(one.x * (1 + (one.nodes == 3))[:, None])).data(learned, gone),
        "other labels": replace(one, y=np.where(one.nodes == one.of(1)[0], 0, one.y)).data(learned, gone),
    }
    for other in others.values():
        for forget in (forget_rows, forget_nodes):
            with Refused(learner, "none that taught the model", "as they were learned"):
                forget(learner, other)
    with Refused(learner, "Graph 2 of these is none that taught the model"):
        forget_rows(learner, [one.data(learned, gone), others["fewer nodes"]])
    forget_rows(learner, one.data(learned, gone))
    assert_never_learned(learner, one.model(sums, learned[1:]))


@POOLED_AND_PER_CLASS
def test_after_models_or_classes_were_merged_nothing_is_forgotten_that_came_before(sums):
    one = case(39)
    learner = merge_classes(one.model(sums, one.of(0, 1)), [0, 1], 7)
    seven = replace(one, y=np.where(one.y < 2, 7, one.y))
    learner.partial_fit(seven.data(one.of(2)))
    with Refused(learner, "none that taught the model"):  # of one class now
        forget_rows(learner, [seven.data(one.of(0, 1), one.of(0)[:1]), seven.data(one.of(2))])
    # What came since can be.
    before = memory(learner).sums.count.clone()
    forget_rows(learner, seven.data(one.of(2), one.of(2)[:1]))
    assert (before - memory(learner).sums.count).tolist() == [0, 1]
    merged = merge_models(one.model(sums, one.of(0)), one.model(sums, one.of(1)))
    with Refused(merged, "merged since", "change the model from before"):
        forget_rows(merged, one.data(one.of(1), one.of(1)[:1]))


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
