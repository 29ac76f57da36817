"""What one step of training learns from: a whole task at once, or some of its nodes with a sample around them."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.backend.attention import Edges
from ipal.backend.neighbor_sampling import Fanout, SampledRows, Sampler, compact, prefetched
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
from ipal.backend.sparse import SparseMatrix, SparsePair, read_only
from ipal.config import EncoderConfig, Sampling
from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.errors import ConfigError


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
            f"protocol.batch.fanouts names {fanouts} fan-out(s) for {layers} layers: give one for each, as {example}.",
            "protocol.batch.fanouts",
        )


def whole_task(task: Task, runtime: Runtime, needs: Sequence[Need] = ("symmetric",)) -> Batch:
    """All training nodes of a task, with all edges; `needs` are those of the encoder."""
    return Batch(operators(task, runtime, needs), slice(None))


def shuffled(number: int, size: int, generator: torch.Generator) -> list[Tensor | slice]:
    """Which of so many training nodes each batch of an epoch has: every one once, in random order."""
    if size >= number:
        return [slice(None)]
    return list(torch.split(torch.randperm(number, generator=generator, device=generator.device), size))


def sampled(
    task: Task, sampling: Sampling, seed: int, runtime: Runtime, needs: Sequence[Need] = ("symmetric",)
) -> Iterator[Batch]:
    """One epoch: every training node once, in random order; the same seed gives the same batches.

    They are made ahead in another thread, one after the other, so that each draws what it would draw anyway.
    """
    device = runtime.device
    generator = torch.Generator(device).manual_seed(seed)
    places = shuffled(len(task.nodes), sampling.nodes, generator)
    nodes = torch.from_numpy(task.nodes).to(device)
    # On a GPU the other thread works on this one's stream, so that a batch is ready when it is used.
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
    whole = propagated_rows(task.graph, runtime, needs)
    make = partial(_around, task.graph, nodes, sampling, needs, whole, runtime, generator, stream)
    return prefetched([partial(make, here) for here in places])


def _around(
    graph: Graph,
    nodes: Tensor,
    sampling: Sampling,
    needs: Sequence[Need],
    whole: Tensor | None,
    runtime: Runtime,
    generator: torch.Generator,
    stream: torch.cuda.Stream | None,
    here: Tensor | slice,
) -> Batch:
    """A batch of the training nodes `here`, with one sampled step outwards for every layer, or their own rows alone."""
    with nullcontext() if stream is None else torch.cuda.stream(stream):
        seeds = nodes[here]
        if whole is not None:
            return Batch(of_rows(picked(whole, seeds, runtime.device)), here)
        return Batch(around(graph, seeds, sampling.fanouts, needs, generator), here)


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
    whole, read = features_on(graph, device), None
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


def features_on(graph: Graph, device: torch.device) -> Tensor:
    """Dense features, moved to a device once."""
    return graph.derived("features", device, lambda: read_only(graph.x).to(device))
