"""Every encoder: against numbers worked by hand, stock layers of PyTorch Geometric and finite differences."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from ipal.backend import attention
from ipal.backend.sparse import SparseMatrix
from ipal.config import EncoderConfig
from ipal.data.csr import aggregation_rows
from ipal.data.graph import Graph
from ipal.nn.encoders import ENCODERS, Encoder
from tests.nn.encoders_support import GRAPHS, KINDS, RANDOM, edges_among, embedded, encoder, graph
from tests.nn.support import double_operators

# ------------------------------------------------------------------ by hand: a path 0 - 1 - 2 with features 1, 2, 4

PATH = graph([[1], [2], [4]], [[0, 1], [1, 2]])


def set_to(network: Encoder, **values: list[Any]) -> Encoder:
    """Parameters by their kind, a value a layer."""
    with torch.no_grad():
        for kind, numbers in values.items():
            for parameter, number in zip(network.get_submodule(kind), numbers, strict=True):
                parameter.copy_(torch.tensor(number).reshape(parameter.shape))
    return network


def plain(kind: str, **config: Any) -> Encoder:
    return encoder(kind, 1, hidden=1, width=1, heads=1, **config)


def test_sage_by_hand() -> None:
    # Means of neighbours 2, 2.5, 2. First layer: 2 * mean - own + 1 = 4, 4, 1; means 4, 2.5, 4.
    # Second: mean + 10 own = 44, 42.5, 14.
    network = set_to(plain("sage"), weights=[2.0, 1.0], own_weights=[-1.0, 10.0], biases=[1.0, 0.0])
    torch.testing.assert_close(embedded(network, PATH), torch.tensor([[44.0], [42.5], [14.0]]))


def test_skip_by_hand() -> None:
    # A pair with features 1 and 3, two hidden columns. Aggregated 2: 2 (1, 0) + own (0, 1) = (2, 1) and (2, 3).
    # Normalised (1, -1) and (-1, 1), times 2 plus (0, 1): (2, -1) and (-2, 3), after ReLU (2, 0) and (0, 3).
    # Second layer: aggregated (1, 1.5), 1 * 1 + 1.5 * 2 = 4, plus own 2 + 0 and 0 + 3, plus 1.
    pair = graph([[1], [3]], [[0], [1]])
    network = set_to(
        encoder("skip", 1, hidden=2, width=1),
        weights=[[1.0, 0.0], [1.0, 2.0]],
        own_weights=[[0.0, 1.0], [1.0, 1.0]],
        biases=[[0.0, 0.0], [1.0]],
        scales=[[2.0, 2.0]],
        shifts=[[0.0, 1.0]],
    )
    torch.testing.assert_close(embedded(network, pair), torch.tensor([[7.0], [8.0]]), rtol=1e-4, atol=0)


def test_attention_by_hand() -> None:
    # Node 0 reads from 0 and 1, with values z = 1 and -3; q = 2, k = 1: scores 2 + 1 = 3 and 2 - 3 = -1, which a
    # LeakyReLU of slope 0.2 makes -0.2. Weights 1 / (1 + exp(-3.2)) and the rest.
    rows = SparseMatrix(torch.tensor([0, 2]).int(), torch.tensor([0, 1]).int(), torch.ones(2), (1, 2))
    z = torch.tensor([[1.0], [-3.0]])
    found = attention.attention(attention.Edges.of(rows), z, z[:1], torch.tensor([[2.0]]), torch.tensor([[1.0]]))
    share = 1 / (1 + math.exp(-3.2))
    assert found.item() == pytest.approx(share - 3 * (1 - share), rel=1e-5)


def test_gat_by_hand() -> None:
    # Without query and key, attention is the mean over a node and its neighbours: 1.5, 7/3, 3, times 2 minus 4: -1,
    # 2/3, 2; after ReLU 0, 2/3, 2; means 1/3, 8/9, 4/3.
    network = set_to(plain("gat"), weights=[2.0, 1.0], queries=[0.0, 0.0], keys=[0.0, 0.0], biases=[-4.0, 0.0])
    torch.testing.assert_close(embedded(network, PATH), torch.tensor([[1 / 3], [8 / 9], [4 / 3]]))


def test_aggregation_rows_by_hand() -> None:
    # 0 -> 1, 0 -> 2, 1 -> 2: rows gather.
    neighbours = graph(np.ones((3, 1)), [[0, 0, 1], [1, 2, 2]], undirected=False).neighbours
    assert aggregation_rows(neighbours, "sum", 0, 3).toarray().tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0]]
    assert aggregation_rows(neighbours, "mean", 1, 3).toarray().tolist() == [[1, 0, 0], [0.5, 0.5, 0]]


# ------------------------------------------------------------------ how networks start


def test_appnp_starts_with_a_projection_that_keeps_lengths_and_then_the_identity() -> None:
    config = EncoderConfig(kind="appnp", hidden=6, width=6, layers=3)
    network = ENCODERS["appnp"](20, config, torch.Generator().manual_seed(0))
    first, *others = network.weights
    torch.testing.assert_close(first.T @ first, torch.eye(6), rtol=0, atol=1e-5)
    assert all(torch.equal(weight, torch.eye(6)) for weight in others)


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_is_decided_by_its_generator_and_every_parameter_has_the_shape_it_says(kind: str) -> None:
    config = EncoderConfig(kind=kind, layers=3, hidden=8, width=4)
    made = [ENCODERS[kind](5, config, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    first, again, other = ([*network.parameters()] for network in made)
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))
    said = {
        f"{name}.{number}": shape
        for number, layer in enumerate(ENCODERS[kind].all_shapes(5, config))
        for name, shape in layer.items()
    }
    assert {name: tuple(parameter.shape) for name, parameter in made[0].named_parameters()} == said


# ------------------------------------------------------------------ stock layers


def stock_gcn(p: dict[str, Tensor]) -> nn.Module:
    return with_values(GCNConv(*p["weights"].shape), {"lin.weight": p["weights"].T, "bias": p["biases"]})


def stock_sage(p: dict[str, Tensor]) -> nn.Module:
    values = {"lin_l.weight": p["weights"].T, "lin_r.weight": p["own_weights"].T, "lin_l.bias": p["biases"]}
    return with_values(SAGEConv(*p["weights"].shape), values)


def stock_gat(p: dict[str, Tensor]) -> nn.Module:
    heads, width = p["queries"].shape
    values = {"lin.weight": p["weights"].T, "att_src": p["keys"][None], "att_dst": p["queries"][None]}
    return with_values(GATConv(len(p["weights"]), width, heads), values | {"bias": p["biases"]})


def with_values(layer: nn.Module, values: dict[str, Tensor]) -> nn.Module:
    layer.load_state_dict({name: value.detach() for name, value in values.items()})
    layer.kinds = list(values)
    return layer


STOCK: dict[str, tuple[Callable[[dict[str, Tensor]], nn.Module], list[str]]] = {
    "gcn": (stock_gcn, ["weights", "biases"]),
    "sage": (stock_sage, ["weights", "own_weights", "biases"]),
    "gat": (stock_gat, ["weights", "keys", "queries", "biases"]),
}


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("some", GRAPHS.values(), ids=GRAPHS.keys())
@pytest.mark.parametrize("kind", STOCK)
def test_outputs_and_gradients_are_those_of_stock_layers(kind: str, some: Graph, layers: int) -> None:
    network, (make_stock, names) = encoder(kind, some.num_features, layers=layers), STOCK[kind]
    reference = [make_stock(dict(p)) for p in network.layers()]
    hidden = torch.from_numpy(some.x.toarray() if isinstance(some.x, sp.csr_array) else some.x)
    for number, layer in enumerate(reference):
        hidden = layer(hidden if number == 0 else hidden.relu(), torch.from_numpy(some.edges))
    got = embedded(network, some)
    torch.testing.assert_close(got, hidden, rtol=1e-4, atol=1e-5)
    # Any scalar will do, as long as every embedding counts differently.
    direction = torch.randn(got.shape, generator=torch.Generator().manual_seed(3))
    (got * direction).sum().backward()
    (hidden * direction).sum().backward()
    for layer, p in zip(reference, network.layers(), strict=True):
        stock = dict(layer.named_parameters())
        for name, theirs in zip(names, layer.kinds, strict=True):
            expected = stock[theirs].grad
            expected = expected.T if theirs.endswith("weight") else expected.reshape(p[name].shape)
            scale = float(expected.abs().max()) + 1
            torch.testing.assert_close(p[name].grad, expected, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("kind", KINDS)
def test_a_last_activation_is_one_that_is_set(kind: str) -> None:
    some = GRAPHS["undirected"]
    found = embedded(encoder(kind, 7, last_activation="relu"), some)
    torch.testing.assert_close(found, embedded(encoder(kind, 7), some).relu())


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("kind", KINDS)
def test_first_and_second_derivatives_are_right(kind: str, form: str) -> None:
    some = graph(RANDOM.normal(size=(6, 3)), edges_among(6, 7))
    network = encoder(kind, 3, hidden=2, width=2).double()
    keep_sparse = form == "sparse" and network.reads_neighbours()
    made = double_operators(some, [3, 0, 4], network.needs, keep_sparse=keep_sparse)
    # Finite differences change the parameters in place, so the network sees them without being handed them.
    assert gradcheck(lambda *_: network(made), tuple(network.parameters()))
    assert gradgradcheck(lambda *_: network(made), tuple(network.parameters()))
