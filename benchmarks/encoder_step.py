"""One training step of the encoder against the same network of stock `GCNConv` layers: how many times faster?

Both sides have the same weights, data and loss (cross-entropy), and both have everything cached that stays
the same from step to step: `GCNConv(cached=True)` its normalised edges, ours its operators.
"""

import sys
from collections.abc import Callable
from statistics import median

import numpy as np
import scipy.sparse as sp
import torch
import work
from timing import WIDTH, Line, begin, compared, cs, describe, difference, interleaved, options, ratio, step
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from ipal.backend.operators import operators
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig
from ipal.data.datasets import Dataset, load
from ipal.data.graph import Graph
from ipal.nn.encoders import GCN

HERE = Runtime.of()

ROUNDING = 1e-4


class Stock(nn.Module):
    """The network of `GCN`, from stock layers, with the same weights."""

    def __init__(self, network: GCN) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for weight, bias in zip(network.weights, network.biases, strict=True):
            layer = GCNConv(*weight.shape, cached=True)
            layer.lin.weight.data.copy_(weight.detach().T)
            layer.bias.data.copy_(bias.detach())
            self.layers.append(layer)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        first, second = self.layers
        return second(first(x, edge_index).relu(), edge_index)

    def gradients(self) -> list[Tensor]:
        """In the order and form of `GCN.parameters()`."""
        return [layer.lin.weight.grad.T for layer in self.layers] + [layer.bias.grad for layer in self.layers]


def stock_inputs(graph: Graph) -> tuple[Tensor, Tensor]:
    """Features and edges as the stock loaders give them: dense, and a list."""
    x = graph.x.toarray() if isinstance(graph.x, sp.csr_array) else np.array(graph.x)
    return torch.from_numpy(x), torch.from_numpy(graph.edges)


def dense_features(size: str) -> Dataset:
    """A synthetic graph of ogbn-arxiv's size."""
    nodes, degree = (169_343, 14) if size == "full" else (600, 8)
    return load(f"synthetic:nodes={nodes},classes=40,features=128,degree={degree}")


CASES: dict[str, tuple[str, Callable[[str], Dataset]]] = {
    "sparse": ("CS-sized sparse features", cs),
    "dense": ("Arxiv-sized dense features", dense_features),
}


def measure(case: str, size: str, repeats: int) -> Line:
    """Print one case. Fails where the two sides did not compute the same."""
    title, make = CASES[case]
    dataset = make(size)
    graph = dataset.graph
    labels = torch.from_numpy(dataset.y)
    network = GCN(graph.num_features, EncoderConfig(hidden=WIDTH, width=WIDTH), torch.Generator().manual_seed(0))
    ready = operators(graph, HERE)
    stock = Stock(network)
    x, edge_index = stock_inputs(graph)

    sides = {"stock": lambda: step(stock, labels, x, edge_index), "ours": lambda: step(network, labels, ready)}
    times = interleaved(sides, repeats)
    loss = difference([sides["ours"]()], [sides["stock"]()])
    gradient = difference([p.grad for p in network.parameters()], stock.gradients())

    print(f"\n{title} ({describe(dataset)})")
    print(f"  stock GCNConv  {median(times['stock']):9.1f} ms")
    print(f"  ipal           {median(times['ours']):9.1f} ms")
    print(
        f"  ratio          {ratio(times['stock'], times['ours']):9.2f} x   "
        f"(of the fastest rounds {min(times['stock']) / min(times['ours']):.2f} x)"
    )
    print(f"  largest relative difference: loss {loss:.1e}, gradients {gradient:.1e}")
    if max(loss, gradient) >= ROUNDING:
        sys.exit("The two sides did not compute the same.")
    floor = work.step(work.Layers.of(graph), WIDTH, WIDTH)
    return compared(f"encoder step, {title}", times, "stock", "GCNConv", floor)


def main() -> None:
    parser = options("Encoder step: ours against stock GCNConv.", repeats=11)
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    chosen = parser.parse_args()
    begin(chosen.threads)
    names = CASES if chosen.case == "all" else [chosen.case]
    for name in names:
        measure(name, chosen.size, chosen.repeats)


if __name__ == "__main__":
    main()
