"""Every encoder: against numbers worked by hand, stock layers of PyTorch Geometric, and itself in every other form."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

from ipal.backend import attention
from ipal.backend.batches import around, sampled
from ipal.backend.neighbor_sampling import Sampler
from ipal.backend.operators import operators
from ipal.backend.runtime import Runtime
from ipal.backend.sparse import SparseMatrix
from ipal.config import EncoderConfig, Sampling
from ipal.data.csr import Norm, aggregation_rows
from ipal.data.graph import Graph, checked_graph
from ipal.data.streams import Task, TaskStream
from ipal.deploy.export import onnx_model
from ipal.deploy.export.check import random_graphs
from ipal.errors import ConfigError
from ipal.learners import EWC, IPAL, METHODS, TWP
from ipal.nn import embed
from ipal.nn.encoders import ENCODERS, Encoder
from ipal.nn.head import Head
from ipal.nn.per_node_gradients import network_importance
from ipal.system.memory_budget import Budget
from tests.deploy.export_support import assert_the_same, session
from tests.learners.support import learn, make
from tests.nn.support import double_operators

HERE = Runtime.of()

CPU = torch.device("cpu")
KINDS = tuple(ENCODERS)
RANDOM = np.random.default_rng(0)


def graph(x: Any, edges: Any, *, undirected: bool = True) -> Graph:
    x = x if isinstance(x, sp.csr_array) else np.asarray(x, dtype=np.float32)
    return checked_graph(x, np.array(edges, dtype=np.int64), undirected=undirected)


def few_words(n: int, width: int) -> sp.csr_array:
    return sp.csr_array(RANDOM.random((n, width), np.float32) * (RANDOM.random((n, width)) < 0.02))


def edges_among(n: int, number: int) -> np.ndarray:
    return RANDOM.integers(0, n, (2, number))


DENSE = RANDOM.normal(size=(30, 7)).astype(np.float32)
GRAPHS = {
    "undirected": graph(DENSE, edges_among(30, 60)),
    "directed": graph(DENSE, edges_among(30, 60), undirected=False),
    "isolated nodes": graph(DENSE, edges_among(12, 30)),
    "no edges": graph(DENSE, np.zeros((2, 0))),
    "sparse features": graph(few_words(30, 200), edges_among(30, 60), undirected=False),
    "half sparse features": graph(sp.csr_array(DENSE * (DENSE > 0)), edges_among(30, 60)),
}


def encoder(kind: str, num_features: int, *, seed: int = 0, **config: Any) -> Encoder:
    config = {"hidden": 8, "width": 4, "heads": 2, **config}
    made = ENCODERS[kind](num_features, EncoderConfig(kind=kind, **config), torch.Generator().manual_seed(seed))
    with torch.no_grad():  # or much would be at zero
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed + 1))
    return made.eval()


def embedded(network: Encoder, of: Graph | Task) -> Tensor:
    found: Tensor = network(operators(of, HERE, network.needs))
    return found


def some_task(some: Graph) -> Task:
    nodes = np.array([3, 0, 4]) if some.num_nodes < 20 else np.array([17, 3, 29, 8, 0])
    return Task(some, nodes, np.arange(len(nodes)) % 2)


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


def test_linear_by_hand() -> None:
    # Two rows pass below zero and come back: no activation was between. A pair of nodes is averaged.
    pair = graph([[1], [3]], [[0], [1]])
    network = set_to(plain("linear"), weights=[-2.0, -3.0], biases=[0.5, 1.0])
    # -2 * 2 + 0.5 = -3.5; -3 * -3.5 + 1 = 11.5
    torch.testing.assert_close(embedded(network, pair), torch.full((2, 1), 11.5))


def test_sage_by_hand() -> None:
    # Means of neighbours 2, 2.5, 2. First layer: 2 * mean - own + 1 = 4, 4, 1; means 4, 2.5, 4.
    # Second: mean + 10 own = 44, 42.5, 14.
    network = set_to(plain("sage"), weights=[2.0, 1.0], own_weights=[-1.0, 10.0], biases=[1.0, 0.0])
    torch.testing.assert_close(embedded(network, PATH), torch.tensor([[44.0], [42.5], [14.0]]))


def test_gin_by_hand() -> None:
    # Sums of neighbours 2, 5, 2; with 1.5 times the own 3.5, 8, 8; inner 2 x - 10 = -3, 6, 6, after ReLU 0, 6, 6; outer
    # -x + 4 = 4, -2, -2, after ReLU 4, 0, 0. Second layer: sums 0, 4, 0, no own (1 - 1); inner the same; outer 3 x + 1.
    network = set_to(
        plain("gin"),
        weights=[2.0, 1.0],
        biases=[-10.0, 0.0],
        epsilons=[0.5, -1.0],
        outer_weights=[-1.0, 3.0],
        outer_biases=[4.0, 1.0],
    )
    torch.testing.assert_close(embedded(network, PATH), torch.tensor([[1.0], [13.0], [1.0]]))


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


def test_linear_starts_with_a_projection_that_keeps_lengths_and_then_the_identity() -> None:
    config = EncoderConfig(kind="linear", hidden=6, width=6, layers=3)
    network = ENCODERS["linear"](20, config, torch.Generator().manual_seed(0))
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


def stock_gin(p: dict[str, Tensor]) -> nn.Module:
    fan_in, fan_out = p["weights"].shape
    network = nn.Sequential(nn.Linear(fan_in, fan_out), nn.ReLU(), nn.Linear(fan_out, fan_out))
    values = {"nn.0.weight": p["weights"].T, "nn.0.bias": p["biases"], "eps": p["epsilons"]}
    values |= {"nn.2.weight": p["outer_weights"].T, "nn.2.bias": p["outer_biases"]}
    return with_values(GINConv(network, train_eps=True), values)


def with_values(layer: nn.Module, values: dict[str, Tensor]) -> nn.Module:
    layer.load_state_dict({name: value.detach() for name, value in values.items()})
    layer.kinds = list(values)
    return layer


STOCK: dict[str, tuple[Callable[[dict[str, Tensor]], nn.Module], list[str]]] = {
    "gcn": (stock_gcn, ["weights", "biases"]),
    "linear": (stock_gcn, ["weights", "biases"]),
    "sage": (stock_sage, ["weights", "own_weights", "biases"]),
    "gat": (stock_gat, ["weights", "keys", "queries", "biases"]),
    "gin": (stock_gin, ["weights", "biases", "epsilons", "outer_weights", "outer_biases"]),
}


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("some", GRAPHS.values(), ids=GRAPHS.keys())
@pytest.mark.parametrize("kind", STOCK)
def test_outputs_and_gradients_are_those_of_stock_layers(kind: str, some: Graph, layers: int) -> None:
    network, (make_stock, names) = encoder(kind, some.num_features, layers=layers), STOCK[kind]
    reference = [make_stock(dict(p)) for p in network.layers()]
    hidden = torch.from_numpy(some.x.toarray() if isinstance(some.x, sp.csr_array) else some.x)
    for number, layer in enumerate(reference):
        hidden = layer(hidden if number == 0 or kind == "linear" else hidden.relu(), torch.from_numpy(some.edges))
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


@pytest.mark.parametrize("activation", ["relu", "elu", "leaky_relu", "tanh"])
@pytest.mark.parametrize("kind", KINDS)
def test_activations_are_those_that_are_set(kind: str, activation: str) -> None:
    some = GRAPHS["undirected"]
    without = encoder(kind, 7, activation=activation)
    found = embedded(encoder(kind, 7, activation=activation, last_activation=activation), some)
    function = getattr(nn.functional, activation) if activation != "tanh" else torch.tanh
    torch.testing.assert_close(found, function(embedded(without, some)))
    if kind != "linear" and activation != "relu":
        assert not torch.allclose(embedded(without, some), embedded(encoder(kind, 7), some), atol=1e-4)


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("kind", KINDS)
def test_first_and_second_derivatives_are_right(kind: str, form: str) -> None:
    some = graph(RANDOM.normal(size=(6, 3)), edges_among(6, 7))
    network = encoder(kind, 3, hidden=2, width=2, activation="tanh").double()
    made = double_operators(some, [3, 0, 4], network.needs, keep_sparse=form == "sparse")
    # Finite differences change the parameters in place, so the network sees them without being handed them.
    assert gradcheck(lambda *_: network(made), tuple(network.parameters()))
    assert gradgradcheck(lambda *_: network(made), tuple(network.parameters()))


# ------------------------------------------------------------------ samples


@pytest.mark.parametrize("norm", ["mean", "sum"])
def test_samples_of_every_norm_are_right_in_the_mean(norm: Norm, tiny_stream: TaskStream) -> None:
    some = tiny_stream.task(0).graph
    sampler, nodes, draws = Sampler.of(some, CPU), torch.arange(some.num_nodes), 600
    generator, whole = torch.Generator().manual_seed(0), some.aggregation(norm).toarray()

    def dense(fanout: Any) -> np.ndarray:
        rows = sampler.with_norm(sampler.rows(nodes, fanout, generator), nodes, norm)
        parts = (rows.values.numpy(), rows.indices.numpy(), rows.indptr.numpy())
        return sp.csr_array(parts, shape=rows.shape).toarray()

    np.testing.assert_allclose(dense("all"), whole, rtol=1e-6)
    mean = sum(dense(2).astype(np.float64) for _ in range(draws)) / draws
    error = whole * np.sqrt(np.diff(some.indptr).clip(2)[:, None] / 2 / draws)
    assert (np.abs(mean - whole) <= 5 * error + 1e-6).all()
    assert np.abs(mean - whole).max() > 0  # they are samples


@pytest.mark.parametrize("some", GRAPHS.values(), ids=GRAPHS.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_all_neighbours_gives_the_embeddings_and_gradients_of_the_whole_graph(
    kind: str, some: Graph
) -> None:
    task, network = some_task(some), encoder(kind, some.num_features, layers=3)
    (batch,) = sampled(task, Sampling(nodes=1000, fanouts=("all",) * 3), 0, HERE, network.needs)
    whole, sample = embedded(network, task), network(batch.graph)
    torch.testing.assert_close(sample, whole, rtol=1e-4, atol=1e-5)
    direction = torch.randn(whole.shape, generator=torch.Generator().manual_seed(3))
    found, expected = (
        torch.autograd.grad((f * direction).sum(), [*network.parameters()], allow_unused=True, materialize_grads=True)
        for f in (sample, whole)
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * (1 + float(b.abs().max())))


@pytest.mark.parametrize("kind", KINDS)
def test_small_samples_change_embeddings(kind: str) -> None:
    some, network = GRAPHS["undirected"], encoder(kind, 7)
    nodes, generator = torch.arange(30), torch.Generator().manual_seed(0)
    found = network(around(some, nodes, (1, 1), network.needs, generator))
    assert found.shape == (30, 4)
    assert found.isfinite().all()
    assert not torch.allclose(found, embedded(network, some), atol=1e-3)


# ------------------------------------------------------------------ rows, pieces


@pytest.mark.parametrize("some", GRAPHS.values(), ids=GRAPHS.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_gets_the_rows_of_its_training_nodes(kind: str, some: Graph) -> None:
    task, network = some_task(some), encoder(kind, some.num_features)
    expected = embedded(network, some)[torch.from_numpy(task.nodes)]
    torch.testing.assert_close(embedded(network, task), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("some", GRAPHS.values(), ids=GRAPHS.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_in_pieces_are_those_of_the_whole(kind: str, some: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "VALUES_AT_ONCE", 100)
    monkeypatch.setattr(embed, "EDGES_AT_ONCE", 20)
    monkeypatch.setattr(attention, "VALUES_AT_ONCE", 50)
    network = encoder(kind, some.num_features, layers=3, last_activation="elu")
    whole = embedded(network, some).detach()
    short = Runtime.of(budget=Budget(0))
    assert not embed.fits(some, short.budget)
    pieces = embed.embeddings(network, some, short)
    torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------ importances


@pytest.mark.parametrize("size", [torch.square, torch.abs])
@pytest.mark.parametrize("form", ["undirected", "sparse features"])
@pytest.mark.parametrize("kind", KINDS)
def test_importances_are_those_of_one_backward_pass_a_node(
    kind: str, form: str, size: Callable[[Tensor], Tensor]
) -> None:
    task = some_task(GRAPHS[form])
    network = nn.ModuleDict(
        {
            "encoder": encoder(kind, task.graph.num_features, layers=3, activation="elu", last_activation="tanh"),
            "head": Head(4),
        }
    )
    network["head"].grow(3, torch.Generator().manual_seed(0))
    g = torch.randn(len(task.nodes), 3, generator=torch.Generator().manual_seed(3))
    parameters = dict(network.named_parameters())
    outputs = network["head"](embedded(network["encoder"], task))
    expected = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    for row, gradient in zip(outputs, g, strict=True):
        parts = torch.autograd.grad(row @ gradient, [*parameters.values()], retain_graph=True)
        for name, part in zip(parameters, parts, strict=True):
            expected[name] += size(part) / len(g)
    found = network_importance(network, task, g, size, HERE)
    assert list(found) == list(parameters)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-6 * (1 + float(value.max())))


# ------------------------------------------------------------------ methods


@pytest.mark.parametrize("kind", KINDS)
def test_export_and_resumption_are_those_of_the_encoder(kind: str, tiny_stream: TaskStream, tmp_path: Path) -> None:
    options = {"encoder": EncoderConfig(kind=kind, hidden=16, width=8, activation="elu", dropout=0.2)}
    learner = learn(make(IPAL, epochs=3, **options), tiny_stream.task(0))
    file = session(onnx_model(learner))
    for x, edges in random_graphs(14, 16, seed=6):
        assert_the_same(learner, file, x, edges)
    learner.save(tmp_path / "model.safetensors", moments=True)
    again = IPAL.load(tmp_path / "model.safetensors")
    for one in (learner, again):
        learn(one, tiny_stream.task(1))
    assert learner.encoder_.name == again.encoder_.name == kind
    first, second = learner.state().tensors, again.state().tensors
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", [EWC, TWP])
def test_anchored_methods_keep_an_importance_of_every_parameter(
    kind: str, method: Any, tiny_stream: TaskStream
) -> None:
    config = EncoderConfig(kind=kind, hidden=8, width=4)
    batch = Sampling(nodes=20, fanouts=(3, 3))
    learner = learn(make(method, epochs=1, encoder=config, batch=batch), tiny_stream.task(0), tiny_stream.task(1))
    assert list(learner.importance_) == [name for name, _ in learner.network_.named_parameters()]
    assert all(value.isfinite().all() for value in learner.importance_.values())
    assert all(learner.importance_[f"encoder.{name}.0"].any() for name in learner.encoder_.layers()[0])


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("method", ["pcl", "lwf", "mas", "gem", "er-gnn", "efc", "polo", "joint"])
def test_methods_learn_with_every_encoder(method: str, kind: str, tiny_stream: TaskStream) -> None:
    config = EncoderConfig(kind=kind, hidden=8, width=4)
    learner = learn(make(METHODS[method], epochs=1, encoder=config), tiny_stream.task(0), tiny_stream.task(1))
    assert learner.scores(tiny_stream.task(1).graph).isfinite().all()


def test_wrong_encoders_get_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"Unknown encoder 'sagee'\. Did you mean 'sage'"):
        make(IPAL, encoder=EncoderConfig(kind="sagee"))
    with pytest.raises(ConfigError, match=r"encoder\.width is 10, which 4 attention heads cannot share"):
        make(IPAL, encoder=EncoderConfig(kind="gat", width=10))
