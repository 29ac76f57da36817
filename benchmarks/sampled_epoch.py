"""An epoch of mini-batches on arxiv-structure: our encoder against stock `GCNConv` layers on the same sampled batches.

Batches of 2000 training nodes, fan-outs 10 and 25, sampled once and given to both sides, so that both compute the same
function of the same weights; every side is timed from the sampled edges to the updated gradients. Stock layers take a
batch as stock loaders give it: one graph of all sampled nodes, both layers over all of it ("stock"), or each layer over
what it needs, as PyTorch Geometric's `trim_to_layer` does ("stock, trimmed").
"""

import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
import work
from machine import Work
from timing import WIDTH, Line, arxiv_sized, begin, describe, difference, interleaved, options, ratio
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from ipal.backend.batches import Sampler, compact, prefetched
from ipal.backend.operators import Block, Features, Operators
from ipal.backend.sparse import SparseMatrix, SparsePair
from ipal.config import EncoderConfig, Sampling
from ipal.data.datasets import Dataset
from ipal.nn.encoders import GCN

ROUNDING = 1e-3


@dataclass(frozen=True, eq=False)
class Sampled:
    """Sampled edges of one batch, layer by layer: what both sides start from."""

    labels: Tensor
    inner: SparseMatrix
    """(seeds, nodes of the hidden layer)"""
    outer: SparseMatrix
    """(nodes of the hidden layer, nodes of the graph)"""
    seeds: Tensor
    hidden: Tensor


def sample(data: Dataset, sampling: Sampling, train: Tensor, generator: torch.Generator) -> list[Sampled]:
    """One epoch."""
    sampler, found = Sampler.of(data.graph, torch.device("cpu")), []
    for seeds in torch.split(train[torch.randperm(len(train), generator=generator)], sampling.nodes):
        hidden, inner = compact(sampler.rows(seeds, sampling.fanouts[0], generator))
        outer = sampler.rows(hidden, sampling.fanouts[1], generator)
        found.append(Sampled(torch.from_numpy(data.y)[seeds], inner, outer, seeds, hidden))
    return found


class Stock(nn.Module):
    """The network of `GCN`, from stock layers, with the same weights; edges come with their weights."""

    def __init__(self, network: GCN, trimmed: bool) -> None:
        super().__init__()
        self.trimmed = trimmed
        self.layers = nn.ModuleList()
        for weight, bias in zip(network.weights, network.biases, strict=True):
            layer = GCNConv(*weight.shape, normalize=False)
            layer.lin.weight.data.copy_(weight.detach().T)
            layer.bias.data.copy_(bias.detach())
            self.layers.append(layer)

    def gradients(self) -> list[Tensor]:
        """In the order and form of `GCN.parameters()`."""
        return [layer.lin.weight.grad.T for layer in self.layers] + [layer.bias.grad for layer in self.layers]

    def step(self, batch: Sampled, x: Tensor) -> Tensor:
        # All nodes of the batch, the seeds first, then those of the hidden layer, then the rest.
        outermost = torch.unique(batch.outer.indices).long()
        order = torch.cat([batch.seeds, without(batch.hidden, batch.seeds), without(outermost, batch.hidden)])
        place = torch.full((len(x),), -1)
        place[order] = torch.arange(len(order))
        inner, inner_weight = edges(batch.inner, place[batch.seeds], place[batch.hidden])
        outer, outer_weight = edges(batch.outer, place[batch.hidden], place)
        first, second = self.layers
        features = x[order]
        if self.trimmed:
            kept = len(batch.hidden)
            hidden = first(features, outer, outer_weight)[:kept].relu()
            found = second(hidden, inner, inner_weight)[: len(batch.seeds)]
        else:
            # Every layer passes messages along all sampled edges, as on one graph: those of the outer step that a
            # seed's second layer does not need are computed with the rest.
            hidden = first(features, outer, outer_weight).relu()
            everything = torch.cat([inner, outer], dim=1), torch.cat([inner_weight, torch.zeros_like(outer_weight)])
            found = second(hidden, *everything)[: len(batch.seeds)]
        return F.cross_entropy(found, batch.labels)


def without(nodes: Tensor, others: Tensor) -> Tensor:
    return nodes[~torch.isin(nodes, others)]


