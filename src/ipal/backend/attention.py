"""Attention over the edges of a graph, without a row of values for every edge.

Two operations are each other's derivatives, so that all further derivatives exist: sums over a node's neighbours,
weighted edge by edge, and products of the values at both ends of every edge. Sums add in a fixed order.
"""

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from ipal.backend.sparse import SparseMatrix

SLOPE = 0.2
# Numbers held at a time for some edges; more on a GPU, which many small operations would keep waiting.
VALUES_AT_ONCE = 2**20
GPU_VALUES_AT_ONCE = 2**26


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges to some nodes: row i of the matrix holds those that node i reads from."""

    matrix: SparseMatrix
    target: Tensor
    """The row of every edge."""
    transpose: SparseMatrix | None = None
    """By source, for gradients; its values are the places of the edges in the matrix."""
    weights: Tensor | None = None
    """Of every edge; None where all are one."""

    @classmethod
    def of(cls, matrix: SparseMatrix, *, gradients: bool = True, weights: Tensor | None = None) -> "Edges":
        """`weights` are those of its entries, a node's own loop among them; the matrix's values are not used."""
        lengths, number = matrix.indptr.diff(), len(matrix.indices)
        row = torch.arange(len(lengths), device=lengths.device, dtype=torch.int32)
        target = row.repeat_interleave(lengths, output_size=number)
        if not gradients:
            return cls(matrix, target, weights=weights)
        places = torch.arange(number, device=lengths.device)
        return cls(matrix, target, replace(matrix, values=places).transposed(), weights)


def attention(edges: Edges, sources: Tensor, targets: Tensor, query: Tensor, key: Tensor) -> Tensor:
    r"""Means over neighbours, weighted by how a node attends to each; several heads side by side.

    .. math:: \sum_j \alpha_{ij} z_j, \quad
        \alpha_{ij} \propto w_{ij} \exp \mathrm{LeakyReLU}_{0.2} (q \cdot z_i + k \cdot z_j)

    Source: Velickovic et al. 2018, "Graph Attention Networks", Eq. 1 to 4, where all weights w of edges are one: their
    vector a is (q, k). `sources` and `targets` are values z of the nodes that are read and of those that are computed;
    `query` and `key` are heads x width.
    """
    by_source, by_target = ((z.view(len(z), *a.shape) * a).sum(-1) for z, a in ((sources, key), (targets, query)))
    one, other = torch.ones_like(by_source), torch.ones_like(by_target)
    e = leaky_relu(_dots(by_target, one, edges, len(key)) + _dots(other, by_source, edges, len(key)), SLOPE)
    lengths = edges.matrix.indptr.diff().long()
    highest = torch.segment_reduce(e.detach(), "max", lengths=lengths, unsafe=True)
    raised = (e - highest.index_select(0, edges.target)).exp()
    if edges.weights is not None:
        raised = raised * edges.weights[:, None]
    total = _weighted(raised, one, edges, turned=False)
    found = _weighted(raised, sources, edges, turned=False).view(len(targets), *query.shape) / total[:, :, None]
    return found.flatten(1)


class _Weighted(torch.autograd.Function):
    """Sums over the edges of each node of the values at their other ends, weighted for every head."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, edges: Edges, turned: bool) -> Tensor:
        ctx.save_for_backward(weights, values)
        ctx.edges, ctx.turned = edges, turned
        matrix, heads = edges.matrix, weights.shape[1]
        if turned:
            assert edges.transpose is not None, "edges were made for gradients"
            matrix = edges.transpose
            weights = weights.index_select(0, matrix.values)
        by_head = zip(
            weights.T.contiguous(), values.view(len(values), heads, values.shape[1] // heads).unbind(1), strict=True
        )
        sums = [replace(matrix, values=weight).matmul(value.contiguous()) for weight, value in by_head]
        return torch.cat(sums, dim=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        weights, values = ctx.saved_tensors
        g = grads[0].contiguous()
        ends = (values, g) if ctx.turned else (g, values)
        by_weights = _dots(ends[0], ends[1], ctx.edges, weights.shape[1]) if ctx.needs_input_grad[0] else None
        by_values = _weighted(weights, g, ctx.edges, turned=not ctx.turned) if ctx.needs_input_grad[1] else None
        return by_weights, by_values, None, None


class _Dots(torch.autograd.Function):
    """For every edge and head the product of the values at its target and at its source."""

    @staticmethod
    def forward(ctx: Any, targets: Tensor, sources: Tensor, edges: Edges, heads: int) -> Tensor:
        ctx.save_for_backward(targets, sources)
        ctx.edges = edges
        step = max(1, (GPU_VALUES_AT_ONCE if targets.is_cuda else VALUES_AT_ONCE) // targets.shape[1])
        found = targets.new_empty(len(edges.target), heads)
        for begin in range(0, len(found), step):
            here = slice(begin, begin + step)
            ends = targets.index_select(0, edges.target[here]) * sources.index_select(0, edges.matrix.indices[here])
            found[here] = ends.view(len(ends), heads, -1).sum(-1)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        targets, sources = ctx.saved_tensors
        by_targets, by_sources = ctx.needs_input_grad[:2]
        return (
            _weighted(grads[0], sources, ctx.edges, turned=False) if by_targets else None,
            _weighted(grads[0], targets, ctx.edges, turned=True) if by_sources else None,
            None,
            None,
        )


def _weighted(weights: Tensor, values: Tensor, edges: Edges, *, turned: bool) -> Tensor:
    return cast(Tensor, _Weighted.apply(weights, values, edges, turned))  # type: ignore[no-untyped-call]


def _dots(targets: Tensor, sources: Tensor, edges: Edges, heads: int) -> Tensor:
    return cast(Tensor, _Dots.apply(targets, sources, edges, heads))  # type: ignore[no-untyped-call]
