"""Importance of parameters to single nodes: by hand, and against autograd, node by node."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ipal.backend.operators import LayerInput, operators
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig
from ipal.data.graph import Features, Graph, checked_graph
from ipal.data.task import Task
from ipal.nn import per_node_gradients
from ipal.nn.encoders import GCN, Encoder
from ipal.nn.encoders.base import Parameters
from ipal.nn.head import Head
from ipal.nn.network import Network
from ipal.nn.per_node_gradients import network_importance

HERE = Runtime.of()

CPU = torch.device("cpu")


def some_task(x: Features, *, undirected: bool = True, edges: int = 60) -> Task:
    """Training nodes in no order; the last node has no edge, and is one of them."""
    random = np.random.default_rng(0)
    n = x.shape[0]
    graph = checked_graph(x, random.integers(0, n - 1, (2, edges)), undirected=undirected)
    nodes = np.append(random.permutation(n - 1)[: n // 2], n - 1)
    return Task(graph, nodes, np.arange(len(nodes)) % 3)


def dense_features(n: int = 30, width: int = 7) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(n, width)).astype(np.float32)


def sparse_features(n: int = 30, width: int = 200, density: float = 0.01) -> sp.csr_array:
    """So few that the encoder keeps them sparse too; some nodes have none."""
    random = np.random.default_rng(1)
    return sp.csr_array((random.random((n, width)) * (random.random((n, width)) < density)).astype(np.float32))


FEATURES = {"dense": dense_features(), "sparse": sparse_features(), "nearly dense": sparse_features(density=0.5)}


def network_of(
    task: Task,
    layers: int = 2,
    last: str = "none",
    blocks: tuple[int, ...] = (2, 1, 2),
    kind: type[Encoder] = GCN,
) -> Network:
    generator = torch.Generator().manual_seed(0)
    config = EncoderConfig(layers=layers, hidden=6, width=5, last_activation=last)
    encoder, head = kind(task.graph.num_features, config, generator), Head(5)
    for number in blocks:
        head.grow(number, generator)
    with torch.no_grad():
        for bias in encoder.biases:
            bias.uniform_(-0.3, 0.3, generator=generator)
    return Network(encoder, head)


def node_by_node(
    network: Network, task: Task, output_gradient: Tensor, size: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """One backward pass for every training node, over the whole graph."""
    outputs = network(operators(task, HERE, network.encoder.needs))
    parameters = dict(network.named_parameters())
    total = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    for row, gradient in zip(outputs, output_gradient, strict=True):
        for name, part in zip(
            total, torch.autograd.grad(row @ gradient, list(parameters.values()), retain_graph=True), strict=True
        ):
            total[name] += size(part) / len(outputs)
    return total


def some_gradient(task: Task, classes: int = 5) -> Tensor:
    return torch.randn(len(task.nodes), classes, generator=torch.Generator().manual_seed(3))


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(got) == list(expected)
    for name, value in expected.items():
        # What is nearly nothing beside the largest is rounded differently.
        floor = 1e-6 * value.abs().max().item()
        torch.testing.assert_close(
            got[name], value, rtol=1e-4, atol=floor, msg=lambda text, name=name: f"{name}: {text}"
        )


class Largest(TorchDispatchMode):
    """Watches for the largest tensor that is made, in bytes."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        tensors = [one for one in (made if isinstance(made, tuple) else [made]) if isinstance(one, Tensor)]
        self.size = max([self.size, *(one.numel() * one.element_size() for one in tensors)])
        return made


