"""The paper's encoder: by hand, how it starts, and what dropout does."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from ipal.backend.operators import Operators, operators
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig
from ipal.data.csr import aggregation_rows
from ipal.data.graph import Features, Graph, checked_graph
from ipal.nn.encoders import GCN
from tests.nn.encoders_support import GRAPHS, RANDOM, edges_among
from tests.nn.support import double_operators

HERE = Runtime.of()

CPU = torch.device("cpu")


def graph(x: Features, edges: list[list[int]], *, undirected: bool) -> Graph:
    return checked_graph(x, np.array(edges, dtype=np.int64), undirected=undirected)


def encoder(num_features: int, *, seed: int = 0, **config: object) -> GCN:
    return GCN(num_features, EncoderConfig(**config), torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------ the propagation matrix


def test_aggregation_rows_by_hand() -> None:
    # 0 -> 1, 0 -> 2, 1 -> 2, so rows gather from 0 and from 0 and 1. In-degrees with the loop: 1, 2, 3 (out-degrees
    # would be 3, 2, 1); entry (i, j) is 1 / sqrt(d_i d_j).
    directed = graph(np.ones((3, 1), dtype=np.float32), [[0, 0, 1], [1, 2, 2]], undirected=False)
    expected = [
        [1, 0, 0],
        [1 / math.sqrt(2 * 1), 1 / 2, 0],
        [1 / math.sqrt(3 * 1), 1 / math.sqrt(3 * 2), 1 / 3],
    ]
    normalised = aggregation_rows(directed.neighbours, "symmetric", 0, 3)
    np.testing.assert_allclose(normalised.toarray(), expected, rtol=1e-6)
    assert normalised.dtype == np.float32


# ------------------------------------------------------------------ by hand


@pytest.mark.parametrize("last_activation", ["none", "relu"])
def test_gcn_by_hand(last_activation: str) -> None:
    # A pair of nodes and a node alone: propagation averages the pair and leaves the third as it is.
    three = graph(np.array([[1.0], [3.0], [-2.0]], dtype=np.float32), [[0], [1]], undirected=True)
    network = encoder(1, hidden=2, width=2, last_activation=last_activation)
    values = [[[1.0, -1.0]], [[1.0, 2.0], [4.0, 8.0]]], [[1.0, 0.5], [-10.0, 0.25]]
    with torch.no_grad():
        for parameters, numbers in zip((network.weights, network.biases), values, strict=True):
            for parameter, number in zip(parameters, numbers, strict=True):
                parameter.copy_(torch.tensor(number))
    # Propagated features 2, 2, -2. First layer: (2 + 1, -2 + 0.5) = (3, -1.5), after ReLU (3, 0); for the third
    # node (-2 + 1, 2 + 0.5) = (-1, 2.5), after ReLU (0, 2.5). Propagating changes neither.
    # Second layer: 3 (1, 2) + (-10, 0.25) = (-7, 6.25) and 2.5 (4, 8) + (-10, 0.25) = (0, 20.25).
    lowest = 0.0 if last_activation == "relu" else -7.0
    expected = torch.tensor([[lowest, 6.25], [lowest, 6.25], [0.0, 20.25]])
    torch.testing.assert_close(network(operators(three, HERE)), expected)


def test_gcn_starts_with_glorot_weights_and_no_bias() -> None:
    network = encoder(300, hidden=200, width=100)
    for weight, bias in zip(network.weights, network.biases, strict=True):
        bound = math.sqrt(6 / sum(weight.shape))
        assert weight.abs().max() <= bound
        assert weight.abs().max() > 0.99 * bound
        assert not bias.any()


# ------------------------------------------------------------------ dropout


def passing_through(dropout: float, layers: int) -> tuple[GCN, Operators]:
    """An encoder that hands on one feature of ones in 50 columns, and 400 nodes without edges: dropout alone shows."""
    network = encoder(1, layers=layers, hidden=50, width=50, dropout=dropout)
    with torch.no_grad():
        for weight in network.weights:
            weight.copy_(torch.ones(1, 50) if len(weight) == 1 else torch.eye(50))
    return network, operators(graph(np.ones((400, 1), dtype=np.float32), [[], []], undirected=True), HERE)


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("dropout", [0.1, 0.75])
def test_gcn_drops_its_share_before_every_layer_but_the_first(dropout: float, layers: int) -> None:
    network, made = passing_through(dropout, layers)
    f = network.train()(made).detach()
    kept = (1 - dropout) ** (layers - 1)
    assert f.unique().tolist() == pytest.approx([0, 1 / kept])
    # Of 20,000 numbers, within four standard deviations.
    assert (f > 0).float().mean().item() == pytest.approx(kept, abs=4 * math.sqrt(kept * (1 - kept) / f.numel()))
    assert not torch.equal(network(made), f)


def test_gcn_drops_nothing_outside_training() -> None:
    some = operators(GRAPHS["undirected"], HERE)
    network, without = (encoder(7, layers=3, hidden=6, width=5, dropout=dropout) for dropout in (0.5, 0.0))
    before = network.generator.get_state()
    assert torch.equal(network.eval()(some), without(some))
    assert torch.equal(network.generator.get_state(), before)


# ------------------------------------------------------------------ gradients


def test_gcn_has_the_right_first_and_second_derivatives_with_dropout() -> None:
    some = graph(RANDOM.normal(size=(6, 3)).astype(np.float32), edges_among(6, 8).tolist(), undirected=False)
    made = double_operators(some)
    network = encoder(3, layers=3, hidden=4, width=3, dropout=0.4).double().train()

    def embeddings(*_: Tensor) -> Tensor:
        network.generator.manual_seed(3)  # the same activations are dropped every time
        f: Tensor = network(made)
        return f

    assert gradcheck(embeddings, tuple(network.parameters()))
    assert gradgradcheck(embeddings, tuple(network.parameters()))
