"""Node importance against numbers worked by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipal.data.centrality import node_weights, pagerank
from ipal.data.graph import Graph, checked_graph


def graph(edges: list[tuple[int, int]], n: int, *, undirected: bool = False) -> Graph:
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return checked_graph(np.ones((n, 1), dtype=np.float32), ends, undirected=undirected)


# 0 -> 1, 0 -> 2, 1 -> 2: no cycle, so that every rank follows from earlier ones.
CHAIN = graph([(0, 1), (0, 2), (1, 2)], 3)


def test_pagerank_by_hand() -> None:
    r_0 = 0.4  # nobody points to it: 1 - alpha
    r_1 = 0.6 * r_0 / 2 + 0.4  # node 0 points to two nodes, each gets half
    r_2 = 0.6 * (r_0 / 2 + r_1 / 1) + 0.4
    # Edges read the wrong way round would rank node 0 first; in-degrees would divide by 0 and 1 instead.
    np.testing.assert_allclose(pagerank(CHAIN, alpha=0.6), [r_0, r_1, r_2], rtol=1e-12)


def test_pagerank_without_damping_is_one_everywhere() -> None:
    np.testing.assert_array_equal(pagerank(CHAIN, alpha=0.0), [1, 1, 1])
    np.testing.assert_allclose(pagerank(graph([], 2)), [0.15, 0.15])


# A path through all nodes leaves none isolated; further edges are added freely.
connected = st.integers(2, 15).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=30),
    )
)


@settings(deadline=None, max_examples=25)
@given(connected, st.floats(0, 0.95))
def test_pagerank_sums_to_the_number_of_nodes_and_solves_its_equation(
    drawn: tuple[int, list[tuple[int, int]]], alpha: float
) -> None:
    n, more = drawn
    path = [(i, i + 1) for i in range(n - 1)]
    drawn_graph = graph(path + more, n, undirected=True)
    r = pagerank(drawn_graph, alpha, tolerance=1e-10)
    assert r.sum() == pytest.approx(n, rel=1e-8)
    a = drawn_graph.aggregation("sum").toarray().astype(np.float64)
    np.testing.assert_allclose(r, alpha * a @ (r / a.sum(axis=0)) + 1 - alpha, atol=1e-7)


def test_degree_counts_incoming_edges_and_the_node_itself_by_hand() -> None:
    # Outgoing edges would give 3, 2, 1.
    assert node_weights(CHAIN, "degree", 0.6).tolist() == [1, 2, 3]


@pytest.mark.parametrize("undirected", [True, False])
def test_weights_of_edges_count(undirected: bool) -> None:
    random = np.random.default_rng(0)
    edges, weights = random.integers(0, 20, (2, 60)), random.uniform(0.1, 3, 60)
    some = checked_graph(np.ones((20, 1), dtype=np.float32), edges, undirected=undirected, weights=weights)
    a = some.aggregation("sum").toarray().astype(np.float64)
    out = a.sum(axis=0)
    r = pagerank(some, 0.7, tolerance=1e-10)
    np.testing.assert_allclose(r, 0.7 * a @ (r / np.where(out > 0, out, 1)) + 0.3, atol=1e-7)
    assert np.abs(r - pagerank(Graph(some.x, some.edges), 0.7)).max() > 0.01
    np.testing.assert_allclose(node_weights(some, "degree", 0.6), a.sum(axis=1) + 1, rtol=1e-6)


def test_weights_are_chosen_by_name() -> None:
    np.testing.assert_allclose(node_weights(CHAIN, "pagerank", 0.6), pagerank(CHAIN, 0.6))
    assert node_weights(CHAIN, "degree", 0.6).tolist() == [1, 2, 3]
    assert node_weights(CHAIN, "uniform", 0.6).tolist() == [1, 1, 1]
