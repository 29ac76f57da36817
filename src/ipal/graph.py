"""One attributed graph, as plain arrays, and the checks that every graph passes before anything else sees it."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.errors import DataError

Features: TypeAlias = NDArray[np.float32] | sp.csr_array
Edges = NDArray[np.int64]
Nodes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Graph:
    """Features and edges of n nodes, without labels. Edges run from row 0 to row 1, no loops, no repeats."""

    x: Features
    edges: Edges

    @property
    def num_nodes(self) -> int:
        return int(self.x.shape[0])

    @property
    def num_features(self) -> int:
        return int(self.x.shape[1])

    @cached_property
    def adjacency(self) -> sp.csr_array:
        """A[i, j] = 1 where an edge runs from j to i: a product with it gathers from in-neighbours."""
        ones = np.ones(self.edges.shape[1], dtype=np.float32)
        n = self.num_nodes
        return sp.csr_array((ones, (self.edges[1], self.edges[0])), shape=(n, n))

    @cached_property
    def normalised(self) -> sp.csr_array:
        """The propagation matrix of a graph convolution (see `normalised_adjacency`)."""
        return normalised_adjacency(self.adjacency)

    def induced(self, nodes: Nodes) -> "Graph":
        """The subgraph on `nodes`, which are numbered anew in the order given."""
        position = np.full(self.num_nodes, -1, dtype=np.int64)
        position[nodes] = np.arange(len(nodes))
        edges = position[self.edges]
        return Graph(x=self.x[nodes], edges=np.ascontiguousarray(edges[:, (edges >= 0).all(axis=0)]))


def checked_graph(x: Features, edges: NDArray[np.generic], *, undirected: bool) -> Graph:
    """A graph from arrays that came from outside: checked, self-loops and repeated edges removed."""
    n = int(x.shape[0]) if x.ndim == 2 else -1
    if n < 0:
        raise DataError(f"Features must be a table of nodes by features; these have {x.ndim} dimension(s).")
    if n == 0 or x.shape[1] == 0:
        raise DataError("The graph is empty: it needs at least one node and one feature.")
    values = x.data if isinstance(x, sp.csr_array) else x
    if not np.isfinite(values).all():
        raise DataError("The features hold NaN or infinite values: replace them before use.")
    return Graph(x=x, edges=simple_edges(checked_edges(edges, n), n, undirected=undirected))


def checked_edges(edges: NDArray[np.generic], n: int) -> Edges:
    """Edges that came from outside, as pairs of nodes 0 to n - 1."""
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise DataError(f"edge_index must have the shape 2 x edges; this one has {tuple(edges.shape)}.")
    if not np.issubdtype(edges.dtype, np.integer):
        raise DataError(f"edge_index must hold whole numbers; this one holds {edges.dtype}.")
    ends = edges.astype(np.int64)
    if ends.size and (ends.min() < 0 or ends.max() >= n):
        wrong = int(ends[(ends < 0) | (ends >= n)][0])
        raise DataError(f"An edge points to node {wrong}, but the nodes are 0 to {n - 1}.")
    return ends


def simple_edges(edges: Edges, n: int, *, undirected: bool) -> Edges:
    """Edges sorted, each once, without self-loops; both ways where `undirected`."""
    if undirected:
        edges = np.concatenate([edges, edges[::-1]], axis=1)
    key = np.unique(edges[0, edges[0] != edges[1]] * n + edges[1, edges[0] != edges[1]])
    return np.stack([key // n, key % n])


def normalised_adjacency(adjacency: sp.csr_array) -> sp.csr_array:
    r"""The propagation matrix of a graph convolution, in-degrees counted with the self-loop.

    .. math:: \hat A = D^{-1/2} (A + I) D^{-1/2}

    Source: Kipf & Welling 2017, Eq. 2.
    """
    with_loops = (adjacency + sp.eye_array(adjacency.shape[0], dtype=np.float32, format="csr")).tocsr()
    scale = 1.0 / np.sqrt(np.asarray(with_loops.sum(axis=1)).reshape(-1))
    normalised: sp.csr_array = (sp.diags_array(scale) @ with_loops @ sp.diags_array(scale)).tocsr()
    normalised = normalised.astype(np.float32)
    normalised.sort_indices()
    return normalised


def whole_labels(y: NDArray[np.generic], n: int) -> NDArray[np.int64]:
    """Labels as whole numbers, one per node."""
    if y.ndim != 1:
        raise DataError(f"The labels must be a list with one number per node; these have {y.ndim} dimension(s).")
    if len(y) != n:
        raise DataError(f"There are {len(y)} labels for {n} nodes: one per node is needed.")
    if np.issubdtype(y.dtype, np.integer):
        return y.astype(np.int64)
    if not np.issubdtype(y.dtype, np.floating) or not (np.isfinite(y).all() and np.array_equal(y, np.floor(y))):
        raise DataError("The labels are not whole numbers: number the classes 0, 1, 2, …")
    return y.astype(np.int64)


def content_hash(graph: Graph, y: NDArray[np.int64]) -> str:
    """SHA-256 of features, edges and labels, whatever file they came from."""
    digest = hashlib.sha256()
    x = graph.x
    parts = [x.indptr, x.indices, x.data] if isinstance(x, sp.csr_array) else [x]
    for part in [*parts, graph.edges, y]:
        kind = np.int64 if np.issubdtype(part.dtype, np.integer) else np.float32
        digest.update(str(part.shape).encode())
        digest.update(np.ascontiguousarray(part, dtype=kind).tobytes())
    return digest.hexdigest()
