"""One attributed graph, as plain arrays, and the checks that every graph passes before anything else sees it."""

from collections.abc import Callable, Hashable, Iterator
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.data.csr import Neighbours, Norm, aggregation_rows, smallest, with_loops
from ipal.errors import DataError
from ipal.system.memory_budget import Budget

T = TypeVar("T")
Features: TypeAlias = NDArray[np.float32] | sp.csr_array
Edges = NDArray[np.int64]
Nodes = NDArray[np.int64]

Given = NDArray[np.generic] | None
"""An array from outside, where there is one."""

VALUES_AT_ONCE = 4_000_000
"""So many numbers of an array are looked at in one go."""


class Derives:
    """An immutable object that keeps what was computed from it, as long as it lives."""

    @cached_property
    def _derived(self) -> dict[str, dict[Hashable, Any]]:
        return {}

    def derived(self, group: str, key: Hashable, make: Callable[[], T], *, most: int | None = None) -> T:
        """What `make` gives, computed at the first call; of a group with `most` entries the oldest is dropped."""
        kept: dict[Hashable, T] = self._derived.setdefault(group, {})
        if key not in kept:
            if len(kept) == most:
                del kept[next(iter(kept))]
            kept[key] = make()
        return kept[key]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_derived"}


class Graph(Derives):
    """Features and in-neighbours of n nodes, without labels: immutable, in memory or mapped from files.

    Parameters
    ----------
    x : ndarray or csr_array of shape (n_nodes, n_features)
        Features.
    edges : ndarray of shape (2, n_edges), or Neighbours
        Edges from row 0 to row 1.
    symmetric : bool, optional
        Whether every edge is in both directions. Default: looked up when it is needed.
    columns : tuple of str, optional
        What each feature is, where that is known.
    """

    def __init__(
        self,
        x: Features,
        edges: NDArray[Any] | Neighbours,
        *,
        symmetric: bool | None = None,
        columns: tuple[str, ...] = (),
    ) -> None:
        self.x = x
        self.neighbours = edges if isinstance(edges, Neighbours) else Neighbours.of_edges(edges, int(x.shape[0]))
        self.columns = columns
        """What each feature is, where that is known."""
        self._symmetric = symmetric

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return int(self.x.shape[0])

    @property
    def num_features(self) -> int:
        """Number of features of a node."""
        return int(self.x.shape[1])

    @property
    def num_edges(self) -> int:
        """Directed ones: an edge that runs both ways counts twice."""
        return self.neighbours.num_edges

    @property
    def symmetric(self) -> bool:
        """Whether every edge also runs the other way."""
        if self._symmetric is None:
            self._symmetric = self.neighbours.symmetric
        return self._symmetric

    @property
    def by_source(self) -> Neighbours:
        """Row i holds the nodes that i points to."""
        return self.neighbours if self.symmetric else self.neighbours.transposed()

    @cached_property
    def edges(self) -> Edges:
        """(2, edges) from row 0 to row 1, sorted. 16 bytes an edge: large graphs are better read in rows."""
        return np.stack([self.by_source.targets(0, self.num_nodes), self.by_source.indices])

    @property
    def edge_weight(self) -> NDArray[np.float32] | None:
        """Of every edge, in the order of `edges`; None where all are one."""
        return None if self.neighbours.weights is None else self.by_source.weights

    @cached_property
    def normalised(self) -> sp.csr_array:
        """The propagation matrix of a graph convolution (see `aggregation_rows`)."""
        values = np.empty(self.num_edges + self.num_nodes, dtype=np.float32)
        indices = np.empty(self.num_edges + self.num_nodes, dtype=np.int32)
        starts = self.neighbours.indptr + np.arange(self.num_nodes + 1)
        for begin, end in self.neighbours.chunks():
            rows = aggregation_rows(self.neighbours, "symmetric", begin, end)
            at = slice(starts[begin], starts[end])
            values[at], indices[at] = rows.data, rows.indices
        return sp.csr_array((values, indices, smallest(starts)), shape=(self.num_nodes, self.num_nodes))

    @property
    def with_loops(self) -> sp.csr_array:
        """A + I: weights of edges, and a loop of weight one at every node."""
        return with_loops(self.neighbours, 0, self.num_nodes)

    def aggregation(self, norm: Norm) -> sp.csr_array:
        """The matrix that gathers values from in-neighbours."""
        return self.normalised if norm == "symmetric" else aggregation_rows(self.neighbours, norm, 0, self.num_nodes)

    def induced(self, nodes: Nodes, budget: Budget | None = None, *, whole_degree: bool = False) -> "Graph":
        """The subgraph on some nodes, renumbered in the order given.

        Parameters
        ----------
        nodes : ndarray of shape (n_nodes,)
            Their numbers.
        budget : Budget, optional
            Main memory that features may take; those of a larger subgraph are written to a file.
        whole_degree : bool, default=False
            Whether in-degrees stay as they are in this graph.

        Returns
        -------
        Graph
        """
        if np.array_equal(nodes, np.arange(self.num_nodes)):
            return self
        symmetric = True if self._symmetric else None  # of what runs one way, a part may run both ways
        rows = self.neighbours.without_rest(nodes, whole_degree=whole_degree)
        return Graph(some_features(self.x, nodes, budget), rows, symmetric=symmetric, columns=self.columns)

    def within(self, groups: NDArray[Any]) -> "Graph":
        """Without the edges between nodes of different groups."""
        rows = self.neighbours.within(groups)
        return Graph(self.x, rows, symmetric=self.symmetric or None, columns=self.columns)


