"""Attention between neighbours, whose squared length TWP differentiates (Liu, Yang & Wang 2021)."""

from dataclasses import replace

import torch
from torch import Tensor

from ipal.backend.sparse import SparseMatrix
from ipal.data.graph import Graph

# Numbers in the largest array of one chunk of edges.
CHUNK = 2**24


def attention(h: Tensor, h_neighbour: Tensor, neighbours: Tensor, starts: Tensor, weights: Tensor | None) -> Tensor:
    r"""Attention of nodes to their neighbours, one number an edge.

    .. math:: a_{ij} \propto w_{ij} \exp (h_i \cdot \tanh h_j), \quad \sum_{j \in N(i)} a_{ij} = 1

    Source: Liu et al. 2021, the attention between neighbours, where all `weights` w of edges are one (None). Node i has
    the neighbours from `starts[i]` to `starts[i + 1]` in `neighbours`; they are rows of `h_neighbour`.
    """
    lengths = starts.diff().long()
    row = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths, output_size=len(neighbours))
    t, at_once = h_neighbour.tanh(), max(1, CHUNK // h.shape[1])
    parts = zip(torch.split(row, at_once), torch.split(neighbours, at_once), strict=True)
    e = torch.cat([(h[own] * t[other]).sum(dim=1) for own, other in parts])
    highest = torch.segment_reduce(e.detach(), "max", lengths=lengths, unsafe=True)
    raised = (e - highest[row]).exp()
    if weights is not None:
        raised = raised * weights
    return raised / torch.segment_reduce(raised, "sum", lengths=lengths, unsafe=True)[row]


def attention_length_gradient(a: Tensor, starts: Tensor) -> Tensor:
    r"""Derivative of the squared length of every node's attention with respect to its scores e, one number an edge.

    .. math:: \frac{\partial}{\partial e_{ij}} \sum_{k \in N(i)} a_{ik}^2
        = 2 a_{ij} \Big( a_{ij} - \sum_{k \in N(i)} a_{ik}^2 \Big)

    Source: Liu et al. 2021, of the topological loss, the sum of these lengths; the scores are h_i . tanh(h_j).
    """
    neighbours = starts.diff().long()
    lengths = torch.segment_reduce(a.square(), "sum", lengths=neighbours, unsafe=True)
    return 2 * a * (a - lengths.repeat_interleave(neighbours, output_size=len(a)))


def attention_gradient(h: Tensor, graph: Graph, edges: SparseMatrix) -> Tensor:
    """Derivative of the mean squared attention length with respect to `h`: two products with one matrix."""
    weights = torch.from_numpy(graph.with_loops.data).to(h.device) if graph.neighbours.weights is not None else None
    a = attention(h, h, edges.indices, edges.indptr, weights)
    by_score, t = replace(edges, values=attention_length_gradient(a, edges.indptr)), h.tanh()
    return (by_score.matmul(t) + by_score.transposed().matmul(h) * (1 - t.square())) / graph.num_nodes
