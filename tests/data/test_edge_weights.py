"""Weights of edges: what becomes of them in rows, in sums over neighbours, in parts of a graph, in files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ipal.data.csr import Neighbours
from ipal.data.dataset import content_hash
from ipal.data.datasets import convert, load, look
from ipal.data.graph import Graph, checked_graph
from ipal.errors import DataError
from tests.support import Command, write_graph


def weighed_graph() -> tuple[Graph, NDArray[np.float64]]:
    """A graph with a weight for every edge, and its weights as a matrix."""
    random = np.random.default_rng(0)
    plain = checked_graph(np.eye(40, dtype=np.float32), random.integers(0, 40, (2, 150)), undirected=True)
    rows, columns = plain.neighbours.targets(0, 40), plain.neighbours.indices
    weights = random.uniform(0.1, 2, (40, 40))
    weights = ((weights + weights.T) / 2).astype(np.float32)
    dense = np.zeros((40, 40))
    dense[rows, columns] = weights[rows, columns]
    return Graph(plain.x, replace(plain.neighbours, weights=weights[rows, columns])), dense


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
    within = Graph(graph.x, graph.neighbours.within(groups)).aggregation("sum").toarray()
    np.testing.assert_allclose(within, a * (groups[:, None] == groups), atol=1e-6)
    one_way = replace(graph.neighbours, weights=np.arange(1, graph.num_edges + 1, dtype=np.float32))
    turned = one_way.transposed()
    assert not one_way.symmetric
    assert turned.weights is not None
    assert sorted(turned.weights.tolist()) == sorted(one_way.weights.tolist())  # type: ignore[union-attr]


# ---------------------------------------------------------------------- from pairs to rows


def reference(edges: NDArray[np.int64], n: int, weights: NDArray[np.float32], *, undirected: bool) -> NDArray[Any]:
    """The mean over all times that a pair is given, in whichever direction where `undirected`, as a dense matrix."""
    given: dict[tuple[int, int], list[float]] = {}
    for source, target, weight in zip(*edges.tolist(), weights.tolist(), strict=True):
        for pair in {(target, source), (source, target)} if undirected else {(target, source)}:
            given.setdefault(pair, []).append(weight)
    a = np.zeros((n, n))
    for pair, values in given.items():
        a[pair] = sum(values) / len(values)
    np.fill_diagonal(a, 0)
    return a


pairs_with_weights = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(
            st.tuples(
                st.integers(0, n - 1),
                st.integers(0, n - 1),
                st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.floats(2.0**-100, 2.0**100, width=32),
            ),
            max_size=40,
        ),
    )
)


@settings(deadline=None, max_examples=60)
@given(pairs_with_weights, st.booleans())
def test_rows_of_weighted_pairs_are_means_of_repeats(
    drawn: tuple[int, list[tuple[int, int, float]]], undirected: bool
) -> None:
    n, triples = drawn
    edges = np.array([pair[:2] for pair in triples], dtype=np.int64).reshape(-1, 2).T
    weights = np.array([weight for *_, weight in triples], dtype=np.float32)
    rows = Neighbours.of_edges(edges, n, undirected=undirected, weights=weights)
    assert (rows.indptr.dtype, rows.indices.dtype) == (np.int64, np.int32)
    assert all((np.diff(rows.indices[a:b]) > 0).all() for a, b in zip(rows.indptr, rows.indptr[1:], strict=False))
    if (weights == 1).all():
        assert rows.weights is None
    expected = reference(edges, n, weights, undirected=undirected)
    found = rows.matrix(0, n, rows.values(0, n))
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-6)
    assert rows.num_edges == np.count_nonzero(expected)
    assert rows.weights is None or rows.weights.dtype == np.float32
    assert not undirected or rows.symmetric


def test_repeated_edges_mean_the_same_with_weights_and_without() -> None:
    """No jump where one unrelated weight moves away from one; a repeat counts once, with the mean."""
    edges = np.array([[0, 0, 0, 1, 3, 2], [1, 1, 1, 2, 2, 3]])
    expected = np.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]])
    for weights in (None, np.ones(6), np.array([1, 1, 1, 1.000001, 1, 1])):
        graph = checked_graph(np.ones((4, 1), dtype=np.float32), edges, undirected=True, weights=weights)
        np.testing.assert_allclose(graph.aggregation("sum").toarray(), expected, atol=1e-5)
    found = Neighbours.of_edges(edges, 4, undirected=True, weights=np.array([1, 2, 6, 1, 1, 4], dtype=np.float32))
    assert found.matrix(0, 4, found.values(0, 4)).toarray()[[0, 2], [1, 3]].tolist() == [3, 2.5]


# ---------------------------------------------------------------------- files

WEIGHTS = np.random.default_rng(5).uniform(0.1, 3, 120)


def weighted(path: Path, weights: Any = WEIGHTS, **changes: Any) -> Path:
    return write_graph(path, edge_weight=weights, **changes)


@pytest.mark.parametrize("undirected", [True, False])
def test_a_file_and_its_folder_hold_the_weights(undirected: bool, tmp_path: Path) -> None:
    path = weighted(tmp_path / "a.npz")
    before = load(str(path), undirected=undirected)
    assert before.graph.neighbours.weights is not None
    edges = np.load(path)["edge_index"]
    expected = reference(edges, 40, WEIGHTS.astype(np.float32), undirected=undirected)
    np.testing.assert_allclose(before.graph.aggregation("sum").toarray(), expected, rtol=1e-6)
    convert(str(path), tmp_path / "a.graph", undirected=undirected)
    after = load(str(tmp_path / "a.graph"), undirected=undirected)
    assert after.hash == before.hash == content_hash(after.graph, after.y)
    assert isinstance(after.graph.neighbours.weights, np.memmap)
    assert np.array_equal(after.graph.edge_weight, before.graph.edge_weight)  # type: ignore[arg-type]
    assert look(str(path), tmp_path)["edge_weights"]
    assert not look(str(write_graph(tmp_path / "b.npz")), tmp_path)["edge_weights"]


def test_the_hash_covers_weights_where_there_are_any(tmp_path: Path) -> None:
    def hash_of(**changes: Any) -> str:
        return load(str(write_graph(tmp_path / "a.npz", **changes))).hash

    plain = hash_of()
    # Computed before weights were read.
    assert plain == "fc1d2617c476632a54a5e5e48bb44f78b391a7e7e321b92f65c69e44cc2d0f1f"
    assert hash_of(edge_weight=np.ones(120)) == plain
    assert hash_of(edge_weight=np.ones((120, 1), dtype=int)) == plain
    one, other = hash_of(edge_weight=WEIGHTS), hash_of(edge_weight=WEIGHTS[::-1])
    assert len({plain, one, other}) == 3
    order = np.random.default_rng(0).permutation(120)
    edges = np.load(write_graph(tmp_path / "b.npz"))["edge_index"]
    assert hash_of(edge_index=edges[:, order], edge_weight=WEIGHTS[order]) == one


REFUSED: dict[str, tuple[Any, str]] = {
    "negative": (np.where(np.arange(120) == 7, -1.0, 1), "weight -1.0: weights must be finite and positive"),
    "beyond 32 bits": (np.full(120, 1e300), "weight inf"),
    "too large together": (np.full(120, 3e38), "too large to be added up"),
    "too few": (np.ones(119), r"one number for each of 120 edges.* shape \(119,\)"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_are_no_weights_is_refused_in_one_sentence(kind: str, tmp_path: Path, command: Command) -> None:
    weights, words = REFUSED[kind]
    path = weighted(tmp_path / "a.npz", weights)
    with pytest.raises(DataError, match=words):
        load(str(path))
    done = command("data", path)
    assert done.code != 0
    assert done.err.count("\n") == 1


def test_damaged_weights_of_a_folder_are_refused(tmp_path: Path) -> None:
    convert(str(weighted(tmp_path / "a.npz")), tmp_path / "a.graph")
    file = tmp_path / "a.graph" / "edge_weight.npy"
    sound = np.load(file)
    for damaged, words in [
        (sound[1:], "does not fit the other arrays"),
        (-sound, "does not fit"),
        (np.where(np.arange(len(sound)) == 3, np.inf, sound), "does not fit"),
        (sound.astype(np.float64), "does not fit"),
        (sound * 2, "was changed after it was written"),
    ]:
        np.save(file, damaged)
        with pytest.raises(DataError, match=words):
            load(str(tmp_path / "a.graph"))
    file.unlink()
    with pytest.raises(DataError, match="was changed after it was written"):
        load(str(tmp_path / "a.graph"))