def some_features(x: Features, nodes: Nodes, budget: Budget | None = None) -> Features:
    """Features of some nodes: a copy, which lies in a file where memory is short."""
    if isinstance(x, sp.csr_array):
        return x[nodes]
    part = (budget or Budget()).room((len(nodes), x.shape[1]), np.float32)
    step = max(1, VALUES_AT_ONCE // max(1, x.shape[1]))
    for begin in range(0, len(nodes), step):
        part[begin : begin + step] = x[nodes[begin : begin + step]]
    return part


def checked_graph(
    x: Features, edges: NDArray[np.generic], *, undirected: bool, weights: Given = None, columns: tuple[str, ...] = ()
) -> Graph:
    """A graph from arrays that came from outside: checked, self-loops and repeated edges removed.

    `weights` has one for each column of `edges`; see `Neighbours.of_edges` for what becomes of them. `columns` are the
    names of features, where they have any.
    """
    if x.ndim != 2:
        one = ": for one feature a node write x.reshape(-1, 1)" if x.ndim == 1 else ""
        raise DataError(f"Features must be a table of nodes by features; these have {x.ndim} dimension(s){one}.")
    n = int(x.shape[0])
    if not 0 < n <= np.iinfo(np.int32).max or x.shape[1] == 0:
        raise DataError(f"The graph is empty or too large ({n} nodes): it needs 1 to 2^31 - 1 nodes, and a feature.")
    check_finite(x)
    edges = checked_edges(edges, n)
    weights = checked_weights(weights, edges.shape[1])
    neighbours = Neighbours.of_edges(edges, n, undirected=undirected, weights=weights)
    return Graph(x, neighbours, symmetric=True if undirected else None, columns=columns)


def check_finite(x: Features) -> None:
    values = x.data if isinstance(x, sp.csr_array) else x
    if not all(np.isfinite(some).all() for some in some_rows(values)):
        raise DataError("The features hold NaN or infinite values: replace them before use.")


def checked_edges(edges: NDArray[np.generic], n: int) -> NDArray[Any]:
    """Edges that came from outside, as pairs of nodes 0 to n - 1."""
    if edges.ndim != 2 or edges.shape[0] != 2:
        turned, square = edges.ndim == 2 and edges.shape[1] == 2, edges.shape == (n, n)
        line = ": write edge_index.T" * turned or ": for an adjacency matrix A write np.stack(A.nonzero())" * square
        raise DataError(f"edge_index must have the shape 2 x edges; this one has {tuple(edges.shape)}{line}.")
    if not np.issubdtype(edges.dtype, np.integer):
        raise DataError(
            f"edge_index must hold whole numbers, not {edges.dtype}: use edge_index.long() or .astype(int)."
        )
    for wrong in (edges.min(), edges.max()) if edges.size else ():
        if not 0 <= wrong < n:
            raise DataError(f"An edge points to node {wrong}, but the nodes are 0 to {n - 1}.")
    return edges


def checked_weights(weights: Given, edges: int) -> NDArray[np.float32] | None:
    """Weights that came from outside, one for each of so many edges."""
    if weights is None:
        return None
    if weights.shape not in ((edges,), (edges, 1)):
        raise DataError(
            f"edge_weight must hold one number for each of {edges} edges; it has the shape {tuple(weights.shape)}."
        )
    if weights.dtype.kind not in "fiub":
        raise DataError(f"edge_weight must hold real numbers, not {weights.dtype}: use .float() or .astype(float).")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        values: NDArray[np.float32] = weights.reshape(-1).astype(np.float32, copy=False)
    wrong = ~(values >= 0) | np.isinf(values)
    if wrong.any():
        raise DataError(
            f"Edge {wrong.argmax() + 1} of {edges} has the weight {values[wrong.argmax()]}: weights must be finite and "
            "positive (0 leaves the edge out); change it, or give no weights."
        )
    if values.sum(dtype=np.float64) > np.finfo(np.float32).max:
        raise DataError("The weights of edges are too large to be added up in 32 bits: divide all by their largest.")
    return values


def some_rows(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """All of an array, some rows at a time."""
    step = max(1, VALUES_AT_ONCE // max(1, values[:1].size))
    return (values[begin : begin + step] for begin in range(0, len(values), step))
