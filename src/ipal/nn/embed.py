"""Embeddings of whole graphs, without gradient, never sampled: all at once, or layer by layer in pieces.

In pieces, neither the propagation matrix nor the propagated features are ever there as a whole: features are read and
multiplied some rows at a time, and every layer's values are gathered from the rows of the graph, wherever these lie.
"""

from dataclasses import dataclass

import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.backend.attention import Edges, attention
from ipal.backend.operators import LayerInput, of_rows, operators, picked, propagated_rows
from ipal.backend.runtime import Runtime
from ipal.backend.sparse import SparseMatrix
from ipal.data.csr import EDGES_AT_ONCE, MOST_ENTRIES, Norm, aggregation_rows, with_loops
from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.nn.encoders import Encoder
from ipal.system.memory_budget import Budget

VALUES_AT_ONCE = 2**24


@torch.no_grad()
def embeddings(encoder: Encoder, of: Graph | Task, runtime: Runtime) -> Tensor:
    """Of all nodes of a graph, or of a task's training nodes, in their order."""
    graph = of.graph if isinstance(of, Task) else of
    rows = propagated_rows(graph, runtime, encoder.needs)
    is_near = rows is None or rows.device == runtime.device
    if is_near and fits(graph, runtime.budget):
        found: Tensor = encoder(operators(of, runtime, encoder.needs))
        return found
    nodes = torch.from_numpy(of.nodes) if isinstance(of, Task) else torch.arange(graph.num_nodes)
    if rows is not None:
        pieces = torch.split(nodes, max(1, VALUES_AT_ONCE // rows.shape[1]))
        return torch.cat([encoder(of_rows(picked(rows, some, runtime.device))) for some in pieces])
    everywhere = by_layers(encoder, graph, runtime.device)
    return everywhere[nodes.to(runtime.device)] if isinstance(of, Task) else everywhere


def by_layers(encoder: Encoder, graph: Graph, device: torch.device) -> Tensor:
    """One layer after the other, in pieces."""
    hidden = None
    for number, parameters in enumerate(encoder.layers()):
        found, products = None, dict[int, Tensor]()
        for begin, end in graph.neighbours.chunks(EDGES_AT_ONCE):
            piece = encoder.computed(number, Piece(graph, hidden, begin, end, device, products), parameters)
            found = piece.new_empty(graph.num_nodes, piece.shape[1]) if found is None else found
            found[begin:end] = piece
        hidden = found
    assert hidden is not None, "a graph has nodes"
    return hidden


@dataclass(frozen=True, eq=False)
class Piece(LayerInput):
    """What some nodes of a graph are computed from: the values of all nodes, and these nodes' rows of the graph."""

    graph: Graph
    values: Tensor | None
    """Of the layer before; None where they are features."""
    begin: int
    end: int
    device: torch.device
    products: dict[int, Tensor]
    """Values times weights by the identity of the weights, shared by all pieces of a layer."""

    def aggregated(self, weight: Tensor, norm: Norm = "symmetric") -> Tensor:
        rows = SparseMatrix.of(aggregation_rows(self.graph.neighbours, norm, self.begin, self.end), self.device)
        z = self._projected(weight) if self.values is None else self.values
        sums = rows.matmul(z)
        return sums if self.values is None else sums @ weight

    def own(self, weight: Tensor) -> Tensor:
        return self._product(self.begin, self.end, weight)

    def attended(self, weight: Tensor, query: Tensor, key: Tensor) -> Tensor:
        z, neighbours = self._projected(weight), self.graph.neighbours
        rows = SparseMatrix.of(with_loops(neighbours, self.begin, self.end), self.device)
        edges = Edges.of(rows, gradients=False, weights=None if neighbours.weights is None else rows.values)
        return attention(edges, z, z[self.begin : self.end], query, key)

    def _projected(self, weight: Tensor) -> Tensor:
        """The values of all nodes times the weights."""
        if id(weight) not in self.products:
            nodes = self.graph.num_nodes
            self.products[id(weight)] = found = torch.empty(nodes, weight.shape[1], device=self.device)
            step = max(1, VALUES_AT_ONCE // weight.shape[0])
            for begin in range(0, nodes, step):
                found[begin : begin + step] = self._product(begin, begin + step, weight)
        return self.products[id(weight)]

    def _product(self, begin: int, end: int, weight: Tensor) -> Tensor:
        if self.values is not None:
            return self.values[begin:end] @ weight
        some = self.graph.x[begin:end]
        if isinstance(some, sp.csr_array):
            return SparseMatrix.of(some, self.device).matmul(weight.detach())
        return torch.tensor(some, device=self.device) @ weight


def fits(graph: Graph, budget: Budget) -> bool:
    """Whether the operators of a graph, with those kept of others, take a small part of the memory allowed.

    Never those of a graph with more entries than a sparse product takes.
    """
    features = graph.x.nnz if isinstance(graph.x, sp.csr_array) else 0
    takes = max(graph.num_edges + graph.num_nodes, features) <= MOST_ENTRIES
    return takes and budget.admits(graph, operators_bytes(graph, graph.num_nodes, graph.num_edges))


def operators_bytes(graph: Graph, nodes: int, edges: int) -> int:
    """What propagation matrix (SciPy's and torch's) and propagated features take, of so many nodes of a graph."""
    # SciPy's indices and values, torch's copy of the indices; and the transpose, where it is another matrix.
    an_entry = 12 if graph.symmetric else 20
    x = graph.x
    values = 4 * x.nnz // max(1, graph.num_nodes) if isinstance(x, sp.csr_array) else graph.num_features
    return an_entry * (nodes + edges) + 4 * nodes * int(values)
