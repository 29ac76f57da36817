"""Graphs of several types of nodes and edges: each type as it should count."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, GCNConv, HeteroConv, SAGEConv
from torch_geometric.transforms import ToUndirected

import ipal
from ipal.backend.operators import operators
from ipal.backend.runtime import Runtime
from ipal.data.csr import Neighbours
from ipal.data.graph import Graph
from ipal.data.relations import Relations, Types
from ipal.deploy.predict import predict
from ipal.errors import DataError
from ipal.estimator import files
from ipal.estimator.convert.hetero import task_of
from ipal.estimator.registry import METHODS
from ipal.nn.embed import embeddings
from ipal.system.memory_budget import Budget
from tests.closed_form.analytic_support import POOLED_AND_PER_CLASS as SUMS
from tests.closed_form.analytic_support import assert_same_sums, memory, solved
from tests.estimator.hetero_support import BACK, CITES, PAPERS, WRITES, library, small, stacked, with_weights
from tests.estimator.test_estimator import assert_same_bits
from tests.nn.encoders_support import KINDS, embedded, encoder
from tests.nn.support import HERE

FORGETFUL = [method for method in METHODS.values() if method.keeps == "statistics"]
EVERY_FORGETFUL_METHOD = pytest.mark.parametrize("method", FORGETFUL, ids=lambda method: method.name)


def graph_of(data: HeteroData) -> Graph:
    return task_of(data, None).graph


def convolution(edges: torch.Tensor, n: int, weights: Any = None) -> sp.csr_array:
    """D^-1/2 (A + I) D^-1/2, edges counted once."""
    weights = np.ones(edges.shape[1]) if weights is None else weights
    a = sp.csr_array((weights, (edges[1].numpy(), edges[0].numpy())), shape=(n, n)) + sp.eye_array(n)
    scale = sp.diags_array(1 / np.sqrt(a.sum(axis=1)))
    return scale @ a @ scale


# ---------------------------------------------------------------------- equal to others' numbers


@pytest.mark.parametrize("restart", [0.2, (0.1, 0.4)])
def test_closed_form_has_each_type_of_edges_side_by_side_by_hand(restart):
    data, restarts = library(), np.atleast_1d(restart)
    model = ipal.Analytic(width=96, steps=2, restart=restart).partial_fit(data)
    one = stacked(data)
    unit = one.x.to_dense().numpy().astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    blocks = []
    for share in restarts:
        for kind in (WRITES, CITES):  # in the order of their names
            a, found = convolution(stacked(data, kind).edge_index, one.num_nodes), unit
            for _ in range(2):
                found = (1 - share) * (a @ found) + share * unit
            blocks.append(found / np.linalg.norm(found, axis=1, keepdims=True))
    rows = np.concatenate(blocks, axis=1)
    found = memory(model).map.propagated(graph_of(data)).numpy()
    np.testing.assert_allclose(found, rows, rtol=1e-4, atol=1e-6)
    assert found.shape[1] == 10 * len(blocks)
    # In the rows that are learned each has its own columns, ten of which are these.
    own = 96 // len(blocks)
    linear = np.concatenate([model.embed(data)[:, own * i : own * i + 10] for i in range(len(blocks))], axis=1)
    assert np.abs(linear * len(blocks) ** 0.5 - rows[:PAPERS]).max() < 0.01, "rounded to a grid"


def test_propagated_features_are_the_sum_over_types_by_hand():
    data = with_weights(library(), cites=2.5)
    one, cites = stacked(data), stacked(data, CITES).edge_index
    a = convolution(cites, one.num_nodes, np.full(cites.shape[1], 2.5))
    a = a + convolution(stacked(data, WRITES).edge_index, one.num_nodes)
    x = one.x.to_dense().numpy()
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    expected = (0.7 * a @ (0.7 * a @ x + 0.3 * x) + 0.3 * x)[:PAPERS]
    found = ipal.NCM(steps=2, restart=0.3).partial_fit(data).embed(data)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def loaded(layer: Any, **parameters: torch.Tensor) -> Any:
    layer.load_state_dict({name.replace("__", "."): value for name, value in parameters.items()})
    return layer


STOCK: dict[str, Callable[[Any], Any]] = {
    "gcn": lambda p: loaded(GCNConv(*p["weights"].shape, bias=False), lin__weight=p["weights"].T),
    "gat": lambda p: loaded(
        GATConv(p["weights"].shape[0], p["weights"].shape[1] // 2, heads=2, bias=False),
        lin__weight=p["weights"].T,
        att_src=p["keys"][None],
        att_dst=p["queries"][None],
    ),
    "sage": lambda p: loaded(
        SAGEConv(*p["weights"].shape, bias=False, root_weight=False), lin_l__weight=p["weights"].T
    ),
}


@pytest.mark.parametrize("kind", STOCK)
def test_encoders_are_those_of_stock_hetero_layers_over_stacked_nodes(kind):
    data = library()
    one, network, hidden = stacked(data), encoder(kind, 10), None
    for number, p in enumerate(network.layers()):
        hidden = one.x.to_dense() if hidden is None else hidden.relu()
        edges = {("node", kind[1], "node"): stacked(data, kind).edge_index for kind in data.edge_types}
        layer = HeteroConv({edge: STOCK[kind](p) for edge in edges}, aggr="sum")
        own = hidden @ p["own_weights"] if kind == "sage" else 0
        hidden = layer({"node": hidden}, edges)["node"] + own + p["biases"]
        assert number < 2
    torch.testing.assert_close(embedded(network, graph_of(data)), hidden, rtol=1e-4, atol=1e-5)


def test_a_first_layer_has_weights_of_its_own_for_every_type_of_nodes_as_stock_layers_do():
    data, network = ToUndirected()(library()), encoder("sage", 10)
    assert set(data.edge_types) == {CITES, WRITES, BACK}
    p = network.layers()[0]
    columns = {"paper": slice(0, 6), "author": slice(6, 10)}
    layers = {}
    for source, name, target in data.edge_types:
        both = (data[source].num_features, data[target].num_features)
        layer = SAGEConv(both, 8, bias=False, root_weight=name != "cites")  # each node's own values once
        given = {"lin_l__weight": p["weights"][columns[source]].T}
        own = {"lin_r__weight": p["own_weights"][columns[target]].T} if name != "cites" else {}
        layers[source, name, target] = loaded(layer, **given, **own)
    found = HeteroConv(layers, aggr="sum")(data.x_dict, data.edge_index_dict)
    expected = torch.cat([found["paper"], found["author"]]) + p["biases"]
    layer = network.first_layer(operators(graph_of(data), HERE, network.needs))
    torch.testing.assert_close(layer, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_in_pieces_encoders_give_the_same(kind):
    graph, network = graph_of(with_weights(library(), writes=0.1)), encoder(kind, 10)
    pieces = embeddings(network, graph_of(with_weights(library(), writes=0.1)), Runtime.of(budget=Budget(0)))
    torch.testing.assert_close(pieces, embedded(network, graph), rtol=1e-4, atol=1e-5)


def test_edges_of_two_types_that_lead_back_and_forth_are_not_symmetric():
    there, back = Neighbours.of_edges(np.array([[0], [1]]), 2), Neighbours.of_edges(np.array([[1], [0]]), 2)
    types = Types((("a", 3),), (("a", "there", "a"), ("a", "back", "a")))
    both = Neighbours.of_edges(np.array([[0, 1], [1, 0]]), 2)
    x = np.eye(2, 3, dtype=np.float32)
    graph = Graph.of(x, both, relations=Relations(types, (there, back), np.ones(2, dtype=bool)))
    assert both.symmetric
    assert not graph.symmetric, "degrees are those of each type: the sum need not be symmetric"


# ---------------------------------------------------------------------- the same bits


@EVERY_FORGETFUL_METHOD
def test_weights_of_one_give_the_bits_of_no_weights_and_others_do_not(method):
    data = library()
    ones, heavy = with_weights(data, cites=1, writes=1), with_weights(data, writes=7)
    plain, same, other = (small(method).partial_fit(some) for some in (data, ones, heavy))
    assert_same_bits(plain, same)
    expected = plain.predict_proba(data)
    assert np.array_equal(same.predict_proba(ones), expected)
    assert not np.array_equal(other.predict_proba(data), expected)
    assert not np.array_equal(plain.predict_proba(heavy), expected)


@EVERY_FORGETFUL_METHOD
@pytest.mark.parametrize("authors", [False, True], ids=["one type of nodes", "two types of nodes"])
def test_one_type_of_edges_gives_the_bits_of_a_graph_without_types(method, authors):
    data = library(authors=authors)
    if authors:
        del data[CITES]
    one = stacked(data)
    typed, plain = (small(method).partial_fit(some) for some in (data, one))
    left, right = (files.checkpoint(one.model_) for one in (typed, plain))
    assert left.facts["types"] is not None
    assert right.facts["types"] is None
    other = [{**event, "fingerprint": right.facts["history"][0]["fingerprint"]} for event in left.facts["history"]]
    assert {**left.facts, "types": None, "history": other} == right.facts  # a graph of another kind
    assert all(torch.equal(tensor, right.tensors[name]) for name, tensor in left.tensors.items())
    for ask in ("predict", "predict_proba", "embed"):
        assert np.array_equal(getattr(typed, ask)(data), getattr(plain, ask)(one)[:PAPERS])


def test_ridge_and_scale_are_the_same_with_one_type_of_edges():
    data = library(authors=False)
    typed, plain = (ipal.Analytic(width=64).partial_fit(some) for some in (data, stacked(data)))
    assert (solved(typed).ridge, solved(typed).scale) == (solved(plain).ridge, solved(plain).scale)
    assert np.array_equal(typed.predict_proba(data), plain.predict_proba(stacked(data)))


def with_adj_t(data: HeteroData) -> HeteroData:
    for store in data.edge_stores:
        source, _, target = store._key
        matrix = torch.zeros(data[target].num_nodes, data[source].num_nodes)
        matrix[store.edge_index[1], store.edge_index[0]] = 1.0
        store.adj_t = matrix.to_sparse()
        del store.edge_index
    return data


@pytest.mark.parametrize("form", [ToUndirected(), with_adj_t], ids=["both ways", "adj_t"])
def test_other_forms_of_the_same_edges_give_the_same_bits(form):
    data = library()
    data[CITES].edge_index = torch.cat([data[CITES].edge_index, data[CITES].edge_index.flip(0)], dim=1)
    other = form(data.clone())
    assert (BACK in other.edge_types) == isinstance(form, ToUndirected)
    models = [small(ipal.Analytic).partial_fit(some) for some in (data, other)]
    assert_same_bits(*models)
    assert np.array_equal(models[0].predict_proba(other), models[1].predict_proba(data))


def test_where_the_other_way_is_given_without_edges_edges_run_one_way():
    data = library()
    both = graph_of(data).by_type[0]
    data[BACK].edge_index = torch.zeros(2, 0, dtype=torch.int64)
    graph = graph_of(data)
    assert graph.types == Types((("paper", 6), ("author", 4)), (WRITES, CITES))
    assert 2 * graph.by_type[0].num_edges == both.num_edges == 2 * data[WRITES].num_edges
    assert not graph.by_type[0].degree[PAPERS:].any(), "nothing leads to authors"


def test_the_order_of_types_does_not_matter():
    data, turned = library(), HeteroData()
    for kind in (WRITES, "author", CITES, "paper"):
        for name, value in data[kind].items():
            turned[kind][name] = value
    assert turned.node_types != data.node_types
    assert_same_bits(*(small(ipal.IPAL).partial_fit(some) for some in (data, turned)))


# ---------------------------------------------------------------------- a model of several types


@EVERY_FORGETFUL_METHOD
def test_it_goes_on_and_is_saved(method, tmp_path):
    first, second = library(1, classes=[0, 1]), library(2, classes=[2, 3])
    model = small(method).partial_fit(first)
    model.save(tmp_path / "model.safetensors")
    again = ipal.load(tmp_path / "model.safetensors")
    assert (
        again.model_.schema.types == model.model_.schema.types == Types((("paper", 6), ("author", 4)), (WRITES, CITES))
    )
    assert np.array_equal(again.predict_proba(first), model.predict_proba(first))
    model.partial_fit(second)
    assert model.predict(second).shape == (PAPERS,)
    assert set(model.classes_) == {0, 1, 2, 3}


@SUMS
def test_closed_form_forgets_and_merges_exactly(sums):
    first, second, third = library(1, classes=[0, 1]), library(2, classes=[2, 3]), library(3, classes=[1, 2])
    options: dict[str, Any] = {"width": 32, "steps": 2, "ridge": 0.1, "sums": sums}

    def taught(*tasks: HeteroData) -> ipal.Analytic:
        model = ipal.Analytic(**options)
        for task in tasks:
            model.partial_fit(task)
        return model

    one, two, both = taught(first), taught(second), taught(first, second)
    assert_same_sums(ipal.merge_models(one, two), both)
    assert np.array_equal(ipal.merge_models(one, two).predict(second), both.predict(second))
    assert_same_sums(ipal.merge_models(both, taught(third)), taught(first, second, third))
    second["paper"].forget_mask = second["paper"].train_mask
    assert_same_sums(ipal.forget_rows(both, second), one)
    both, fewer = taught(first, second), second.clone()
    fewer["paper"].train_mask &= fewer["paper"].y != 3
    assert_same_sums(ipal.forget_class(both, 3, second), taught(first, fewer))
    third["paper"].forget_mask = third["paper"].train_mask
    with pytest.raises(DataError, match="none that taught"):
        ipal.forget_rows(both, third)
    with pytest.raises(DataError, match="types of nodes and edges"):
        ipal.merge_models(one, taught(stacked(second)))


@SUMS
@pytest.mark.parametrize("gone", ["paper", "author"])
def test_closed_form_forgets_nodes_of_every_type_exactly(gone, sums):
    data = library()
    keep = torch.arange(data[gone].num_nodes) >= 5
    options: dict[str, Any] = {"width": 32, "steps": 2, "ridge": 0.1, "sums": sums}
    model = ipal.Analytic(**options).partial_fit(data)
    marked = data.clone()
    marked[gone].forget_mask = ~keep
    ipal.forget_nodes(model, marked)
    fresh = ipal.Analytic(**options).partial_fit(data.subgraph({gone: keep}))
    assert_same_sums(model, fresh)


@pytest.mark.parametrize("method", [ipal.Analytic, ipal.NCM, ipal.IPAL])
def test_some_nodes_are_predicted_as_with_the_whole_graph(method):
    data = library()
    model = small(method).partial_fit(data)
    whole, some = predict(model.model_, data), predict(model.model_, data, [40, 3])
    assert whole.probabilities.shape == (PAPERS, 3)
    assert np.array_equal(whole.nodes, np.arange(PAPERS))
    np.testing.assert_allclose(whole.probabilities, model.predict_proba(data), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(some.probabilities, whole.probabilities[[40, 3]], rtol=1e-3, atol=1e-5)
    with pytest.raises(DataError, match="nodes are 0 to 71"):
        predict(model.model_, data, [PAPERS])


def test_a_missing_type_is_one_without_nodes_or_edges():
    data, model = library(), small(ipal.Analytic).partial_fit(library(5))
    empty = data.clone()
    empty[WRITES].edge_index = torch.zeros(2, 0, dtype=torch.int64)
    alone = HeteroData({"paper": {"x": data["paper"].x}, CITES: {"edge_index": data[CITES].edge_index}})
    assert np.array_equal(model.predict_proba(alone), model.predict_proba(empty))
    data["author"].y = torch.zeros(36)  # not looked at: what is predicted is known
    assert len(model.predict(data)) == PAPERS
