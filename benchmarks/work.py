"""What the computations of the library cannot do without: bytes and operations, from sizes alone.

Every array that does not fit into the cache is read or written once by each product; dense products count by their
operations, since they hide their bytes behind them. Passes over single entries (bias, ReLU, dropout) count nothing:
they could be joined with the product before. So no implementation of the same steps is faster than these.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from machine import Work, cache_bytes

from ipal.data.graph import Graph
from ipal.data.task import Task


def dense(rows: int, inner: int, columns: int) -> Work:
    """A product of dense matrices."""
    return Work(operations=2.0 * rows * inner * columns)


def sparse(rows: int, columns: int, entries: int, width: int, *, value: int = 4, cache: int | None = None) -> Work:
    """A sparse matrix times a dense one of so many columns, of numbers of `value` bytes.

    Every entry (index and number) is read once and every row written once. Rows are gathered from a table: where it
    fits into the cache each is read once; else an entry finds its row there by chance, with the share that fits.
    """
    cache = cache_bytes() if cache is None else cache
    table = value * columns * width
    missed = max(0.0, 1 - cache / table)
    gathered = max(value * width * min(columns, entries), missed * value * width * entries)
    work = Work((4 + value) * entries + gathered + value * rows * width)
    operations = 2.0 * entries * width
    return work + (Work(operations=operations) if value == 4 else Work(double=operations))


@dataclass(frozen=True)
class Layers:
    """The sizes of a step of a two-layer graph convolution."""

    nodes: int
    entries: int
    """Edges, and a loop a node."""
    features: int
    stored: int | None
    """Features that are not zero; None of dense ones, which are propagated beforehand."""
    read: int
    """Nodes whose embeddings are wanted, and entries of their rows."""
    read_entries: int

    @classmethod
    def of(cls, graph: Graph, nodes: np.ndarray | None = None) -> "Layers":
        x, entries = graph.x, graph.num_edges + graph.num_nodes
        stored = x.nnz if isinstance(x, sp.csr_array) else None
        read, some = graph.num_nodes, entries
        if nodes is not None:
            read, some = len(nodes), int((np.diff(graph.neighbours.indptr)[nodes] + 1).sum())
        return cls(graph.num_nodes, entries, graph.num_features, stored, read, some)

    @classmethod
    def of_task(cls, task: Task) -> "Layers":
        return cls.of(task.graph, task.nodes)


def forward(of: Layers, hidden: int, width: int) -> Work:
    """Embeddings."""
    if of.stored is None:
        first = dense(of.nodes, of.features, hidden)
    else:
        first = sparse(of.nodes, of.features, of.stored, hidden) + sparse(of.nodes, of.nodes, of.entries, hidden)
    return first + sparse(of.read, of.nodes, of.read_entries, hidden) + dense(of.read, hidden, width)


def step(of: Layers, hidden: int, width: int) -> Work:
    """Forward, a loss that reads the embeddings and writes their gradient, and backward to the weights."""
    loss = Work(bytes=8.0 * of.read * width)
    second = dense(hidden, of.read, width) + dense(of.read, width, hidden)
    to_hidden = sparse(of.nodes, of.read, of.read_entries, hidden)
    if of.stored is None:
        first = dense(of.features, of.nodes, hidden)
    else:
        first = sparse(of.nodes, of.nodes, of.entries, hidden) + sparse(of.features, of.nodes, of.stored, hidden)
    return forward(of, hidden, width) + loss + second + to_hidden + first


def adam(of: Layers, hidden: int, width: int) -> Work:
    """Reads weights, gradients and two moments; writes all but the gradients."""
    return Work(bytes=28.0 * (of.features * hidden + hidden * width))


def closed_form(of: Layers, classes: int, columns: int, width: int, steps: int) -> Work:
    """Steps over all nodes, random features of the rows to be learned, their sums, and the ridge's solution.

    In double precision. As many columns as the width are projections, fewer are features as they are. By symmetry n d^2
    for the sums; Cholesky takes d^3 / 3, and two solutions for every class.
    """
    projected = Work()
    if columns == width:
        entries = of.nodes * of.features if of.stored is None else of.stored
        projected = Work(double=2.0 * entries * columns)
    spread = sparse(of.nodes, of.nodes, of.entries, columns, value=8) * steps
    rows = Work(double=2.0 * of.read * columns * (width - columns))
    return projected + spread + rows + Work(double=of.read * width**2 + width**3 / 3 + 2.0 * width**2 * classes)
