"""Graphs in rows: against dense matrices and edge lists, whole and in pieces."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.data.csr import Neighbours, aggregation_rows
from ipal.data.graph import Graph, checked_graph

N = 40


def random_edges(seed: int = 0) -> NDArray[np.int64]:
    """Pairs with loops and repeats among them."""
    return np.random.default_rng(seed).integers(0, N, (2, 300))


def dense(neighbours: Neighbours) -> NDArray[np.bool_]:
    n = neighbours.num_nodes
    return neighbours.matrix(0, n, np.ones(neighbours.num_edges, dtype=np.int64)).toarray()


def wanted(edges: NDArray[np.int64], *, undirected: bool) -> NDArray[np.int64]:
    a = np.zeros((N, N), dtype=np.int64)
    a[edges[1], edges[0]] = 1
    a = np.maximum(a, a.T) if undirected else a
    np.fill_diagonal(a, 0)
    return a


@pytest.fixture(params=[4_000_000, 7])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Everything in one go, and in pieces."""
    monkeypatch.setattr(Neighbours.chunks, "__defaults__", (request.param,))
    return int(request.param)


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint64])
def test_edges_become_rows_without_loops_and_repeats(undirected: bool, kind: type) -> None:
    edges = random_edges()
    rows = Neighbours.of_edges(edges.astype(kind), N, undirected=undirected)
    assert np.array_equal(dense(rows), wanted(edges, undirected=undirected))
    assert (rows.indptr.dtype, rows.indices.dtype) == (np.int64, np.int32)
    assert all((np.diff(rows.indices[a:b]) > 0).all() for a, b in zip(rows.indptr, rows.indptr[1:], strict=False))


@pytest.mark.parametrize("ascending", [True, False])
def test_a_part_of_a_graph_is_the_part_of_its_matrix(ascending: bool) -> None:
    nodes = np.random.default_rng(1).permutation(N)[:25]
    nodes = np.sort(nodes) if ascending else nodes
    graph = Graph(np.arange(N, dtype=np.float32)[:, None], random_edges())
    part = graph.induced(nodes)
    assert np.array_equal(part.aggregation("sum").toarray(), graph.aggregation("sum").toarray()[np.ix_(nodes, nodes)])
    assert part.x[:, 0].tolist() == nodes.tolist()
    assert part.neighbours.matrix(0, 25, np.ones(part.num_edges)).has_sorted_indices


def test_nothing_and_everything_are_parts_too() -> None:
    graph = Graph(np.ones((N, 1), dtype=np.float32), random_edges())
    nothing = graph.induced(np.zeros(0, dtype=np.int64))
    assert (nothing.num_nodes, nothing.num_edges) == (0, 0)
    assert graph.induced(np.arange(N)) is graph


def test_edges_inside_groups_are_those_between_equals() -> None:
    rows = Neighbours.of_edges(random_edges(), N)
    groups = np.random.default_rng(2).integers(0, 3, N)
    assert np.array_equal(dense(rows.within(groups)), dense(rows) * (groups[:, None] == groups))


def test_whether_edges_run_both_ways_is_found_or_known() -> None:
    x = np.ones((N, 1), dtype=np.float32)
    assert not Graph(x, random_edges()).symmetric
    both = checked_graph(x, random_edges(), undirected=True)
    assert both.symmetric
    assert Neighbours(both.neighbours.indptr, both.neighbours.indices).symmetric
    one_fewer = both.edges[:, 1:]
    assert not Graph(x, one_fewer).symmetric
    assert both.induced(np.arange(20)).symmetric


def test_rows_of_the_propagation_are_rows_of_the_whole_bit_for_bit(at_once: int) -> None:
    graph = Graph(np.ones((N, 1), dtype=np.float32), random_edges())
    whole = graph.normalised
    assert whole.indices.dtype == np.int32
    rows = [aggregation_rows(graph.neighbours, "symmetric", *some) for some in ((0, 7), (7, 8), (8, 8), (8, N))]
    stacked = sp.vstack(rows, format="csr")
    for part in ("data", "indices", "indptr"):
        assert np.array_equal(getattr(stacked, part), getattr(whole, part))
    assert graph.neighbours.scale.dtype == np.float32
    np.testing.assert_allclose(graph.neighbours.scale, 1 / np.sqrt(np.diff(graph.neighbours.indptr) + 1), rtol=1e-6)
