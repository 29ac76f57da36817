"""What one step of training learns from: a whole task at once, or some of its nodes with a sample around them."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.backend.distributed import team
from ipal.backend.neighbor_sampling import Sampler, compact, prefetched
from ipal.backend.operators import Operators, SampledOperators, SparsePair, operators, read_only
from ipal.backend.partition import by_seeds
from ipal.config import Sampling
from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.system.tracing import spanned


@dataclass(frozen=True, eq=False)
class Batch:
    """The nodes one step learns from: a whole task's, or a sample of them with its neighbourhood."""

    graph: Operators
    """Gives the embeddings of these nodes, in order."""
    positions: Tensor | slice
    """Which of the task's training nodes they are; a slice where they are all of them."""


@spanned("preparation")
def whole_task(task: Task, device: torch.device) -> Batch:
    """All training nodes of a task, with all edges."""
    return Batch(operators(task, device), slice(None))


@spanned("sampling")
def sampled(task: Task, sampling: Sampling, seed: int, device: torch.device) -> Iterator[Batch]:
    """One epoch: every training node once, in random order; the same seed gives the same batches.

    They are made ahead in another thread, one after the other, so that each draws what it would draw anyway. In a
    team every process has the same batches, and makes its share of each with draws of its own.
    """
    generator = torch.Generator(device).manual_seed(seed)
    number = len(task.nodes)
    if sampling.nodes >= number:
        places: list[Tensor | slice] = [slice(None)]
    else:
        places = list(torch.split(torch.randperm(number, generator=generator, device=device), sampling.nodes))
    if team().size > 1:
        generator = torch.Generator(device).manual_seed(seed + 1 + team().rank)
    nodes = torch.from_numpy(task.nodes).to(device)
    # On a GPU the other thread works on this one's stream, so that a batch is ready when it is used.
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
    return prefetched([partial(_around, task.graph, nodes, here, sampling, generator, stream) for here in places])


@spanned("sampling")
def _around(
    graph: Graph,
    nodes: Tensor,
    here: Tensor | slice,
    sampling: Sampling,
    generator: torch.Generator,
    stream: torch.cuda.Stream | None,
) -> Batch:
    """A batch of the training nodes `here`, with one sampled step outwards for every layer."""
    with nullcontext() if stream is None else torch.cuda.stream(stream):
        return _sample(graph, nodes, here, sampling, generator)


def _sample(graph: Graph, nodes: Tensor, here: Tensor | slice, sampling: Sampling, generator: torch.Generator) -> Batch:
    neighbours = Sampler.of(graph, generator.device)
    seeds = nodes[here]
    read = team().share(len(seeds))
    layout = by_seeds(read)
    rows, blocks = read.of(seeds), []
    for fanout in sampling.fanouts[:-1]:
        rows, matrix = compact(neighbours.rows(rows, fanout, generator))
        blocks.append(SparsePair(matrix, matrix.transposed()))
    outermost = neighbours.rows(rows, sampling.fanouts[-1], generator)
    if not isinstance(graph.x, sp.csr_array):
        # Nothing is learned about features: their part of the first layer is the same whatever the weights are.
        spread = outermost.matmul(_features(graph, generator.device))
        return Batch(SampledOperators(spread, tuple(blocks[::-1]), layout=layout), here)
    columns, matrix = compact(outermost)
    x = SparsePair.of(graph.x[columns.cpu().numpy()], generator.device)
    through = (SparsePair(matrix, matrix.transposed()), *blocks[::-1])
    return Batch(SampledOperators(x, through, layout=layout), here)


def _features(graph: Graph, device: torch.device) -> Tensor:
    return graph.derived("features", device, lambda: read_only(graph.x).to(device))