def test_network_importance_by_hand() -> None:
    # A pair of nodes, which propagation averages, and a node alone. One feature, one hidden unit, one class; weights 1,
    # biases 0 but for the last layer's, which is 1.
    x = np.array([[1.0], [5.0], [-2.0]], dtype=np.float32)
    task = Task(Graph(x, np.array([[0, 1], [1, 0]])), np.array([0, 2]), np.array([0, 0]))
    encoder, head = GCN(1, EncoderConfig(hidden=1, width=1), torch.Generator()), Head(1)
    head.grow(1, torch.Generator())
    network = Network(encoder, head)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.fill_(1.0 if "weights" in name else 0.0)
        encoder.biases[1].fill_(1.0)
    # Propagated features 3 for the pair and -2 for the node alone; 3 and 0 after ReLU; embeddings 3 + 1 and 0 + 1.
    # Derivatives of the scalars by the outputs are 2 and -3.
    # Node 0: head 2 * 4 and 2, last layer 2 * 3 and 2, first layer 2 * 3 and 2, half through itself, half through the
    # other of its pair.
    # Node 2: head -3 * 1 and -3; last layer -3 * 0 and -3; nothing below, where its ReLU is off.
    gradient = torch.tensor([[2.0], [-3.0]])
    got = {name: value.item() for name, value in network_importance(network, task, gradient, torch.abs, HERE).items()}
    assert got == pytest.approx(
        {
            "encoder.weights.0": (6 + 0) / 2,
            "encoder.weights.1": (6 + 0) / 2,
            "encoder.biases.0": (2 + 0) / 2,
            "encoder.biases.1": (2 + 3) / 2,
            "head.weights.0": (8 + 3) / 2,
            "head.biases.0": (2 + 3) / 2,
        }
    )
    # Squares of each node's own gradient, not the square of their mean.
    squares = network_importance(network, task, gradient, torch.square, HERE)
    assert squares["head.biases.0"].item() == pytest.approx((4 + 9) / 2)
    assert squares["encoder.weights.0"].item() == pytest.approx((36 + 0) / 2)


@pytest.mark.parametrize("last", ["none", "relu"])
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("form", list(FEATURES))
def test_network_importance_is_autograds_node_by_node(form: str, layers: int, last: str) -> None:
    task = some_task(FEATURES[form], undirected=last == "none")
    network, gradient = network_of(task, layers, last), some_gradient(task)
    got = network_importance(network, task, gradient, torch.square, HERE)
    assert_same(got, node_by_node(network, task, gradient, torch.square))


class Doubled(GCN):
    """Of a user: a convolution, twice."""

    def layer(self, seen: LayerInput, p: Parameters) -> Tensor:
        return super().layer(seen, p) * 2


def test_network_importance_of_a_subclass_is_autograds_node_by_node() -> None:
    task = some_task(dense_features())
    network, gradient = network_of(task, kind=Doubled), some_gradient(task)
    got = network_importance(network, task, gradient, torch.square, HERE)
    assert_same(got, node_by_node(network, task, gradient, torch.square))


def test_network_importance_takes_little_memory_on_a_large_graph_with_few_features() -> None:
    # Few features: many nodes fit into a chunk. An array with a place for every pair of training node and node takes
    # hundreds of megabytes here, and on a graph ten times as large a hundred times that.
    n = 6000
    ring = np.stack([np.arange(n), (np.arange(n) + 1) % n])
    graph = checked_graph(np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32), ring, undirected=True)
    task = Task(graph, np.arange(n), np.zeros(n, dtype=np.int64))
    network, gradient = network_of(task, blocks=(2,)), torch.ones(n, 2)
    with Largest() as largest:
        network_importance(network, task, gradient, torch.square, HERE)
    assert 0 < largest.size < 10e6


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_in_small_pieces_it_is_the_same(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = some_task(FEATURES[form])
    network, gradient = network_of(task), some_gradient(task)
    whole = network_importance(network, task, gradient, torch.square, HERE)
    for name, value in {"CHUNK": 100, "AT_ONCE": 20, "COLUMNS": 3}.items():
        monkeypatch.setattr(per_node_gradients, name, value)
    assert_same(network_importance(network, task, gradient, torch.square, HERE), whole)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("form", list(FEATURES))
def test_network_importance_on_a_gpu_is_that_of_a_cpu_and_the_same_every_time(form: str) -> None:
    device = torch.device("cuda", 0)
    task = some_task(FEATURES[form])
    network, gradient = network_of(task, 2, "relu"), some_gradient(task)
    expected = network_importance(network, task, gradient, torch.square, HERE)
    there = copy.deepcopy(network).to(device)
    first, again = (
        network_importance(there, task, gradient.to(device), torch.square, Runtime.of("cuda")) for _ in "ab"
    )
    assert all(value.device == device for value in first.values())
    assert_same({name: value.cpu() for name, value in first.items()}, expected)
    assert all(torch.equal(again[name], value) for name, value in first.items())
