"""What one step of training learns from: a whole task at once, or some of its nodes with a sample around them.

A layer of a graph network is a sum or a mean over neighbours. Of a node with d neighbours k are drawn, without
replacement, and a sum over them is multiplied by d / k: right in the mean, as is their mean, whatever is drawn. The
node itself, and all neighbours of a node that has no more than k, are always there. Edges are drawn whatever their
weights: a weighted mean is that of the neighbours drawn, by their weights.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, Literal, TypeVar

import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend import fused
from ipal.backend.attention import Edges
from ipal.backend.operators import (
    Block,
    Features,
    Need,
    Operators,
    norms,
    of_rows,
    operators,
    picked,
    propagated_rows,
)
from ipal.backend.runtime import Runtime
from ipal.backend.sparse import SparseMatrix, SparsePair, read_only, row_starts
from ipal.config import EncoderConfig, Sampling
from ipal.data.csr import Norm
from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.errors import ConfigError

Fanout = int | Literal["all"]
Item = TypeVar("Item")
Rows = TypeVar("Rows", bound=SparseMatrix)


@dataclass(frozen=True, eq=False)
class Batch:
    """The nodes one step learns from: a whole task's, or a sample of them with its neighbourhood."""

    graph: Operators
    """Gives the embeddings of these nodes, in order."""
    positions: Tensor | slice
    """Which of the task's training nodes they are; a slice where they are all of them."""


def fanouts_for(layers: int) -> tuple[int, ...]:
    """Usual fan-outs of so many layers."""
    return (10, *repeat(25, layers - 1))


def check_fanouts(batch: Sampling, encoder: EncoderConfig) -> None:
    """Refuse mini-batches that do not have one fan-out for every layer."""
    fanouts, layers = len(batch.fanouts), encoder.layers
    if fanouts != layers:
        example = list(fanouts_for(layers))
        raise ConfigError(
            f"protocol.batch.fanouts names {fanouts} fan-out(s) for {layers} layers: give one for each, as {example}."
        )


def whole_task(task: Task, runtime: Runtime, needs: Sequence[Need] = ("symmetric",)) -> Batch:
    """All training nodes of a task, with all edges; `needs` are those of the encoder."""
    return Batch(operators(task, runtime, needs), slice(None))


def sampled(
    task: Task, sampling: Sampling, seed: int, runtime: Runtime, needs: Sequence[Need] = ("symmetric",)
) -> Iterator[Batch]:
    """One epoch: every training node once, in random order; the same seed gives the same batches.

    They are made ahead in another thread, one after the other, so that each draws what it would draw anyway.
    """
    device, number = runtime.device, len(task.nodes)
    generator = torch.Generator(device).manual_seed(seed)
    places: Sequence[Tensor | slice] = [slice(None)]
    if sampling.nodes < number:
        places = torch.split(torch.randperm(number, generator=generator, device=device), sampling.nodes)
    nodes = torch.from_numpy(task.nodes).to(device)
    # On a GPU the other thread works on this one's stream, so that a batch is ready when it is used.
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
    whole = propagated_rows(task.graph, runtime, needs)

    def make(here: Tensor | slice) -> Batch:
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            if whole is not None:
                return Batch(of_rows(picked(whole, nodes[here], device)), here)
            return Batch(around(task.graph, nodes[here], sampling.fanouts, needs, generator), here)

    return prefetched([partial(make, here) for here in places])


def prefetched(makers: Sequence[Callable[[], Item]]) -> Iterator[Item]:
    """What the makers give, in order; the next is made in another thread while one is in use."""
    with ThreadPoolExecutor(1) as thread:
        ahead = deque[Future[Item]]()
        for maker in makers:
            ahead.append(thread.submit(maker))
            if len(ahead) > 1:
                yield ahead.popleft().result()
        yield from (one.result() for one in ahead)


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
                move(graph.neighbours.indptr),
                move(graph.neighbours.indices),
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


def around(
    graph: Graph,
    rows: Tensor,
    fanouts: Sequence[Fanout],
    needs: Sequence[Need],
    generator: torch.Generator,
) -> Operators:
    """What embeds some nodes, with a sample of the edges around them: a fan-out a layer, from these nodes outwards."""
    neighbours, device = Sampler.of(graph, generator.device), generator.device
    blocks = []
    for fanout in fanouts[:-1]:
        columns, matrix = compact(neighbours.rows(rows, fanout, generator))
        blocks.append(_block(neighbours, rows, matrix, needs))
        rows = columns
    outermost = neighbours.rows(rows, fanouts[-1], generator)
    if isinstance(graph.x, sp.csr_array):
        columns, matrix = compact(outermost)
        features = Features(SparsePair.of(graph.x[columns.cpu().numpy()], device), {})
        blocks.append(_block(neighbours, rows, matrix, needs))
        return Operators(features, tuple(blocks[::-1]))
    # Nothing is learned about features: their sums are the same whatever the weights are.
    whole, read = graph.derived("features", device, lambda: read_only(graph.x).to(device)), None
    sums = {norm: neighbours.with_norm(outermost, rows, norm).matmul(whole) for norm in norms(needs)}
    first = Block({})
    if "attention" in needs:
        columns, matrix = compact(outermost)
        first, read = _block(neighbours, rows, matrix, ("attention",)), whole[columns]
    own = whole[rows] if "own" in needs else None
    return Operators(Features(read, sums, own), (first, *blocks[::-1]))


def _block(neighbours: Sampler, rows: Tensor, matrix: SampledRows, needs: Sequence[Need]) -> Block:
    """One sampled step; the first entry of every row is the node itself."""
    made = [(norm, neighbours.with_norm(matrix, rows, norm)) for norm in norms(needs)]
    pairs = {norm: SparsePair(some, some.transposed()) for norm, some in made}
    if not {"own", "attention"} & set(needs):
        return Block(pairs)
    starts = matrix.indptr[:-1]
    one_each = torch.arange(len(rows) + 1, device=starts.device, dtype=starts.dtype)
    itself = SparseMatrix(
        one_each, matrix.indices[starts], torch.ones(len(rows), device=starts.device), (len(rows), matrix.shape[1])
    )
    edges = Edges.of(matrix, weights=matrix.weights) if "attention" in needs else None
    return Block(pairs, SparsePair(itself, itself.transposed()), edges)
