"""Weights of edges."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ipal.data.csr import Norm
from ipal.data.graph import Graph, checked_graph


def weighed_graph() -> tuple[Graph, NDArray[np.float64]]:
    """A graph with a weight for every edge, and its weights as a matrix."""
    random = np.random.default_rng(0)
    plain = checked_graph(np.eye(40, dtype=np.float32), random.integers(0, 40, (2, 150)), undirected=True)
    rows, weights = plain.neighbours.targets(0, 40), random.uniform(0.1, 2, (40, 40))
    weights = ((weights + weights.T) / 2).astype(np.float32)
    dense = np.zeros((40, 40))
    dense[rows, plain.indices] = weights[rows, plain.indices]
    return Graph.of(plain.x, replace(plain.neighbours, weights=weights[rows, plain.indices])), dense


def test_weights_of_edges_count_in_every_sum_over_neighbours() -> None:
    graph, a = weighed_graph()
    scale = 1 / np.sqrt(a.sum(axis=1) + 1)
    np.testing.assert_allclose(graph.normalised.toarray(), scale[:, None] * (a + np.eye(40)) * scale, atol=1e-6)
    total = a.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(graph.aggregation("mean").toarray(), a / np.where(total > 0, total, 1), atol=1e-6)
    np.testing.assert_allclose(graph.aggregation("sum").toarray(), a, atol=1e-6)
    assert graph.symmetric


def test_parts_of_a_graph_keep_the_weights_of_their_edges() -> None:
    graph, a = weighed_graph()
    nodes = np.random.default_rng(1).permutation(40)[:25]
    np.testing.assert_allclose(graph.induced(nodes).aggregation("sum").toarray(), a[np.ix_(nodes, nodes)], atol=1e-6)
    groups = np.arange(40) % 3
    within = Graph.of(graph.x, graph.neighbours.within(groups)).aggregation("sum").toarray()
    np.testing.assert_allclose(within, a * (groups[:, None] == groups), atol=1e-6)
    one_way = replace(graph.neighbours, weights=np.arange(1, graph.num_edges + 1, dtype=np.float32))
    turned = one_way.transposed()
    assert not one_way.symmetric
    assert turned.weights is not None
    assert sorted(turned.weights.tolist()) == sorted(one_way.weights.tolist())  # type: ignore[union-attr]


def test_weights_of_one_give_the_same_bits_as_none() -> None:
    graph, _ = weighed_graph()
    none, ones = (
        Graph.of(graph.x, replace(graph.neighbours, weights=weights))
        for weights in (None, np.ones(graph.num_edges, dtype=np.float32))
    )
    norms: tuple[Norm, ...] = ("symmetric", "mean", "sum")
    for norm in norms:
        assert np.array_equal(none.aggregation(norm).toarray(), ones.aggregation(norm).toarray())
