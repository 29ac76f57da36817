"""A model that forgot is the one that never learned: cases of `faults forgetting`, and what is refused."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ipal
from faults import forgetting
from faults.core import Failed
from faults.forgetting import CHANGES, Months, must_be_equal, tried
from ipal.errors import DataError, Qualified, StoreError
from ipal.estimator import history
from ipal.estimator.open_world.calibration import Calibration
from tests.closed_form.analytic_support import Refused

# Months may bring a class with too few nodes to be asked: that is said, and the same for both models.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Class .* was never calibrated"),
    pytest.mark.filterwarnings("ignore:The model learned .* more graph"),
]
CASES = 25
SMALL: dict[str, Any] = {"width": 16, "steps": 1}


def seeds(number: int) -> list[int]:
    return [random.Random(f"forgetting {place}").getrandbits(63) for place in range(number)]


def all_tried(folder: Path) -> None:
    for seed in seeds(CASES):
        tried(seed, folder)


@pytest.mark.parametrize("seed", seeds(CASES))
def test_a_model_that_forgot_is_the_one_that_never_learned(seed: int, tmp_path: Path) -> None:
    tried(seed, tmp_path)


def test_the_cases_try_every_change_and_graphs_of_both_kinds() -> None:
    kinds, directed = set(), 0
    for seed in seeds(CASES):
        drawn = np.random.default_rng(seed)
        directed += forgetting.drawn(drawn).directed
        forgetting.learner_of(drawn)
        kinds |= set(drawn.choice(len(CHANGES), int(drawn.integers(1, 3))).tolist())
    assert kinds == set(range(len(CHANGES)))
    assert 0 < directed < CASES


# ---------------------------------------------------------------------- what is broken is seen


def the_ridge_still_knows(patch: pytest.MonkeyPatch) -> None:
    from ipal.closed_form.ridge import LeftOut

    patch.setattr(LeftOut, "before", lambda self, task: self)


def calibration_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Calibration, "where", lambda self, rows: self)


def the_sums_stay(patch: pytest.MonkeyPatch) -> None:
    from ipal.closed_form.sums import Sums

    changed = Sums.changed
    patch.setattr(Sums, "changed", lambda self, sign, *more: changed(self, sign, *more) if sign > 0 else self)


def events_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(history, "parted", lambda past, first: (tuple(past), ()))


BROKEN = [the_ridge_still_knows, calibration_stays, the_sums_stay, events_stay]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_what_is_broken_is_seen(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken(monkeypatch)
    with pytest.raises((Failed, StoreError, DataError)):  # or a file of it, or a second change, is refused
        all_tried(tmp_path)


# ---------------------------------------------------------------------- cases of their own


@pytest.fixture
def months() -> Months:
    """Three months, named classes: one comes in the second month."""
    drawn = np.random.default_rng(0)
    kind = drawn.permutation(np.arange(330) % 3)
    month = np.where(kind == 2, drawn.integers(1, 3, 330), drawn.integers(0, 3, 330))
    x = (drawn.normal(size=(3, 6))[kind] * 2 + drawn.normal(size=(330, 6))).astype(np.float32)
    ends = drawn.integers(0, 330, (2, 2000))
    edges = np.unique(ends[:, (kind[ends[0]] == kind[ends[1]]) & (ends[0] != ends[1])], axis=1)
    names = np.array(["anchovy", "bittern", "cormorant"])[kind]
    return Months(x, edges, None, names, month, drawn.random(330) < 0.9, False)


def small(**options: Any) -> ipal.Analytic:
    return ipal.Analytic(**SMALL | options)


def persons(months: Months, month: int, number: int = 2) -> np.ndarray:
    """Some nodes that taught in a month."""
    return np.isin(np.arange(len(months.y)), np.flatnonzero(months.teaches & (months.month == month))[:number])


def marked(months: Months, gone: np.ndarray) -> list[Any]:
    return [replace(graph, forget_mask=gone[graph.ids]) for graph in months.graphs()]


def test_no_later_event_names_a_class_that_is_forgotten(months: Months, tmp_path: Path) -> None:
    learner = months.taught(small())
    ipal.rename_class(learner, "cormorant", "dotterel")
    named = replace(months, y=np.where(months.y == "cormorant", "dotterel", months.y))
    ipal.forget_class(learner, "dotterel", named.graphs()[1:])
    learner.save(tmp_path / "m")
    text = (tmp_path / "m").read_bytes()
    assert b"cormorant" not in text
    assert b"dotterel" not in text
    never = replace(months, teaches=months.teaches & (months.y != "cormorant")).taught(small())
    must_be_equal(learner, never, exact=True)
    assert [one.what for one in learner.model_.history] == ["learned"] * 3 + ["forgot"]


def test_that_something_was_forgotten_before_stays_in_the_history(months: Months) -> None:
    learner = months.taught(small())
    for month in (2, 1, 0):
        gone = persons(months, month)
        ipal.forget_nodes(learner, marked(months, gone)[month:])
        months = months.without(gone)
    assert [one.what for one in learner.model_.history] == ["learned"] * 3 + ["forgot"] * 3
    assert [one.nodes for one in learner.model_.history[3:]] == [2, 2, 2]
    must_be_equal(learner, months.taught(small()), exact=True)


def test_columns_may_come_in_another_order(months: Months) -> None:
    def named(graph: Any, order: list[int]) -> Any:
        return replace(graph, x=np.asarray(graph.x)[:, order], columns=tuple(f"c{place}" for place in order))

    first, other, gone = list(range(6)), [3, 1, 0, 2, 5, 4], persons(months, 0)
    learner, never = small(), small()
    for graph in months.graphs():
        learner.partial_fit(named(graph, first))
    for graph in months.without(gone).graphs():
        never.partial_fit(named(graph, first))
    ipal.forget_nodes(learner, [named(graph, other) for graph in marked(months, gone)])
    must_be_equal(learner, never, exact=True)


def test_that_edges_may_run_one_way_is_forgotten_with_the_only_node_for_which_they_do(months: Months) -> None:
    gone = persons(months, 1, 1)
    both = np.unique(np.concatenate([months.edges, months.edges[::-1]], axis=1), axis=1)
    both = both[:, ~gone[both].any(axis=0)]
    one_way = np.array([[np.flatnonzero(gone)[0]], [np.flatnonzero(months.month == 0)[0]]])
    months = replace(months, edges=np.concatenate([both, one_way], axis=1), directed=True)
    learner, never = months.taught(small()), months.without(gone).taught(small())
    assert learner.model_.directed
    assert not never.model_.directed
    ipal.forget_nodes(learner, marked(months, gone)[1:])
    must_be_equal(learner, never, exact=True)


def test_what_was_learned_twice_is_forgotten_twice(months: Months) -> None:
    graph, gone = months.graphs()[0], persons(months, 0)
    learner = small().partial_fit(graph)
    with pytest.warns(Qualified, match="were learned before, and count twice"):
        learner.partial_fit(graph)
    there = replace(graph, forget_mask=gone[graph.ids])
    with Refused(learner, "Graph 1 of these is given twice: give every graph once"):
        ipal.forget_nodes(learner, [there, there])
    ipal.forget_nodes(learner, there)
    assert learner.model_.history[-1].nodes == 4
    other = months.without(gone).graphs()[0]
    never = small().partial_fit(other)
    with pytest.warns(Qualified):
        never.partial_fit(other)
    must_be_equal(learner, never, exact=True)


def test_no_category_of_a_forgotten_node_is_in_the_file_in_clear(months: Months, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    here = months.month == 0
    number = np.cumsum(here) - 1
    nodes = pandas.DataFrame({"id": [f"person-{place}" for place in np.flatnonzero(here)], "label": months.y[here]})
    nodes["town"] = np.where(np.arange(len(nodes)) == 0, "Wolverhampton", np.array(["Ash", "Bere"])[number[here] % 2])
    for column in range(6):
        nodes[f"f{column}"] = months.x[here, column]
    inside = here[months.edges].all(axis=0)
    ends = number[months.edges[:, inside]]
    edges = pandas.DataFrame({"source": nodes["id"].values[ends[0]], "target": nodes["id"].values[ends[1]]})
    graph = ipal.graph_from(nodes, edges)
    learner = small().partial_fit(graph)
    gone = np.arange(graph.num_nodes) == 0
    ipal.forget_nodes(learner, replace(graph, forget_mask=gone))
    learner.save(tmp_path / "m")
    text = (tmp_path / "m").read_bytes()
    assert b"Wolverhampton" not in text
    assert b"person-" not in text


# ---------------------------------------------------------------------- what is refused


def test_a_graph_that_did_not_teach_is_refused(months: Months) -> None:
    learner, gone = months.taught(small()), persons(months, 2)
    last = marked(months, gone)[-1]
    other, place = np.asarray(last.x).copy(), int(last.train_mask.argmax())
    other[0, 0] += 1e-3
    swapped = last.y.copy()
    swapped[place] = next(label for label in ("anchovy", "bittern") if label != last.y[place])
    for stranger in (
        replace(last, x=other),
        replace(last, edge_index=last.edge_index[:, 2:]),
        replace(last, edge_weight=np.full(last.edge_index.shape[1], 2, dtype=np.float32)),
        replace(last, train_mask=last.train_mask & ~last.forget_mask),
        replace(last, y=swapped),
    ):
        with Refused(learner, "Graph 1 of those given is none that the model learned"):
            ipal.forget_nodes(learner, stranger)


def test_the_missing_graphs_are_counted_and_named_by_their_day(months: Months) -> None:
    learner, gone = months.taught(small()), persons(months, 0)
    first, second, third = marked(months, gone)
    words = ["learned 2 graph(s) more", f"{second.train_mask.sum()} training nodes on 2023-11-14"]
    with Refused(learner, *words, f"{third.train_mask.sum()} training nodes"):
        ipal.forget_nodes(learner, first)
    with Refused(learner, "learned 1 graph(s) more", words[1]):
        ipal.forget_nodes(learner, [third, first])
    with Refused(learner, "Graph 2 of those given is none that the model learned"):
        ipal.forget_nodes(learner, [first, replace(second, train_mask=first.train_mask.repeat(9)[: second.num_nodes])])


def test_that_earlier_graphs_are_not_given_is_said(months: Months) -> None:
    third = marked(months, persons(months, 2))[2]
    with pytest.warns(Qualified, match=r"learned 2 more graph\(s\), which are not given"):
        ipal.forget_nodes(months.taught(small()), third)


def test_after_a_merger_it_is_refused_and_before_it_is_not(months: Months) -> None:
    first, second, third = graphs = marked(months, persons(months, 2))
    one, other = (small(ridge=0.1).partial_fit(graph) for graph in (first, third))
    whole = ipal.merge_models(one, other)
    with Refused(whole, "Models or classes were merged since", "merge again"):
        ipal.forget_nodes(whole, [first, third])
    with Refused(whole, "both learned 1 graph(s), which would count twice"):
        ipal.merge_models(whole, other)
    united = ipal.merge_classes(months.taught(small()), ["anchovy", "bittern"], "anchovy")
    same = [replace(graph, y=np.where(graph.y == "bittern", "anchovy", graph.y)) for graph in graphs]
    with Refused(united, "none that the model learned"):  # they taught other classes
        ipal.forget_nodes(united, same[2])
    with Refused(united, "Class bittern was never learned"):
        ipal.forget_nodes(united, graphs[2])
    later = small(ridge=0.1).partial_fit(first).partial_fit(second)
    assert set(ipal.merge_classes(later, ["anchovy", "bittern"], "anchovy").classes_) == {"anchovy", "cormorant"}
    named = replace(third, y=np.where(third.y == "bittern", "anchovy", third.y))
    later.partial_fit(replace(named, forget_mask=None))
    ipal.forget_nodes(later, named)  # learned since
    assert not later.model_.lessons[-1].sealed
    assert later.model_.lessons[0].sealed


def test_what_cannot_be_left_is_refused(months: Months) -> None:
    learner, everyone = months.taught(small()), months.teaches
    with Refused(learner, "Nothing would be left"):
        ipal.forget_nodes(learner, marked(months, everyone))
    with Refused(learner, "Nothing would be left"):
        everything = [replace(graph, forget_mask=graph.train_mask) for graph in months.graphs()]
        ipal.forget_rows(learner, everything)
    with Refused(learner, "Say which nodes are to be forgotten"):
        ipal.forget_nodes(learner, marked(months, np.zeros(len(months.y), dtype=bool)))
    with Refused(learner, "This changes nothing that the model learned"):
        outside = ~months.teaches & (months.month == 0)
        ipal.forget_rows(learner, marked(months, outside))
    with Refused(learner, "This changes nothing that the model learned"):
        ipal.forget_class(learner, "cormorant", months.graphs()[0])
