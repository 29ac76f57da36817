"""Propagated and expanded rows against numbers worked by hand."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from ipal.learners.analytic.spread import Place, Spread
from torch import Tensor

from ipal.backend.runtime import Runtime
from ipal.data.csr import Neighbours
from ipal.data.graph import Graph, checked_graph
from ipal.learners.analytic import feature_map
from ipal.learners.analytic.feature_map import (
    BLOCK,
    COLUMNS_AT_ONCE,
    ROWS_AT_ONCE,
    FeatureMap,
    Propagation,
    pieces,
    random_features,
    to_unit,
)
from ipal.system.memory_budget import Budget

HERE = Runtime.of()

CPU = torch.device("cpu")
# Two nodes joined by an edge, a third alone; features of lengths 2, 5 and 0.
PAIR = checked_graph(np.array([[2, 0], [3, 4], [0, 0]], dtype=np.float32), np.array([[0], [1]]), undirected=True)


def at(*hops: int) -> list[Place]:
    """Plain hops over edges of one type."""
    return [(hop, 0, 0.0) for hop in hops]


def floats(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def test_rows_of_unit_length_by_hand() -> None:
    rows = floats([3, 4], [0, 0], [0, -2])
    to_unit(rows, torch.tensor([5.0, 0.0, 2.0], dtype=torch.float64))
    torch.testing.assert_close(rows, floats([0.6, 0.8], [0, 0], [0, -1]))


def test_random_features_by_hand() -> None:
    # (1, 2) on the directions (1, 0), (-1, 0), (0, 3), (1, 1), (0, -1), (0, 0), (0, 0), (0, 0): eight, so half of each.
    directions = floats([1, -1, 0, 1, 0, 0, 0, 0], [0, 0, 3, 1, -1, 0, 0, 0])
    torch.testing.assert_close(random_features(floats([1, 2]), directions), floats([0.5, 0, 3, 1.5, 0, 0, 0, 0]))


def test_random_features_keep_squared_lengths_in_the_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(20, 10, generator=generator))
    lengths = random_features(x, torch.randn(10, 20000, generator=generator)).square().sum(dim=1)
    torch.testing.assert_close(lengths, torch.ones(20), rtol=0.05, atol=0)


def test_hops_by_hand() -> None:
    # Unit rows (1, 0), (0.6, 0.8), (0, 0). With loops both ends of the edge have degree 2: each becomes the mean,
    # (0.8, 0.4), of length sqrt 0.8; and so again. The third has nothing to spread.
    none, one, two = Propagation(2, 8, 0, HERE).rows(PAIR, at(0, 1, 2)).split(2, dim=1)
    mean = [2 / math.sqrt(5), 1 / math.sqrt(5)]
    torch.testing.assert_close(none, floats([1, 0], [0.6, 0.8], [0, 0]))
    torch.testing.assert_close(one, floats(mean, mean, [0, 0]))
    torch.testing.assert_close(two, floats(mean, mean, [0, 0]))
    torch.testing.assert_close(Propagation(2, 8, 0, HERE).rows(PAIR, at(2, 0))[0], floats(*mean, 1, 0))


def test_what_is_spread_is_not_normalised_in_between() -> None:
    # A path of three: after one hop the ends and the middle differ in length, and the second hop must feel it.
    random = np.random.default_rng(0)
    path = checked_graph(random.normal(size=(3, 4)).astype(np.float32), np.array([[0, 1], [1, 2]]), undirected=True)
    x = path.x / np.linalg.norm(path.x, axis=1, keepdims=True)
    spread = np.linalg.matrix_power(path.normalised.toarray().astype(np.float64), 2) @ x
    expected = spread / np.linalg.norm(spread, axis=1, keepdims=True)
    np.testing.assert_allclose(Propagation(4, 8, 0, HERE).rows(path, at(2)).numpy(), expected, rtol=1e-5)


def test_projecting_before_and_after_propagation_is_the_same() -> None:
    random = np.random.default_rng(0)
    x, edges = random.normal(size=(30, 50)).astype(np.float32), random.integers(0, 30, (2, 80))
    graph = checked_graph(x, edges, undirected=True)
    narrow = Propagation(50, 20, 3, HERE)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    spread = graph.normalised.astype(np.float64) @ unit @ narrow.projection
    expected = spread / np.linalg.norm(spread, axis=1, keepdims=True)
    assert narrow.columns == 20
    np.testing.assert_allclose(narrow.rows(graph, at(1)).numpy(), expected, rtol=1e-4, atol=1e-6)


def test_numbering_the_nodes_anew_gives_the_same_rows_bit_for_bit() -> None:
    random = np.random.default_rng(1)
    x, edges = random.normal(size=(60, 12)).astype(np.float32), random.integers(0, 60, (2, 300))
    order = random.permutation(60)
    features = FeatureMap(Propagation(12, 8, 0, HERE), Spread((1, 3)), 0)
    graph = checked_graph(x, edges, undirected=True)
    place = np.argsort(order)
    shuffled = checked_graph(x[order], place[edges], undirected=True)
    assert torch.equal(features.propagated(shuffled), features.propagated(graph)[torch.from_numpy(order)])


@pytest.mark.parametrize("expansion", [0, 6])
def test_sparse_and_dense_features_give_the_same_rows(expansion) -> None:
    features = FeatureMap(Propagation(2, 8, 0, HERE), Spread((0, 1)), expansion)
    assert (features.inputs, features.width) == (4, expansion or 4)
    thin = Graph(sp.csr_array(PAIR.x), PAIR.edges)
    dense, sparse = (features.expanded(features.propagated(graph)) for graph in (PAIR, thin))
    assert dense.shape == (3, features.width)
    torch.testing.assert_close(sparse, dense)


def test_rows_to_be_scored_are_rows_to_be_added_up_in_single_precision() -> None:
    features = FeatureMap(Propagation(2, 8, 0, HERE), Spread((0, 1)), 16)
    x = features.propagated(PAIR)
    assert features.expanded(x).dtype == torch.float64
    torch.testing.assert_close(features.expanded(x).float(), features.expanded(x, torch.float32))
    assert features.propagated(PAIR) is x  # kept


def test_a_map_is_a_function_of_its_fields_and_every_field_tells_in_the_fingerprint() -> None:
    features = FeatureMap(Propagation(50, 20, 0, HERE), Spread((0, 1)), 16)
    same = FeatureMap(Propagation(50, 20, 0, HERE), Spread((0, 1)), 16)
    assert same.fingerprint == features.fingerprint
    propagation = features.propagation
    others = [
        dataclasses.replace(features, spread=Spread((1, 0))),
        dataclasses.replace(features, expansion=17),
        dataclasses.replace(features, expansion=0),
        *(
            dataclasses.replace(features, propagation=dataclasses.replace(propagation, **{name: value}))
            for name, value in {"seed": 1, "sketch": 21}.items()
        ),
    ]
    assert len({each.fingerprint for each in [features, *others]}) == 6


def test_pieces_are_all_rows_in_order() -> None:
    x = torch.arange(2 * ROWS_AT_ONCE + 3)
    assert [len(piece) for piece in pieces(x)] == [ROWS_AT_ONCE, ROWS_AT_ONCE, 3]
    assert torch.equal(torch.cat(pieces(x)), x)
    assert [len(piece) for piece in pieces(x[:0])] == [0]


# ---------------------------------------------------------------------- large graphs


def wide_graph(form: str, features: int = 3 * BLOCK + 5, n: int = 70) -> Graph:
    random = np.random.default_rng(5)
    x = random.normal(size=(n, features)) * (random.random((n, features)) < (1 if form == "dense" else 0.3))
    x = x.astype(np.float32)
    edges = random.integers(0, n, (2, 400))
    return checked_graph(x if form == "dense" else sp.csr_array(x), edges, undirected=False)


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("sketch", [20, 2 * BLOCK + 3, 1000])
@pytest.mark.parametrize("cached", [0, feature_map.CACHED])
def test_columns_in_blocks_are_the_whole(form: str, sketch: int, cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_map, "CACHED", cached)
    graph = wide_graph(form)
    propagation = Propagation(graph.num_features, sketch, 0, HERE)
    x = graph.x.toarray() if isinstance(graph.x, sp.csr_array) else graph.x
    spread = x / np.linalg.norm(x, axis=1, keepdims=True).astype(np.float64)
    spread = spread @ propagation.projection if sketch < graph.num_features else spread
    a = graph.normalised.toarray().astype(np.float64)
    expected = []
    for _ in range(3):
        expected.append(spread / np.linalg.norm(spread, axis=1, keepdims=True))
        spread = a @ spread
    rows = propagation.rows(graph, at(2, 0))
    assert rows.dtype == torch.float32
    np.testing.assert_allclose(rows.numpy(), np.concatenate([expected[2], expected[0]], axis=1), rtol=1e-4, atol=1e-6)
    some = torch.tensor([3, 60, 3])
    assert torch.equal(propagation.rows(graph, at(2, 0), at=some), rows[some])


def test_a_small_graph_in_one_block_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = wide_graph("sparse", features=9 * BLOCK)
    propagation = Propagation(graph.num_features, 5 * BLOCK + 3, 0, HERE)
    whole = propagation.rows(graph, at(2, 0))
    monkeypatch.setattr(feature_map, "CACHED", 0)
    assert torch.equal(propagation.rows(graph, at(2, 0)), whole)


def test_rows_that_do_not_fit_lie_in_a_file_and_are_the_same() -> None:
    graph = wide_graph("dense")
    propagation = Propagation(graph.num_features, 1000, 0, HERE)
    rows = propagation.rows(graph, at(1, 2))
    budget = Budget(1000)
    short = Propagation(graph.num_features, 1000, 0, Runtime.of(budget=budget))
    filed = short.rows(graph, at(1, 2))
    part = graph.induced(np.arange(0, 70, 2), budget)
    assert isinstance(part.x, np.memmap)
    in_file = short.rows(part, at(1, 2))
    assert torch.equal(filed, rows)
    assert torch.equal(in_file, propagation.rows(graph.induced(np.arange(0, 70, 2)), at(1, 2)))


def test_arrays_are_in_memory_while_there_is_room() -> None:
    within = Budget(1000)
    first, second, third = (within.room((10, 5), np.float32) for _ in range(3))
    assert [isinstance(one, np.memmap) for one in (first, second, third)] == [False, False, True]
    third[:] = 3
    assert third.sum() == 150
    view = first[2:]
    del first
    assert within.taken == 400, "a part of it is still used"
    del view
    assert within.taken == 200
    assert not isinstance(within.room((10, 5), np.float32), np.memmap)


def test_pieces_of_the_adjacency_and_mapped_arrays_give_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = wide_graph("dense", features=COLUMNS_AT_ONCE + BLOCK + 5)
    propagation = Propagation(graph.num_features, 1000, 0, HERE)
    rows = propagation.rows(graph, at(2))
    np.save(tmp_path / "x.npy", graph.x)
    np.save(tmp_path / "indices.npy", graph.indices)
    x, indices = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("x", "indices"))
    monkeypatch.setattr(Neighbours.chunks, "__defaults__", (11,))
    assert torch.equal(propagation.rows(Graph.of(x, Neighbours(graph.indptr, indices)), at(2)), rows)


def test_without_mkl_the_rows_are_the_same_but_for_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = wide_graph("sparse")
    propagation = Propagation(graph.num_features, 40, 0, HERE)
    rows = propagation.rows(graph, at(1))
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    torch.testing.assert_close(propagation.rows(graph, at(1)), rows)


def test_what_spreading_takes_by_hand():
    # 32 columns of 4 bytes, then five times those that are spread together, of 8 bytes: for each of ten nodes.
    assert feature_map.spreading_bytes(10, 4) == 10 * (32 * 4 + 5 * 4 * 8)
