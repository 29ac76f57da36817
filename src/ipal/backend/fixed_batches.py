"""Mini-batches whose shapes are known before anything is drawn, so that a GPU can repeat their steps by itself.

Every node has as many places for neighbours as the fan-out says; a place for which it has no neighbour holds the node
itself and counts nothing. A node that is met twice is there twice, each time with neighbours drawn anew, which is as
right in the mean. So nothing has to be counted, sorted or waited for; what is computed twice costs a GPU little.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.backend.batches import Batch, features_on, shuffled
from ipal.backend.neighbor_sampling import Sampler, distinct_places
from ipal.backend.operators import Block, Features, Need, Operators, norms, of_rows, propagated_rows
from ipal.backend.runtime import Runtime
from ipal.backend.sparse import SparseMatrix, SparsePair
from ipal.config import Sampling
from ipal.data.csr import Norm
from ipal.data.graph import Graph
from ipal.data.task import Task

MOST_ROWS = 2**20
"""Places of nodes that the first layer computes, of all nodes of a batch together."""


@dataclass(frozen=True, eq=False)
class FixedBatches:
    """Mini-batches of a task."""

    task: Task
    sampling: Sampling
    runtime: Runtime
    needs: Sequence[Need]
    nodes: Tensor
    """The training nodes, on the device."""
    generator: torch.Generator
    rows: Tensor | None
    """Propagated features of all nodes of the graph, where an encoder needs nothing else."""

    @classmethod
    def of(cls, task: Task, sampling: Sampling, runtime: Runtime, needs: Sequence[Need]) -> "FixedBatches | None":
        """None where shapes depend on what is drawn, or would be too large."""
        graph, fanouts = task.graph, sampling.fanouts
        nodes, generator = torch.from_numpy(task.nodes).to(runtime.device), torch.Generator(runtime.device)
        rows = propagated_rows(graph, runtime, needs)
        if rows is not None:  # no neighbours are drawn
            return cls(task, sampling, runtime, needs, nodes, generator, rows) if rows.device == nodes.device else None
        if "all" in fanouts or "attention" in needs or isinstance(graph.x, sp.csr_array):
            return None
        if graph.neighbours.weights is not None or graph.num_edges == 0:
            return None
        number = min(sampling.nodes, len(task.nodes))
        if number * prod(1 + cast(int, fanout) for fanout in fanouts[:-1]) > MOST_ROWS:
            return None
        return cls(task, sampling, runtime, needs, nodes, generator, None)

    def places(self, seed: int) -> list[Tensor | slice]:
        """Which training nodes the batches of an epoch have: every one once, in random order."""
        return shuffled(len(self.nodes), self.sampling.nodes, self.generator.manual_seed(seed))

    def around(self, here: Tensor | slice) -> Batch:
        """A batch of the training nodes `here`, with neighbours drawn anew."""
        if self.rows is not None:
            return Batch(of_rows(self.rows[self.nodes[here]]), here)
        fanouts = cast(tuple[int, ...], self.sampling.fanouts)
        made = around(self.task.graph, self.nodes[here], fanouts, self.needs, self.generator)
        return Batch(made, here)


def around(
    graph: Graph,
    rows: Tensor,
    fanouts: Sequence[int],
    needs: Sequence[Need],
    generator: torch.Generator,
) -> Operators:
    """What embeds some nodes, with a sample of the edges around them: a fan-out a layer, from these nodes outwards."""
    sampler, whole = Sampler.of(graph, rows.device), features_on(graph, rows.device)
    blocks = []
    for fanout in fanouts[:-1]:
        drawn = Drawn.of(sampler, rows, fanout, generator)
        blocks.append(drawn.block(needs))
        rows = drawn.columns.flatten()
    outermost = Drawn.of(sampler, rows, fanouts[-1], generator)
    sums = {norm: outermost.matrix(norm).matmul(whole) for norm in norms(needs)}
    own = whole[rows] if "own" in needs else None
    return Operators(Features(None, sums, own), (Block({}), *blocks[::-1]))


@dataclass(frozen=True, eq=False)
class Drawn:
    """Nodes, each with places for neighbours; the first place of a row is the node itself."""

    columns: Tensor
    """(nodes x places) nodes of the graph."""
    factor: Tensor
    """(nodes x places) 1 for the node itself, d / k for each of k neighbours drawn of d, 0 for none."""
    kept: Tensor
    """(nodes,), how many neighbours were drawn."""
    scale: Tensor
    """1 / sqrt(in-degree + 1) of every node of the graph."""

    @classmethod
    def of(cls, sampler: Sampler, nodes: Tensor, k: int, generator: torch.Generator) -> "Drawn":
        """At most `k` neighbours of each node, without replacement, every set of them equally likely."""
        start = sampler.indptr[nodes]
        degree = sampler.indptr[nodes + 1] - start
        order = torch.arange(k, device=nodes.device)
        place = torch.where(
            degree[:, None] > k, distinct_places(degree.clamp(min=k), k, generator), order.expand(len(nodes), k)
        )
        kept = degree.clamp(max=k)
        is_there = order < kept[:, None]
        neighbour = sampler.indices[torch.where(is_there, start[:, None] + place, 0)].to(nodes.dtype)
        others = torch.where(is_there, (degree / kept.clamp_min(1))[:, None], 0.0)
        columns = torch.cat([nodes[:, None], torch.where(is_there, neighbour, nodes[:, None])], dim=1)
        factor = torch.cat([torch.ones_like(others[:, :1]), others], dim=1)
        return cls(columns, factor, kept, sampler.scale)

    def values(self, norm: Norm) -> Tensor:
        """Of every place, in a sum over neighbours."""
        if norm == "symmetric":
            scales = self.scale[self.columns]
            return scales[:, :1] * self.factor * scales
        others = self.factor[:, 1:]
        if norm == "mean":
            others = (others > 0) / self.kept.clamp_min(1)[:, None]
        return torch.nn.functional.pad(others.to(self.factor.dtype), (1, 0))

    def matrix(self, norm: Norm) -> SparseMatrix:
        """With the nodes of the graph as columns."""
        rows, places = self.columns.shape
        shape = (rows, len(self.scale))
        return SparseMatrix(
            _steps(rows, places, self.scale.device), self.columns.flatten().int(), self.values(norm).flatten(), shape
        )

    def block(self, needs: Sequence[Need]) -> Block:
        """One step, with the places as columns: each is read by one row alone."""
        rows, places = self.columns.shape
        device, every = self.scale.device, rows * places
        each, by_row = _steps(every, 1, device), _steps(rows, places, device)
        owner = each[:-1] // places
        pairs = {}
        for norm in norms(needs):
            values = self.values(norm).flatten()
            forward = SparseMatrix(by_row, each[:-1], values, (rows, every))
            pairs[norm] = SparsePair(forward, SparseMatrix(each, owner, values, (every, rows)))
        if "own" not in needs:
            return Block(pairs)
        ones, firsts = torch.ones(rows, device=device), (each + places - 1) // places
        own = SparseMatrix(_steps(rows, 1, device), by_row[:-1], ones, (rows, every))
        return Block(pairs, SparsePair(own, SparseMatrix(firsts, _steps(rows, 1, device)[:-1], ones, (every, rows))))


def _steps(number: int, length: int, device: torch.device) -> Tensor:
    """0, length, … number * length."""
    return torch.arange(0, number * length + 1, length, dtype=torch.int32, device=device)
