"""The encoder against numbers worked by hand, finite differences and PyTorch Geometric's GCNConv."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch_geometric.nn import GCNConv

from ipal.backend.operators import Operators, operators
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig
from ipal.data.csr import Neighbours, normalised_adjacency
from ipal.data.graph import Features, Graph, checked_graph
from ipal.data.streams import TaskStream
from ipal.nn.encoders import GCN
from tests.nn.support import double_operators

HERE = Runtime.of()

CPU = torch.device("cpu")


def graph(x: Features, edges: list[list[int]], *, undirected: bool) -> Graph:
    return checked_graph(x, np.array(edges, dtype=np.int64), undirected=undirected)


def encoder(num_features: int, *, seed: int = 0, **config: object) -> GCN:
    return GCN(num_features, EncoderConfig(**config), torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------ the propagation matrix


def test_normalised_adjacency_by_hand() -> None:
    # 0 -> 1, 0 -> 2, 1 -> 2, so rows gather from 0 and from 0 and 1. In-degrees with the loop: 1, 2, 3 (out-degrees
    # would be 3, 2, 1); entry (i, j) is 1 / sqrt(d_i d_j).
    directed = graph(np.ones((3, 1), dtype=np.float32), [[0, 0, 1], [1, 2, 2]], undirected=False)
    expected = [
        [1, 0, 0],
        [1 / math.sqrt(2 * 1), 1 / 2, 0],
        [1 / math.sqrt(3 * 1), 1 / math.sqrt(3 * 2), 1 / 3],
    ]
    normalised = normalised_adjacency(directed.neighbours, 0, 3)
    np.testing.assert_allclose(normalised.toarray(), expected, rtol=1e-6)
    assert normalised.dtype == np.float32


def test_normalised_adjacency_of_an_isolated_node_is_its_loop() -> None:
    assert normalised_adjacency(Neighbours.none(2), 0, 2).toarray().tolist() == [[1, 0], [0, 1]]


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


def test_gcn_is_decided_by_the_generator() -> None:
    first, again, other = (encoder(5, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.weights[0], again.weights[0])
    assert not torch.equal(first.weights[0], other.weights[0])


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


def test_gcn_without_dropout_draws_nothing_in_training() -> None:
    some = operators(GRAPHS["undirected"], HERE)
    network = encoder(7, hidden=6, width=5)
    before = network.generator.get_state()
    assert torch.equal(network.train()(some), network.eval()(some))
    assert torch.equal(network.generator.get_state(), before)


def test_gcn_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    encoder(7, dropout=0.5).train()(operators(GRAPHS["undirected"], HERE))
    assert torch.equal(torch.get_rng_state(), before)


# ------------------------------------------------------------------ gradients


def random_edges(n: int, edges: int) -> list[list[int]]:
    return np.random.default_rng(0).integers(0, n, (2, edges)).tolist()


def sparse_features(n: int, width: int, per_node: int) -> sp.csr_array:
    random = np.random.default_rng(1)
    rows = np.repeat(np.arange(n), per_node)
    columns = np.concatenate([random.choice(width, per_node, replace=False) for _ in range(n)])
    return sp.csr_array((random.random(len(rows)).astype(np.float32) + 0.5, (rows, columns)), shape=(n, width))


@pytest.mark.parametrize("undirected", [True, False])
def test_gcn_has_the_right_gradient_with_sparse_features(undirected: bool) -> None:
    some = graph(sparse_features(6, 8, 2), random_edges(6, 8), undirected=undirected)
    made = double_operators(some, [4, 1, 2], keep_sparse=True)
    network = encoder(8, layers=3, hidden=4, width=3).double()
    # Finite differences change the parameters in place, so the network sees them without being handed them.
    assert gradcheck(lambda *_: network(made), tuple(network.parameters()))


def test_gcn_has_the_right_first_and_second_derivatives_with_dropout() -> None:
    some = graph(dense_features(6, 3), random_edges(6, 8), undirected=False)
    made = double_operators(some)
    network = encoder(3, layers=3, hidden=4, width=3, dropout=0.4).double().train()

    def embeddings(*_: Tensor) -> Tensor:
        network.generator.manual_seed(3)  # the same activations are dropped every time
        f: Tensor = network(made)
        return f

    assert gradcheck(embeddings, tuple(network.parameters()))
    assert gradgradcheck(embeddings, tuple(network.parameters()))


# ------------------------------------------------------------------ PyTorch Geometric


class Reference(nn.Module):
    """The same network made of GCNConv layers, with the same weights."""

    def __init__(self, network: GCN) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for weight, bias in zip(network.weights, network.biases, strict=True):
            layer = GCNConv(*weight.shape)
            with torch.no_grad():
                layer.lin.weight.copy_(weight.T)
                layer.bias.copy_(bias)
            self.layers.append(layer)

    def forward(self, graph: Graph) -> Tensor:
        x = graph.x.toarray() if isinstance(graph.x, sp.csr_array) else graph.x
        hidden, edges = torch.from_numpy(x), torch.from_numpy(graph.edges)
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden if index == 0 else hidden.relu(), edges)
        return hidden


def dense_features(n: int, width: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(n, width)).astype(np.float32)


GRAPHS = {
    "undirected": graph(dense_features(30, 7), random_edges(30, 60), undirected=True),
    "directed": graph(dense_features(30, 7), random_edges(30, 60), undirected=False),
    # Edges among the first twelve nodes only.
    "isolated nodes": graph(dense_features(30, 7), random_edges(12, 30), undirected=True),
    "no edges": graph(dense_features(5, 7), [[], []], undirected=True),
    "sparse features": graph(sparse_features(30, 200, 3), random_edges(30, 60), undirected=True),
    "sparse features, directed": graph(sparse_features(30, 200, 3), random_edges(30, 60), undirected=False),
    "half sparse features": graph(sparse_features(30, 20, 8), random_edges(30, 60), undirected=True),
}


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("some", GRAPHS.values(), ids=GRAPHS.keys())
def test_gcn_equals_pytorch_geometrics_layers_with_the_same_gradients(some: Graph, layers: int) -> None:
    network = encoder(some.num_features, layers=layers, hidden=6, width=5)
    with torch.no_grad():
        for bias in network.biases:
            bias.uniform_(-0.5, 0.5, generator=torch.Generator().manual_seed(2))
    reference = Reference(network)
    got, expected = network(operators(some, HERE)), reference(some)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)

    # Any scalar will do, as long as every embedding counts differently.
    direction = torch.randn(got.shape, generator=torch.Generator().manual_seed(3))
    (got * direction).sum().backward()
    (expected * direction).sum().backward()
    for weight, bias, layer in zip(network.weights, network.biases, reference.layers, strict=True):
        torch.testing.assert_close(weight.grad, layer.lin.weight.grad.T, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(bias.grad, layer.bias.grad, rtol=1e-4, atol=1e-4)


def test_gcn_gives_a_task_the_rows_of_its_training_nodes(tiny_stream: TaskStream) -> None:
    task = tiny_stream.task(0)
    network = encoder(task.graph.num_features, layers=3, hidden=8, width=4)
    everywhere = network(operators(task.graph, HERE))
    torch.testing.assert_close(
        network(operators(task, HERE)), everywhere[torch.from_numpy(task.nodes)], rtol=1e-5, atol=1e-5
    )


def test_gcn_leaves_its_operators_as_they_were() -> None:
    # Inner steps work in place: run twice, the answer must be the same.
    some = GRAPHS["undirected"]
    network = encoder(some.num_features, hidden=6, width=5)
    first = network(operators(some, HERE)).clone()
    assert torch.equal(network(operators(some, HERE)), first)
