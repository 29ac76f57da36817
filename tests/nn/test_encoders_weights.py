"""Weights of edges in every encoder: outputs and gradients against dense matrices and stock layers."""

from collections.abc import Callable

import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, leaky_relu, normalize

from ipal.backend.propagated import Columns
from ipal.data.graph import Graph
from ipal.nn.encoders import APPNP, Encoder
from tests.nn.encoders_support import KINDS, WEIGHTED, embedded, encoder

EVERY_GRAPH = pytest.mark.parametrize("some", WEIGHTED.values(), ids=WEIGHTED.keys())

Layer = Callable[[Tensor, Tensor, dict[str, Tensor]], Tensor]


def mean(a: Tensor, x: Tensor) -> Tensor:
    """Weighted means over neighbours; zero where there are none."""
    total = a.sum(dim=1, keepdim=True)
    return a @ x / torch.where(total > 0, total, 1)


def propagated(a: Tensor, x: Tensor) -> Tensor:
    """D^-1/2 (A + I) D^-1/2 x, degrees being sums of weights."""
    loops = a + torch.eye(len(a))
    scale = loops.sum(dim=1).rsqrt()
    return scale[:, None] * loops @ (scale[:, None] * x)


def restarted(a: Tensor, x: Tensor, parts: tuple[Columns, ...]) -> Tensor:
    """Unit rows, projected and propagated with restarts; unit rows again, side by side."""
    found = []
    for part in parts:
        start = normalize(x) @ torch.from_numpy(part.projection) if part.is_projected else normalize(x)
        h = start
        for _ in range(part.steps):
            h = (1 - part.restart) * propagated(a, h) + part.restart * start
        found.append(normalize(h))
    return torch.cat(found, dim=1)


def attended(a: Tensor, x: Tensor, p: dict[str, Tensor]) -> Tensor:
    """Attention over a node and its neighbours, proportional to w exp(LeakyReLU(q . z_i + k . z_j))."""
    loops, found = a + torch.eye(len(a)), []
    for z, q, k in zip((x @ p["weights"]).chunk(len(p["queries"]), dim=1), p["queries"], p["keys"], strict=True):
        raised = loops * leaky_relu((z @ q)[:, None] + (z @ k)[None, :], 0.2).exp()
        found.append(raised / raised.sum(dim=1, keepdim=True) @ z)
    return torch.cat(found, dim=1)


LAYERS: dict[str, Layer] = {
    "gcn": lambda a, x, p: propagated(a, x) @ p["weights"] + p["biases"],
    "appnp": lambda a, x, p: x @ p["weights"] + p["biases"],
    "skip": lambda a, x, p: propagated(a, x) @ p["weights"] + x @ p["own_weights"] + p["biases"],
    "sage": lambda a, x, p: mean(a, x) @ p["weights"] + x @ p["own_weights"] + p["biases"],
    "gat": lambda a, x, p: attended(a, x, p) + p["biases"],
}


def features(some: Graph) -> Tensor:
    return torch.from_numpy(some.x.toarray() if isinstance(some.x, sp.csr_array) else some.x)


def by_matrices(kind: str, network: Encoder, some: Graph, layers: list[dict[str, Tensor]]) -> Tensor:
    a, hidden = torch.from_numpy(some.aggregation("sum").toarray()), features(some)
    if isinstance(network, APPNP):
        hidden = restarted(a, hidden, network.rows.columns)
    for number, p in enumerate(layers):
        hidden = LAYERS[kind](a, hidden, p)
        if "scales" in p:
            hidden = layer_norm(hidden, p["scales"].shape, p["scales"], p["shifts"])
        hidden = hidden if number == len(layers) - 1 else hidden.relu()
    return hidden


@EVERY_GRAPH
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_those_of_dense_matrices(kind: str, some: Graph) -> None:
    network = encoder(kind, some.num_features, layers=3)
    copies = [{name: p.detach().clone().requires_grad_() for name, p in layer.items()} for layer in network.layers()]
    got, expected = embedded(network, some), by_matrices(kind, network, some, copies)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(got, embedded(network, Graph(some.x, some.edges)), atol=1e-3)
    direction = torch.randn(got.shape, generator=torch.Generator().manual_seed(3))
    (got * direction).sum().backward()
    (expected * direction).sum().backward()
    for ours, theirs in zip(network.layers(), copies, strict=True):
        for name, copy in theirs.items():
            assert copy.grad is not None
            scale = float(copy.grad.abs().max()) + 1
            torch.testing.assert_close(ours[name].grad, copy.grad, rtol=1e-3, atol=1e-4 * scale)
