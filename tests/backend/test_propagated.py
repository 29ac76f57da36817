"""Features propagated with restarts: against numbers worked by hand, and against dense linear algebra."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.backend import propagated as module
from ipal.backend.propagated import BLOCK, Columns, Spreading, propagated, unit_rows, walk
from ipal.backend.runtime import Runtime
from ipal.data.csr import Neighbours
from ipal.data.graph import Graph, checked_graph
from ipal.system.memory_budget import Budget

HERE = Runtime.of()
CPU = torch.device("cpu")
# Two nodes joined by an edge, a third alone; features of lengths 2, 5 and 0.
PAIR = checked_graph(np.array([[2, 0], [3, 4], [0, 0]], dtype=np.float32), np.array([[0], [1]]), undirected=True)


def floats(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def narrow(features: int, steps: int = 2, restart: float = 0.2) -> Columns:
    """The features themselves."""
    return Columns(features, features, False, features, steps, restart, (0, 0))


def projected(features: int, number: int, steps: int = 2, restart: float = 0.2, *, linear: int = 0) -> Columns:
    return Columns(features, number, True, linear or number // 2, steps, restart, (0, 0))


def dense(graph: Graph, part: Columns) -> np.ndarray:
    """The same with matrices of numbers, in double precision."""
    x = (graph.x.toarray() if isinstance(graph.x, sp.csr_array) else graph.x).astype(np.float64)
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    start = x / np.where(lengths > 0, lengths, 1)
    if part.is_projected:
        start = start @ part.projection.astype(np.float64)
    a, found = graph.normalised.toarray().astype(np.float64), start
    for _ in range(part.steps):
        found = (1 - part.restart) * a @ found + part.restart * start
    lengths = np.linalg.norm(found[:, : part.linear], axis=1, keepdims=True)
    return found / np.where(lengths > 0, lengths, 1)


def some_graph(form: str = "dense", features: int = 3 * BLOCK + 5, n: int = 70) -> Graph:
    random = np.random.default_rng(5)
    x = random.normal(size=(n, features)) * (random.random((n, features)) < (1 if form == "dense" else 0.3))
    x = x.astype(np.float32)
    edges = random.integers(0, n, (2, 400))
    return checked_graph(x if form == "dense" else sp.csr_array(x), edges, undirected=False)


# ------------------------------------------------------------------ by hand


def test_walk_by_hand() -> None:
    # With loops both nodes have degree 2: a hop is the mean. From 1 and 0, with a restart of 1/5, the first node has
    # 4/5 * 1/2 + 1/5 = 3/5 and the second 2/5; again the mean is 1/2, and both stay so.
    two = Spreading(Neighbours.of_edges(np.array([[0, 1], [1, 0]]), 2), CPU)
    start = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    for steps, expected in ((0, [1, 0]), (1, [0.6, 0.4]), (2, [0.6, 0.4])):
        assert walk(start, two, steps, 0.2).flatten().tolist() == pytest.approx(expected)
    assert walk(start, two, 1, 0.0).flatten().tolist() == pytest.approx([0.5, 0.5])
    assert start.flatten().tolist() == [1, 0], "where it starts stays as it was"
    # A path of three: degrees 2, 3, 2. From the first node alone, without a restart: 1/2, 1/sqrt 6, 0, and then
    # 1/4 + 1/6, (1/2 + 1/3) / sqrt 6, 1/6.
    path = Spreading(Neighbours.of_edges(np.array([[0, 1, 1, 2], [1, 0, 2, 1]]), 3), CPU)
    start = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)
    assert walk(start, path, 1, 0.0).flatten().tolist() == pytest.approx([1 / 2, 1 / math.sqrt(6), 0])
    expected = [5 / 12, 5 / 6 / math.sqrt(6), 1 / 6]
    assert walk(start, path, 2, 0.0).flatten().tolist() == pytest.approx(expected)
    # With a restart of 1/2: halves of a hop from (3/4, 1/(2 sqrt 6), 0), and of the start.
    hop = [3 / 8 + 1 / 12, 3 / 4 / math.sqrt(6) + 1 / 6 / math.sqrt(6), 1 / 12]
    assert walk(start, path, 2, 0.5).flatten().tolist() == pytest.approx([hop[0] / 2 + 0.5, hop[1] / 2, hop[2] / 2])


def test_features_themselves_by_hand() -> None:
    # Unit rows (1, 0) and (0.6, 0.8). One step with a restart of 1/2: the mean is (0.8, 0.4), and so (0.9, 0.2) and
    # (0.7, 0.6) before they are scaled. The third has nothing to spread.
    found = propagated(PAIR, [narrow(2, 1, 0.5)], HERE)
    one, two = math.hypot(0.9, 0.2), math.hypot(0.7, 0.6)
    torch.testing.assert_close(found, floats([0.9 / one, 0.2 / one], [0.7 / two, 0.6 / two], [0, 0]))
    torch.testing.assert_close(propagated(PAIR, [narrow(2, 0)], HERE), floats([1, 0], [0.6, 0.8], [0, 0]))


def test_sparse_rows_of_unit_length_by_hand() -> None:
    found = unit_rows(sp.csr_array(np.array([[3, 4], [0, 0], [0, -2]], dtype=np.float32)))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found.toarray(), [[0.6, 0.8], [0, 0], [0, -1]])


# ------------------------------------------------------------------ dense linear algebra


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize(
    "part",
    [projected(3 * BLOCK + 5, 20, 3, 0.0), projected(3 * BLOCK + 5, 2 * BLOCK + 3, 3, 0.3), narrow(3 * BLOCK + 5, 3)],
    ids=["few columns", "many columns", "the features themselves"],
)
def test_propagated_features_are_those_of_dense_matrices(form: str, part: Columns) -> None:
    graph = some_graph(form)
    found = propagated(graph, [part], HERE)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), dense(graph, part), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found[:, : part.linear].norm(dim=1), torch.ones(70))


# ------------------------------------------------------------------ the same bits


@pytest.mark.parametrize("part", [narrow(12, 3), projected(12, 8, 3)], ids=["narrow", "wide"])
def test_numbering_the_nodes_anew_gives_the_same_rows_bit_for_bit(part: Columns) -> None:
    random = np.random.default_rng(1)
    x, edges = random.normal(size=(60, 12)).astype(np.float32), random.integers(0, 60, (2, 300))
    order = random.permutation(60)
    graph = checked_graph(x, edges, undirected=True)
    shuffled = checked_graph(x[order], np.argsort(order)[edges], undirected=True)
    assert torch.equal(propagated(shuffled, [part], HERE), propagated(graph, [part], HERE)[torch.from_numpy(order)])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("weighted", [False, True])
def test_a_gpu_gives_the_rows_of_a_cpu_but_for_rounding(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(2)
    edges = np.concatenate([random.integers(0, 900, (2, 4000)), [np.arange(1, 900), np.zeros(899, int)]], axis=1)
    weights = random.random(edges.shape[1], dtype=np.float32) + 1 if weighted else None  # node 0 has a long row
    x = random.normal(size=(900, 12)).astype(np.float32)
    graph, part = Graph(x, Neighbours.of_edges(edges, 900, weights=weights)), projected(12, 8, 3)
    found, again = (propagated(graph, [part], Runtime.of("cuda")) for _ in range(2))
    torch.testing.assert_close(found.cpu(), propagated(graph, [part], HERE))
    assert torch.equal(found, again)
    monkeypatch.setattr(module, "MOST_ENTRIES", 1500)
    torch.testing.assert_close(propagated(graph, [part], Runtime.of("cuda")), found)


def test_the_first_rows_of_a_projection_are_the_first_drawn() -> None:
    kept = projected(50, 20)
    assert kept.projection is kept.projection
    assert np.array_equal(kept.drawn(7), kept.projection[:7])
    assert not np.array_equal(replace(kept, seed=(0, 1)).projection, kept.projection)


def test_rows_in_pieces_are_the_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, part = some_graph(), projected(3 * BLOCK + 5, 60)
    whole = propagated(graph, [part], HERE)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 11)
    monkeypatch.setattr(module, "VALUES_AT_ONCE", 10 * (3 * BLOCK + 5))
    torch.testing.assert_close(propagated(graph, [part], HERE), whole, rtol=1e-6, atol=1e-7)


def test_rows_that_do_not_fit_lie_in_a_file_and_are_the_same() -> None:
    graph, part = some_graph(), projected(3 * BLOCK + 5, 60)
    budget = Budget(1000)
    short = Runtime.of(budget=budget)
    assert torch.equal(propagated(graph, [part], short), propagated(graph, [part], HERE))
    some = graph.induced(np.arange(0, 70, 2), budget)
    assert isinstance(some.x, np.memmap)
    expected = propagated(graph.induced(np.arange(0, 70, 2)), [part], HERE)
    assert torch.equal(propagated(some, [part], short), expected)


@pytest.mark.parametrize("part", [narrow(300), projected(300, 60)], ids=["narrow", "wide"])
def test_pieces_of_the_adjacency_and_mapped_arrays_give_the_same_rows(
    part: Columns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = some_graph(features=300)
    rows = propagated(graph, [part], HERE)
    np.save(tmp_path / "x.npy", graph.x)
    np.save(tmp_path / "indices.npy", graph.neighbours.indices)
    x, indices = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("x", "indices"))
    monkeypatch.setattr(module, "EDGES_AT_ONCE", 11)
    assert torch.equal(propagated(Graph(x, Neighbours(graph.neighbours.indptr, indices)), [part], HERE), rows)


# ------------------------------------------------------------------ room


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
