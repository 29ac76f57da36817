"""The first task as a stream in small: what is learned apart, what is tested, and features that return on the way."""

import numpy as np
import pytest
import torch

from ipal.backend.runtime import Runtime
from ipal.config import ProtocolConfig
from ipal.data.csr import Neighbours
from ipal.data.datasets import load
from ipal.data.streams import Task, TaskStream
from ipal.learners.analytic import rehearsal
from ipal.learners.analytic.feature_map import FeatureMap, Propagation
from ipal.learners.analytic.spread import Spread, hop_weights
from tests.learners.analytic_support import graph_of

TWO = Spread((2,))
PLACE = (2, 0, 0.0)


def first_task(classes: int = 4, homophily: float = 0.6) -> tuple[Task, Propagation]:
    data = load(f"synthetic:nodes=400,classes={classes},homophily={homophily},seed=2")
    graph, y, *_ = graph_of(data)
    task = TaskStream(graph, y, (classes,), ProtocolConfig(), 0).task(0)
    return task, Propagation(task.graph.num_features, 1024, 0, Runtime.of())


def rehearsed(where: str, classes: int = 4) -> tuple[rehearsal.Rehearsal, Propagation]:
    task, propagation = first_task(classes)
    generator, labels = torch.Generator().manual_seed(1), torch.from_numpy(task.labels)
    return rehearsal.Rehearsal.of(task, labels, propagation, [TWO], generator, where), propagation


def test_published_numbers_were_rehearsed_with_these():
    assert (rehearsal.ROWS, rehearsal.ROWS_A_CLASS, rehearsal.MOST_ROWS) == (1024, 64, 2048)
    assert (rehearsal.COLUMNS, rehearsal.FEW_COLUMNS) == (512, 256)
    assert (rehearsal.MOST_EDGES, rehearsal.GROUPS_RIDGE) == (2**21, 0.1)
    assert rehearsal.RIDGES == (0.001, 0.01, 0.1, 1.0, 10.0)


def test_the_loss_on_both_test_graphs_is_the_mean_of_theirs():
    made = {where: rehearsed(where) for where in ("isolated", "seen", "both")}
    found = {where: one.loss(FeatureMap(propagation, TWO, 0)) for where, (one, propagation) in made.items()}
    assert len({loss.ridge for loss in found.values()}) == 1  # so that they can be compared
    for part in ("rows", "squared"):
        rows = {where: getattr(loss, part) for where, loss in found.items()}
        torch.testing.assert_close(rows["both"], (rows["isolated"] + rows["seen"]) / 2)
        assert not torch.allclose(rows["isolated"], rows["seen"])
    assert found["seen"].mean > found["isolated"].mean  # edges between the groups mix classes


def test_what_is_learned_apart_is_tested_apart_or_together():
    (isolated, _), (seen, _), (both, _) = (rehearsed(where) for where in ("isolated", "seen", "both"))
    assert isolated.tested == [isolated.learned]
    assert both.tested[0] is both.learned
    assert torch.equal(both.learned[PLACE], isolated.learned[PLACE])
    assert torch.equal(both.tested[1][PLACE], seen.tested[0][PLACE])
    assert not torch.equal(both.tested[1][PLACE], both.learned[PLACE])


def test_groups_are_halves_of_the_classes_and_follow_a_prediction():
    task, propagation = first_task(homophily=0.9)
    truth = load("synthetic:nodes=400,classes=4,homophily=0.9,seed=2").y[task.origin]
    labels = torch.from_numpy(task.labels)
    found = rehearsal.groups(task, task.graph, labels, propagation, torch.Generator().manual_seed(1))
    of_class = [set(found[task.nodes][task.labels == c].tolist()) for c in range(4)]
    assert all(len(one) == 1 for one in of_class)
    assert sorted(one.pop() for one in of_class) == [0, 0, 1, 1]
    hidden = np.setdiff1d(np.arange(len(truth)), task.nodes)
    group_of = dict(zip(task.labels.tolist(), found[task.nodes].tolist(), strict=True))
    assert np.mean(found[hidden] == [group_of[label] for label in truth[hidden].tolist()]) > 0.9


def test_a_large_graph_is_rehearsed_with_a_part_of_its_edges():
    graph = load("synthetic:nodes=2000,classes=4,seed=2").graph
    assert rehearsal.thinned(graph, graph.num_edges) is graph
    some = rehearsal.thinned(graph, graph.num_edges // 4)
    assert some.neighbours.symmetric
    assert 0.2 < some.num_edges / graph.num_edges < 0.3
    whole = {tuple(edge) for edge in graph.edges.T.tolist()}
    assert {tuple(edge) for edge in some.edges.T.tolist()} < whole


def test_thinned_edges_keep_their_weights():
    edges, weights = np.array([[0, 1, 2, 3], [1, 2, 3, 4]]), np.arange(2, 6, dtype=np.float32)
    rows = Neighbours.of_edges(edges, 5, undirected=True, weights=weights)
    kept = rows.thinned(0.5)
    assert 0 < kept.num_edges < rows.num_edges
    given = {frozenset(pair): weight for pair, weight in zip(edges.T.tolist(), weights.tolist(), strict=True)}
    pairs = zip(*(part.tolist() for chunk in kept.edge_chunks() for part in chunk), strict=True)
    assert [given[frozenset(pair)] for pair in pairs] == kept.weights.tolist()


def test_hop_weights_by_hand():
    assert hop_weights(0, 0.5) == [1.0]
    assert hop_weights(2, 0.5) == [0.5, 0.25, 0.25]
    assert hop_weights(2, 0.0) == [0.0, 0.0, 1.0]
    assert sum(hop_weights(6, 0.1)) == pytest.approx(1)
    assert Spread((2,), 0.5).steps == 0.75
    assert Spread((0, 3)).steps == 3
    assert [str(Spread((0, 3))), str(Spread((3,), 0.1))] == ["0+3", "3, restart 0.1"]


def test_features_return_as_the_recursion_says():
    graph, propagation = (
        load("synthetic:nodes=60,classes=3,features=5,seed=1").graph,
        Propagation(5, 9, 0, Runtime.of()),
    )
    hat = graph.normalised.astype(np.float64)
    x = first = torch.nn.functional.normalize(torch.from_numpy(graph.x).double()).numpy()
    for _ in range(3):
        x = 0.8 * (hat @ x) + 0.2 * first
    expected = torch.nn.functional.normalize(torch.from_numpy(x)).float()
    several = [(1, 0, 0.0), (3, 0, 0.2), (0, 0, 0.0), (2, 0, 0.4)]
    found = propagation.by_place(graph, several, torch.arange(60))
    torch.testing.assert_close(found[3, 0, 0.2], expected)
    for place in several:
        assert torch.equal(found[place], propagation.rows(graph, [place]))


def test_fewer_columns_at_a_time_give_the_same_rows(monkeypatch):
    graph = load("synthetic:nodes=60,classes=3,features=70,seed=1").graph
    propagation = Propagation(70, 1024, 0, Runtime.of())
    whole = propagation.rows(graph, [PLACE])
    for width in (4, 24, 32):
        monkeypatch.setattr(Propagation, "_width", lambda self, nodes, width=width: width)
        torch.testing.assert_close(propagation.rows(graph, [PLACE]), whole, rtol=1e-6, atol=1e-7)