def edges(matrix: SparseMatrix, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """A sampled matrix as an edge list with weights."""
    target = rows.repeat_interleave(matrix.indptr.diff().long())
    return torch.stack([columns[matrix.indices.long()], target]), matrix.values


def ours(network: GCN, batch: Sampled, x: Tensor) -> Tensor:
    features = Features(None, {"symmetric": batch.outer.matmul(x)})
    inner = Block({"symmetric": SparsePair(batch.inner, batch.inner.transposed())})
    graph = Operators(features, (Block({}), inner))
    return F.cross_entropy(network(graph), batch.labels)


def floor(batch: Sampled, features: int) -> Work:
    """Rows gathered for the outermost layer, and a step from there."""
    outer, inner = len(batch.outer.indices), len(batch.inner.indices)
    seeds, hidden = batch.inner.shape[0], batch.outer.shape[0]
    read = work.Layers(hidden, inner, features, None, seeds, inner)
    return work.sparse(*batch.outer.shape, outer, features) + work.step(read, WIDTH, WIDTH)


def measure(size: str, repeats: int) -> Line:
    """Print an epoch, or its first batches. Fails where the sides did not compute the same."""
    small = size == "small"
    data = arxiv_sized(size)
    sampling = Sampling(nodes=100 if small else 2000)
    x = torch.from_numpy(data.graph.x.toarray() if isinstance(data.graph.x, sp.csr_array) else np.array(data.graph.x))
    train = torch.from_numpy(np.random.default_rng(0).permutation(len(x))[: int(0.6 * len(x))])
    network = GCN(x.shape[1], EncoderConfig(hidden=WIDTH, width=WIDTH), torch.Generator().manual_seed(0))
    network.biases[-1].data += 0.01 * torch.arange(WIDTH)
    stock, trimmed = Stock(network, trimmed=False), Stock(network, trimmed=True)
    generator = torch.Generator().manual_seed(0)
    batches = sample(data, sampling, train, generator)
    print(f"\n{describe(data)}; {len(batches)} batches of {sampling.nodes} of {len(train):,} nodes, fan-outs 10 and 25")

    networks = {"stock": stock, "trimmed": trimmed, "ours": network}
    steps = {"stock": stock.step, "trimmed": trimmed.step, "ours": partial(ours, network)}
    losses: dict[str, list[Tensor]] = {name: [] for name in steps}

    def step(name: str, batch: Sampled) -> None:
        networks[name].zero_grad(set_to_none=True)
        loss = steps[name](batch, x)
        loss.backward()
        losses[name].append(loss.detach())

    # The sides take turns batch by batch, so that whatever else the machine does slows all of them.
    times: dict[str, list[float]] = {name: [] for name in steps}
    some = batches[: repeats or None]
    for batch in some:
        for name, found in interleaved({name: partial(step, name, batch) for name in steps}, 1).items():
            times[name] += found
    wrong = max(
        difference(losses["ours"], losses[name]) + difference([p.grad for p in network.parameters()], other.gradients())
        for name, other in (("stock", stock), ("trimmed", trimmed))
    )

    def with_sampling() -> None:
        makers = [partial(sample, data, sampling, seeds, generator) for seeds in torch.split(train, sampling.nodes)]
        for (batch,) in prefetched(makers[: repeats or None]):
            step("ours", batch)

    anew = interleaved({"anew": with_sampling}, 1)["anew"]
    for title, name in (("stock GCNConv", "stock"), ("stock GCNConv, trimmed", "trimmed"), ("ipal", "ours")):
        print(f"  {title:24s} {sum(times[name]) / 1000:8.2f} s")
    print(f"  {'ipal, sampling included':24s} {sum(anew) / 1000:8.2f} s (sampled ahead in another thread)")
    for title, name in (("ratio", "stock"), ("ratio to trimmed", "trimmed")):
        whole = sum(times[name]) / sum(times["ours"])
        print(f"  {title:24s} {whole:8.2f} x (median of batches {ratio(times[name], times['ours']):.2f})")
    print(f"  largest relative difference of losses and gradients: {wrong:.1e}")
    if wrong > ROUNDING:
        sys.exit("The sides did not compute the same.")
    seconds, trimmed_seconds = (sum(times[name]) / 1000 for name in ("ours", "trimmed"))
    least = sum((floor(batch, x.shape[1]) for batch in some), Work())
    what = f"sampled epoch, {len(some)} batches of {sampling.nodes}"
    return Line(what, seconds, trimmed_seconds, "GCNConv, trimmed", least)


def main() -> None:
    parser = options("A sampled epoch: ours against stock GCNConv.", repeats=0, what="batches, 0 for the whole epoch")
    chosen = parser.parse_args()
    begin(chosen.threads)
    measure(chosen.size, chosen.repeats)


if __name__ == "__main__":
    main()
