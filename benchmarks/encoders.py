"""One training step of every encoder against the same network of PyTorch Geometric's layers: how many times faster?

Both sides have the same weights, data and loss (cross-entropy), and both have everything cached that stays the same
from step to step: `GCNConv(cached=True)` its normalised edges, ours its operators. Stock layers get edges sorted by
target.
"""

import sys
from collections.abc import Callable
from statistics import median

import scipy.sparse as sp
import torch
from encoder_step import CASES, ROUNDING
from timing import WIDTH, begin, describe, difference, interleaved, options, ratio, step
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from ipal.backend.operators import operators
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig
from ipal.data.datasets import Dataset
from ipal.nn.encoders import ENCODERS, Encoder
from ipal.nn.encoders.base import Parameters


def gcn(p: Parameters) -> tuple[nn.Module, dict[str, Tensor]]:
    return GCNConv(*p["weights"].shape, cached=True), {"lin.weight": p["weights"].T, "bias": p["biases"]}


def sage(p: Parameters) -> tuple[nn.Module, dict[str, Tensor]]:
    weights = {"lin_l.weight": p["weights"].T, "lin_r.weight": p["own_weights"].T, "lin_l.bias": p["biases"]}
    return SAGEConv(*p["weights"].shape), weights


def gat(p: Parameters) -> tuple[nn.Module, dict[str, Tensor]]:
    heads, width = p["queries"].shape
    weights = {"lin.weight": p["weights"].T, "att_src": p["keys"][None], "att_dst": p["queries"][None]}
    return GATConv(len(p["weights"]), width, heads), weights | {"bias": p["biases"]}


STOCK: dict[str, Callable[[Parameters], tuple[nn.Module, dict[str, Tensor]]]] = {
    "gcn": gcn,
    "sage": sage,
    "gat": gat,
}


class Stock(nn.Module):
    """The network of an encoder, from stock layers, with the same weights."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for p in encoder.layers():
            layer, weights = STOCK[encoder.name](p)
            layer.load_state_dict({name: weight.detach() for name, weight in weights.items()})
            self.layers.append(layer)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        first, second = self.layers
        hidden = first(x, edge_index)
        return second(hidden.relu(), edge_index)


def compare(kind: str, title: str, dataset: Dataset, repeats: int) -> bool:
    """Print one case; whether both sides computed the same."""
    graph = dataset.graph
    labels = torch.from_numpy(dataset.y)
    config = EncoderConfig(kind=kind, hidden=WIDTH, width=WIDTH)
    network = ENCODERS[kind](graph.num_features, config, torch.Generator().manual_seed(0))
    ready, stock = operators(graph, Runtime.of(), network.needs), Stock(network)
    # As the stock loaders give them: dense features, edges sorted by target.
    x = torch.from_numpy(graph.x.toarray() if isinstance(graph.x, sp.csr_array) else graph.x)
    edge_index = torch.from_numpy(graph.edges)
    edge_index = edge_index[:, edge_index[1].argsort(stable=True)]

    sides = {"stock": lambda: step(stock, labels, x, edge_index), "ours": lambda: step(network, labels, ready)}
    times = interleaved(sides, repeats)
    loss = difference([sides["ours"]()], [sides["stock"]()])
    # Sums of all entries and of their squares: whatever the order and form of the parameters.
    moments = [
        torch.stack([torch.stack([g.double().abs().sum(), g.double().square().sum()]) for g in gradients]).sum(0)
        for gradients in ([p.grad for p in side.parameters()] for side in (network, stock))
    ]
    gradient = difference(moments[:1], moments[1:])

    print(f"\n{kind}, {title} ({describe(dataset)})")
    print(f"  stock layers   {median(times['stock']):9.1f} ms")
    print(f"  ipal           {median(times['ours']):9.1f} ms")
    print(f"  ratio          {ratio(times['stock'], times['ours']):9.2f} x")
    print(f"  largest relative difference: loss {loss:.1e}, gradients {gradient:.1e}")
    return max(loss, gradient) < ROUNDING


def main() -> None:
    parser = options("Encoder steps: ours against stock layers.", repeats=5)
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    parser.add_argument("--kind", choices=[*STOCK, "all"], default="all")
    chosen = parser.parse_args()
    begin(chosen.threads)
    same = []
    for name in CASES if chosen.case == "all" else [chosen.case]:
        dataset = CASES[name][1](chosen.size)
        kinds = STOCK if chosen.kind == "all" else [chosen.kind]
        same += [compare(kind, CASES[name][0], dataset, chosen.repeats) for kind in kinds]
    if not all(same):
        sys.exit("The two sides did not compute the same.")


if __name__ == "__main__":
    main()
