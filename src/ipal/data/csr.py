"""Who points to whom, in rows: 32-bit in-neighbours one node after the other, in memory or mapped from a file.

Whatever is done here goes over some rows at a time, so that a graph of a hundred million edges needs little more
than itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.errors import CapacityError

EDGES_AT_ONCE = 4_000_000
"""So many edges are looked at in one go: temporary arrays stay below some 100 MB."""

MOST_ENTRIES = int(np.iinfo(np.int32).max)
"""Entries of a sparse matrix whose row starts are 32-bit numbers."""

Ends = NDArray[np.int64]
Norm = Literal["symmetric", "mean", "sum"]
"""How values of in-neighbours are added up: scaled by both degrees (and the node's own too), averaged, or plainly."""


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Row i holds the nodes with an edge to i, ascending, each once, never i itself."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    whole_degree: NDArray[Any] | None = None
    """In-degree of each node in the graph that this was cut out of; None where nothing was cut."""
    weights: NDArray[np.float32] | None = None
    """Of every edge, all positive; None where all are one."""

    @classmethod
    def of_edges(
        cls, edges: NDArray[Any], n: int, *, undirected: bool = False, weights: NDArray[np.float32] | None = None
    ) -> "Neighbours":
        """From pairs in any order, loops and repeats removed; both ways where `undirected`.

        A pair counts once, however often it is given, with the mean of its weights; where `undirected`, in whichever
        direction. A mean below the smallest normal number of 32 bits, as 0, leaves the pair out. Weights that are all
        one are as none.

        Without weights, sorted in place as one number a pair: besides the pairs it takes up to 16 bytes an edge. With
        weights it takes up to 110 bytes a pair.
        """
        apart = edges[0] != edges[1]
        if not apart.all():
            edges, weights = edges[:, apart], None if weights is None else weights[apart]
        if weights is not None and not (weights == 1).all():
            return cls._of_weighted(edges, n, undirected, weights)
        given = edges.shape[1]
        keys = np.empty((1 + undirected) * given, dtype=np.int64)
        for part, (source, target) in zip((keys[:given], keys[given:]), (edges, edges[::-1]), strict=True):
            if len(part):
                np.multiply(target, n, out=part, dtype=np.int64, casting="unsafe")
                np.add(part, source, out=part, dtype=np.int64, casting="unsafe")
        keys.sort()
        stays = np.ones(len(keys), dtype=np.bool_)
        np.not_equal(keys[1:], keys[:-1], out=stays[1:])
        keys = keys[stays]
        indices = np.remainder(keys, n, out=np.empty(len(keys), dtype=np.int32), dtype=np.int64, casting="unsafe")
        return cls(np.searchsorted(keys, np.arange(n + 1) * n), indices)

    @classmethod
    def _of_weighted(cls, edges: NDArray[Any], n: int, undirected: bool, weights: NDArray[np.float32]) -> "Neighbours":
        ends = np.sort(edges, axis=0) if undirected else edges[::-1]
        each = weights.astype(np.float64)
        rows, times = (sp.coo_array((some, tuple(ends)), shape=(n, n)).tocsr() for some in (each, np.ones_like(each)))
        rows.data /= times.data  # both hold sums over repeats
        rows.data[rows.data < np.finfo(np.float32).tiny] = 0
        rows.eliminate_zeros()
        if undirected:
            rows = rows + rows.T
        found, values = rows.indptr.astype(np.int64), rows.data.astype(np.float32)
        return cls(found, rows.indices.astype(np.int32), weights=None if (values == 1).all() else values)

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    @cached_property
    def degree(self) -> NDArray[Any]:
        """In-neighbours of every node, those that were cut off too: their number, or the sum of their weights."""
        if self.whole_degree is not None:
            return self.whole_degree
        if self.weights is None:
            return np.diff(self.indptr)
        sums = (np.bincount(self.targets(b, e) - b, self.values(b, e), e - b) for b, e in self.chunks())
        return np.concatenate([np.zeros(0), *sums])

    @cached_property
    def scale(self) -> NDArray[np.float32]:
        """1 / sqrt(in-degree, the self-loop counted)."""
        return np.reciprocal(np.sqrt((self.degree + 1).astype(np.float32)))

    def chunks(self, most: int = EDGES_AT_ONCE) -> Iterator[tuple[int, int]]:
        """Ranges of rows with at most so many edges, or one row."""
        begin = 0
        while begin < self.num_nodes:
            end = int(np.searchsorted(self.indptr, self.indptr[begin] + most, side="right")) - 1
            end = max(end, begin + 1)
            yield begin, end
            begin = end

    def targets(self, begin: int, end: int) -> NDArray[np.int64]:
        """The row of every edge of these rows."""
        return np.repeat(np.arange(begin, end), np.diff(self.indptr[begin : end + 1]))

    def matrix(self, begin: int, end: int, values: NDArray[Any] | None = None) -> sp.csr_array:
        """These rows as a sparse matrix: `values` has one for every edge of theirs; their weights, where not given."""
        values = self.values(begin, end) if values is None else values
        starts = np.asarray(self.indptr[begin : end + 1])
        parts = (values, self.indices[starts[0] : starts[-1]], smallest(starts - starts[0]))
        return sp.csr_array(parts, shape=(end - begin, self.num_nodes))

    def values(self, begin: int, end: int) -> NDArray[Any]:
        """The weight of every edge of these rows; a byte each where all are one."""
        first, last = self.indptr[begin], self.indptr[end]
        return np.ones(last - first, dtype=np.int8) if self.weights is None else self.weights[first:last]

    def transposed(self) -> "Neighbours":
        """Row i holds the nodes that i points to."""
        return self._of(self.matrix(0, self.num_nodes).T.tocsr())

    @cached_property
    def symmetric(self) -> bool:
        """Whether every edge also runs the other way."""
        turned = self.transposed()
        same = np.array_equal(self.indptr, turned.indptr) and np.array_equal(self.indices, turned.indices)
        return same and np.array_equal(self.values(0, self.num_nodes), turned.values(0, self.num_nodes))

    def edge_chunks(self) -> Iterator[tuple[Ends, Ends]]:
        """Rows and their entries as pairs, some at a time, in order."""
        for begin, end in self.chunks():
            entries = self.indices[self.indptr[begin] : self.indptr[end]]
            yield self.targets(begin, end), entries.astype(np.int64)

    def rows_of(self, nodes: Ends) -> tuple[Ends, NDArray[np.int32]]:
        """In-neighbours of some nodes: the place in `nodes` that each belongs to, and which node it is."""
        starts = self.indptr[nodes]
        sizes = self.indptr[nodes + 1] - starts
        # As far from where an entry is to come as its row's start is.
        places = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
        places += np.arange(len(places))
        return np.repeat(np.arange(len(nodes)), sizes), self.indices[places]

    def without_rest(self, nodes: NDArray[np.int64], *, whole_degree: bool = False) -> "Neighbours":
        """The rows of `nodes` without entries outside of them, all renumbered in the order given.

        With `whole_degree`, degrees stay as they are here.
        """
        rows = self.matrix(0, self.num_nodes)[nodes][:, nodes]
        rows.sort_indices()
        return self._of(rows, self.degree[nodes] if whole_degree else None)

    def within(self, groups: NDArray[Any]) -> "Neighbours":
        """Only the edges between nodes of one group."""
        rows = self.targets(0, self.num_nodes)
        inside = groups[rows] == groups[self.indices]
        ends = np.cumsum(np.bincount(rows[inside], minlength=self.num_nodes))
        weights = None if self.weights is None else self.weights[inside]
        return Neighbours(np.concatenate([[0], ends]), self.indices[inside], weights=weights)

    def _of(self, rows: sp.csr_array, whole_degree: NDArray[Any] | None = None) -> "Neighbours":
        """Rows made of those of `matrix`."""
        parts = rows.indptr.astype(np.int64), rows.indices.astype(np.int32, copy=False)
        return Neighbours(*parts, whole_degree, None if self.weights is None else rows.data)


def joined(every: Sequence[Neighbours]) -> Neighbours:
    """Rows one after the other, without an edge from one to another."""
    nodes = [0, *accumulate(one.num_nodes for one in every)]
    edges = [0, *accumulate(one.num_edges for one in every)]
    indptr = np.concatenate([[0], *(one.indptr[1:] + edge for one, edge in zip(every, edges, strict=False))])
    indices = np.concatenate([one.indices + node for one, node in zip(every, nodes, strict=False)])
    weighted = any(one.weights is not None for one in every)
    weights = np.concatenate([one.values(0, one.num_nodes) for one in every]) if weighted else None
    return Neighbours(indptr, indices, weights=weights)


def smallest(indptr: NDArray[np.int64]) -> NDArray[Any]:
    """Row starts in 32 bits where these suffice: SciPy would widen 32-bit indices to the kind of the row starts."""
    return indptr.astype(np.int32) if indptr[-1] <= MOST_ENTRIES else indptr


def check_entries(entries: int) -> None:
    """Sparse products take row starts of 32 bits: beyond these a matrix is refused, as they would become negative."""
    if entries > MOST_ENTRIES:
        raise CapacityError(
            f"A sparse matrix of {entries} entries is too large to be multiplied at once, which takes at most "
            f"{MOST_ENTRIES}: learn in (smaller) mini-batches, as with protocol.batch.nodes=2000."
        )


def with_loops(neighbours: Neighbours, begin: int, end: int) -> sp.csr_array:
    """Rows `begin` to `end` of A + I: weights of edges, and a loop of weight one at every node."""
    loops = sp.eye_array(end - begin, neighbours.num_nodes, k=begin, dtype=np.float32, format="csr")
    return (neighbours.matrix(begin, end) + loops).tocsr()


def aggregation_rows(neighbours: Neighbours, norm: Norm, begin: int, end: int) -> sp.csr_array:
    r"""Some rows of the matrix that gathers values from in-neighbours, degrees D counted with the self-loop.

    .. math:: \hat A = D^{-1/2} (A + I) D^{-1/2}, \quad D_{in}^{-1} A, \quad A

    Source: Kipf & Welling 2017, Eq. 2, of the first, which is the propagation matrix of a graph convolution.
    """
    if norm == "symmetric":
        rows, scale = with_loops(neighbours, begin, end), neighbours.scale
        rows.data *= np.repeat(scale[begin:end], np.diff(rows.indptr)) * scale[rows.indices]
        return rows
    values = neighbours.values(begin, end).astype(np.float32)
    if norm == "mean":
        targets = neighbours.targets(begin, end) - begin
        total = np.bincount(targets, values, end - begin)
        values *= (1 / np.where(total > 0, total, 1)).astype(np.float32)[targets]
    return neighbours.matrix(begin, end, values)
