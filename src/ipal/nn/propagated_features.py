"""Unit rows of features, propagated over a graph with restarts: what methods without training rest on."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.backend.propagated import unit_rows
from ipal.backend.runtime import Runtime
from ipal.data.graph import Features, Graph
from ipal.nn.embed import fits

COLUMNS_AT_ONCE = 64
"""Columns of features that are propagated together."""
VALUES_AT_ONCE = 2**22


def propagated(graph: Graph, steps: int, restart: float, runtime: Runtime) -> NDArray[np.float32]:
    """Unit rows of features after so many steps over the graph (see `walked`); the newest are kept."""

    def made() -> NDArray[np.float32]:
        found = runtime.budget.room((graph.num_nodes, graph.num_features), np.float32)
        for begin, block in _blocks(graph, steps, restart, runtime):
            found[:, begin : begin + COLUMNS_AT_ONCE] = block
        return found

    return graph.derived("propagated", (steps, restart), made, most=1)


def lengths(graph: Graph, steps: int, restart: float, runtime: Runtime) -> NDArray[np.float32]:
    """Of the rows that `propagated` would give, without these; at least 1e-12."""

    def made() -> NDArray[np.float32]:
        squares = np.zeros(graph.num_nodes)
        for _, block in _blocks(graph, steps, restart, runtime):
            squares += np.einsum("ij,ij->i", block, block)
        return np.sqrt(squares).clip(min=1e-12).astype(np.float32)

    return graph.derived("lengths", (steps, restart), made, most=1)


def walked(
    graph: Graph, start: NDArray[np.float32], steps: int, restart: float, runtime: Runtime, *, turned: bool = False
) -> NDArray[np.float32]:
    r"""Personalised PageRank by power iteration: a polynomial of the propagation matrix, or of its transpose, times H.

    .. math:: \Big[ (1 - r)^K \hat A^K + r \sum_{k < K} (1 - r)^k \hat A^k \Big] H

    Source: Gasteiger et al. 2019, "Predict then Propagate: Graph Neural Networks meet Personalized PageRank", Eq. 4.
    """
    found = start
    for _ in range(steps):
        found = _spread(graph, found, runtime, turned=turned)
        found *= np.float32(1 - restart)
        found += np.float32(restart) * start
    return found


def _spread(graph: Graph, columns: NDArray[np.float32], runtime: Runtime, *, turned: bool) -> NDArray[np.float32]:
    """The propagation matrix, or its transpose, times columns; in pieces where it is not to be there as a whole."""
    if fits(graph, runtime.budget):
        return np.asarray((graph.normalised.T if turned else graph.normalised) @ columns)
    turned = turned and not graph.symmetric
    found = np.zeros_like(columns)
    for begin, end in graph.neighbours.chunks():
        rows = graph.aggregation_rows(begin, end)
        if turned:
            found += rows.T @ columns[begin:end]
        else:
            found[begin:end] = rows @ columns
    return found


def unit_pieces(x: Features) -> Iterator[tuple[slice, Features]]:
    """Features divided by the lengths of their rows: all at once where they are sparse, else some rows at a time."""
    if isinstance(x, sp.csr_array):
        yield slice(None), unit_rows(x).astype(np.float32)
        return
    step = max(1, VALUES_AT_ONCE // x.shape[1])
    for begin in range(0, len(x), step):
        some = x[begin : begin + step].astype(np.float64)
        yield slice(begin, begin + step), (some / _lengths(some)).astype(np.float32)


def _lengths(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of rows, (rows, 1); one for a row of zeros."""
    found = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.where(found > 0, found, 1.0)


def _blocks(graph: Graph, steps: int, restart: float, runtime: Runtime) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Propagated unit rows: some columns at a time, and the first of them."""
    x = graph.x
    if isinstance(x, sp.csr_array):
        by_column: Any = unit_rows(x).tocsc()
        length = np.ones((1, 1))
    else:
        step = max(1, VALUES_AT_ONCE // x.shape[1])
        parts = [_lengths(x[begin : begin + step].astype(np.float64)) for begin in range(0, len(x), step)]
        by_column, length = x, np.concatenate(parts)
    for begin in range(0, graph.num_features, COLUMNS_AT_ONCE):
        some = by_column[:, begin : begin + COLUMNS_AT_ONCE]
        columns = some.toarray(order="C") if isinstance(x, sp.csr_array) else some
        yield begin, walked(graph, (columns / length).astype(np.float32), steps, restart, runtime)
