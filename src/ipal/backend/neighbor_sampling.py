"""Mini-batches of a graph: a uniform sample of every node's neighbours, in vectorised tensor operations.

A layer of a graph network is a sum or a mean over neighbours. Of a node with d neighbours k are drawn, without
replacement, and a sum over them is multiplied by d / k: right in the mean, as is their mean, whatever is drawn. The
node itself, and all neighbours of a node that has no more than k, are always there. Edges are drawn whatever their
weights: a weighted mean is that of the neighbours drawn, by their weights.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend import fused
from ipal.backend.sparse import SparseMatrix, read_only, row_starts
from ipal.data.csr import Norm
from ipal.data.graph import Graph

Fanout = int | Literal["all"]
Item = TypeVar("Item")
Rows = TypeVar("Rows", bound=SparseMatrix)


def distinct_places(degree: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """`k` different whole numbers below each of `degree` (all at least k), every set of them equally likely.

    Floyd's algorithm (Bentley & Floyd 1987, "A sample of brilliance") for all rows at once: the s-th draw is below
    d - k + s + 1, and where it was drawn before, d - k + s itself is taken. The work does not depend on d.
    """
    draws = torch.rand(len(degree), k, generator=generator, device=degree.device, dtype=torch.float64)
    if degree.dtype == torch.int64 and fused.has_kernels(degree.device):
        return fused.distinct_places(draws, degree)
    chosen = torch.empty(len(degree), k, dtype=torch.int64, device=degree.device)
    for s in range(k):
        last = degree - k + s
        drawn = (draws[:, s] * (last + 1)).long().clamp_(max=last)
        taken = (chosen[:, :s] == drawn[:, None]).any(dim=1)
        chosen[:, s] = torch.where(taken, last, drawn)
    return chosen


@dataclass(frozen=True, eq=False)
class SampledRows(SparseMatrix):
    """Rows of D^-1/2 (A + I) D^-1/2 with a sample of their neighbours; the first entry of each is the node itself."""

    weights: Tensor | None = None
    """Of the edge of every entry, one for the node itself; None where all are one."""


@dataclass(frozen=True, eq=False)
class Sampler:
    """The in-neighbours of every node of a graph, ready on a device."""

    indptr: Tensor
    indices: Tensor
    scale: Tensor
    """1 / sqrt(in-degree + 1)"""
    weights: Tensor | None
    """Of every edge; None where all are one."""

    @classmethod
    def of(cls, graph: Graph, device: torch.device) -> "Sampler":
        """Made once, and kept as long as the graph lives."""

        def move(part: NDArray[Any]) -> Tensor:
            return read_only(part).to(device)

        weights = graph.neighbours.weights
        return graph.derived(
            "sampler",
            device,
            lambda: cls(
                move(graph.indptr),
                move(graph.indices),
                move(graph.neighbours.scale),
                None if weights is None else move(weights),
            ),
        )

    def rows(self, nodes: Tensor, fanout: Fanout, generator: torch.Generator) -> SampledRows:
        """Rows of D^-1/2 (A + I) D^-1/2, each with all or a sample of its neighbours; columns are the graph's nodes."""
        start = self.indptr[nodes]
        degree = self.indptr[nodes + 1] - start
        edge, kept = self._all(start, degree) if fanout == "all" else self._some(start, degree, fanout, generator)
        ends = (kept + 1).cumsum(0)
        owner = torch.arange(len(nodes), device=nodes.device).repeat_interleave(kept, output_size=len(edge))
        # The node itself stands first in its row, then its neighbours.
        itself, others = ends - kept - 1, torch.arange(len(edge), device=nodes.device) + owner + 1
        neighbour = self.indices[edge]
        columns = torch.empty(len(nodes) + len(edge), dtype=torch.int32, device=nodes.device)
        columns[itself], columns[others] = nodes.int(), neighbour
        values = torch.empty(len(columns), dtype=torch.float32, device=nodes.device)
        scale = self.scale[nodes]
        values[itself] = scale.square()
        values[others] = (scale * (degree / kept.clamp_min(1)))[owner] * self.scale[neighbour]
        weights = None
        if self.weights is not None:
            weights = torch.ones_like(values)
            weights[others] = self.weights[edge]
            values *= weights
        starts, shape = row_starts(ends, len(columns)), (len(nodes), len(self.scale))
        return SampledRows(starts, columns, values, shape, weights=weights)

    def with_norm(self, rows: SampledRows, nodes: Tensor, norm: Norm) -> SampledRows:
        """Sampled rows of `nodes` with the values of another sum over neighbours: the node itself is no part of it."""
        if norm == "symmetric":
            return rows
        entries = rows.indptr.diff()
        factor = 1 / (entries - 1).clamp_min(1)
        if norm == "sum":
            factor = (self.indptr[nodes + 1] - self.indptr[nodes]) * factor
        elif rows.weights is not None:
            others = rows.weights.double().index_fill(0, rows.indptr[:-1].long(), 0)
            total = torch.segment_reduce(others, "sum", lengths=entries.long(), unsafe=True)
            factor = 1 / torch.where(entries > 1, total, 1)
        values = factor.float().repeat_interleave(entries, output_size=len(rows.indices))
        if rows.weights is not None:
            values *= rows.weights
        values[rows.indptr[:-1]] = 0
        return replace(rows, values=values)

    def _all(self, start: Tensor, degree: Tensor) -> tuple[Tensor, Tensor]:
        """Places of all edges of the rows, row by row, and how many each row has."""
        before = degree.cumsum(0) - degree
        total = int(degree.sum())
        return torch.arange(total, device=start.device) + (start - before).repeat_interleave(
            degree, output_size=total
        ), degree

    def _some(self, start: Tensor, degree: Tensor, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Places of at most `k` edges of each row, row by row, and how many each row has."""
        place = torch.arange(k, device=start.device).expand(len(start), k)
        many = degree > k
        if bool(many.any()):
            place = place.clone()
            place[many] = distinct_places(degree[many], k, generator)
        kept = degree.clamp(max=k)
        real = torch.arange(k, device=start.device) < kept[:, None]
        return (start[:, None] + place)[real], kept


def compact(matrix: Rows) -> tuple[Tensor, Rows]:
    """The columns that hold anything, ascending, and the matrix of these alone. They are marked, not sorted."""
    place = torch.zeros(matrix.shape[1], dtype=torch.int32, device=matrix.indices.device)
    place[matrix.indices] = 1
    columns = torch.nonzero(place).flatten()
    place[columns] = torch.arange(len(columns), dtype=torch.int32, device=place.device)
    rows, _ = matrix.shape
    return columns, replace(matrix, indices=place[matrix.indices], shape=(rows, len(columns)))


def prefetched(makers: Sequence[Callable[[], Item]]) -> Iterator[Item]:
    """What the makers give, in order; the next is made in another thread while one is in use."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        ahead: Future[Item] | None = None
        for index in range(len(makers)):
            ready = ahead or thread.submit(makers[index])
            ahead = thread.submit(makers[index + 1]) if index + 1 < len(makers) else None
            item = ready.result()
            yield item
