"""Embeddings of whole graphs, without gradient, never sampled: all at once, or layer by layer in pieces.

In pieces, neither the propagation matrix nor the propagated features are ever there as a whole: features are read and
multiplied some rows at a time, and every layer's values are gathered from the rows of the graph, wherever these lie.
"""

import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.backend.distributed import team
from ipal.backend.operators import SparseMatrix, operators
from ipal.data.csr import EDGES_AT_ONCE, MOST_ENTRIES
from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.nn.encoder import GCN
from ipal.system import memory_budget
from ipal.system.tracing import spanned

VALUES_AT_ONCE = 2**24


def embeddings(encoder: GCN, of: Graph | Task, device: torch.device) -> Tensor:
    """Of all nodes of a graph, or of a task's training nodes, in their order."""
    with torch.no_grad():
        graph = of.graph if isinstance(of, Task) else of
        # Several processes share a graph: each has but a part of it.
        if team().size > 1 or fits(graph):
            found: Tensor = encoder(operators(of, device))
            return found
        everywhere = by_layers(encoder, graph, device)
        return everywhere[torch.from_numpy(of.nodes).to(device)] if isinstance(of, Task) else everywhere


@spanned("encoder")
def by_layers(encoder: GCN, graph: Graph, device: torch.device) -> Tensor:
    """One layer after the other, in pieces."""
    hidden = _projected(graph, encoder.weights[0])
    for layer, (weight, bias) in enumerate(zip(encoder.weights, encoder.biases, strict=True)):
        if layer:
            hidden = _in_place(hidden, weight)
        hidden = _spread(graph, hidden, bias, device)
        if layer < len(encoder.weights) - 1 or encoder.last_relu:
            hidden.relu_()
    return hidden


def fits(graph: Graph) -> bool:
    """Whether the operators of a graph, with those kept of others, take a small part of the memory allowed.

    Never those of a graph with more entries than a sparse product takes.
    """
    features = graph.x.nnz if isinstance(graph.x, sp.csr_array) else 0
    if max(graph.num_edges + graph.num_nodes, features) > MOST_ENTRIES:
        return False
    return memory_budget.current().admits(graph, operators_bytes(graph))


def operators_bytes(graph: Graph, nodes: int | None = None, edges: int | None = None) -> int:
    """What the propagation matrix, as SciPy and as torch keep it, and the propagated features take.

    Of the whole graph, or of a part of it with so many nodes and edges.
    """
    nodes = graph.num_nodes if nodes is None else nodes
    entries = nodes + (graph.num_edges if edges is None else edges)
    ways = 1 if graph.symmetric else 2
    x = graph.x
    values = 4 * x.nnz // max(1, graph.num_nodes) if isinstance(x, sp.csr_array) else graph.num_features
    return 8 * entries * (1 + ways) + 4 * nodes * int(values)


def _projected(graph: Graph, weight: Tensor) -> Tensor:
    """X times the weights, X read some rows at a time."""
    x, device = graph.x, weight.device
    found = torch.empty(graph.num_nodes, weight.shape[1], device=device)
    step = max(1, VALUES_AT_ONCE // graph.num_features)
    for begin in range(0, graph.num_nodes, step):
        some = x[begin : begin + step]
        if isinstance(some, sp.csr_array):
            found[begin : begin + step] = SparseMatrix.of(some, device).matmul(weight.detach())
        else:
            found[begin : begin + step] = torch.tensor(some, device=device) @ weight
    return found


def _in_place(hidden: Tensor, weight: Tensor) -> Tensor:
    """Rows times the weights: where the width stays, into the same memory."""
    out = hidden if weight.shape[0] == weight.shape[1] else hidden.new_empty(len(hidden), weight.shape[1])
    step = max(1, VALUES_AT_ONCE // weight.shape[0])
    for begin in range(0, len(hidden), step):
        out[begin : begin + step] = hidden[begin : begin + step] @ weight
    return out


def _spread(graph: Graph, hidden: Tensor, bias: Tensor, device: torch.device) -> Tensor:
    found = torch.empty_like(hidden)
    for begin, end in graph.neighbours.chunks(EDGES_AT_ONCE):
        rows = SparseMatrix.of(graph.propagation_rows(begin, end), device)
        found[begin:end] = rows.matmul(hidden)
    return found.add_(bias)
