"""Predictions from a loaded model, and what of a graph they depend on."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import scipy.sparse as sp

import ipal
from ipal.closed_form.method import Analytic
from ipal.config import EncoderConfig, ProtocolConfig
from ipal.data.datasets import Dataset, load
from ipal.data.graph import Graph, checked_graph
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.deploy.export import onnx_model
from ipal.deploy.predict import neighbourhood, predict, write_csv
from ipal.errors import DataError
from ipal.estimator import files
from ipal.estimator.model import Model
from ipal.estimator.registry import METHODS
from ipal.methods.ipal import IPAL
from ipal.methods.ncm import NCM
from tests.learning import config, learn, learned

pytestmark = pytest.mark.filterwarnings("ignore:.*nodes are rejected:ipal.errors.Qualified")

# One of each family: how nodes become rows differs, and so does what a prediction reaches.
FAMILIES = {
    "prototypes": (IPAL, {}, 2),
    "head, three layers": (METHODS["ewc"], {"encoder": EncoderConfig(layers=3, hidden=16, width=8)}, 3),
    "nearest mean": (NCM, {"steps": 2}, 2),
    "nearest mean, features alone": (NCM, {"steps": 0}, 0),
    "discriminant": (METHODS["slda"], {"steps": 1}, 1),
    "closed form": (Analytic, {"steps": 2, "width": 64}, 2),
    "closed form, projected": (Analytic, {"steps": 1, "width": 16, "restart": (0.1, 0.3)}, 1),
}


@pytest.fixture(scope="module")
def sparse_graph() -> Dataset:
    """Long paths and few edges: two hops do not reach everything."""
    return load("synthetic:nodes=240,classes=6,features=16,signal=3,degree=3,seed=2")


def stream_of(dataset: Dataset) -> TaskStream:
    return TaskStream(dataset.graph, dataset.y, (3, 3), ProtocolConfig(), seed=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["dense", "sparse", "directed", "weighted"])
def test_a_neighbourhood_is_enough_to_predict_as_in_the_whole_graph(
    family: str, kind: str, sparse_graph: Dataset
) -> None:
    method, options, reach = FAMILIES[family]
    model = learned(method, stream_of(sparse_graph), 2, epochs=2, **options)
    assert model.reach == reach
    graph = sparse_graph.graph
    if kind == "sparse":
        words = np.where(graph.x > 2, graph.x, 0).astype(np.float32)
        graph = Graph(sp.csr_array(words), graph.neighbours, symmetric=True)
    elif kind == "directed":
        graph = checked_graph(graph.x, graph.edges[:, graph.edges[0] < 2 * graph.edges[1]], undirected=False)
    elif kind == "weighted":
        weights = np.random.default_rng(0).uniform(0.1, 3, graph.num_edges)
        graph = checked_graph(graph.x, graph.edges, undirected=True, weights=weights)
    nodes = np.array([200, 3, 77])
    part = neighbourhood(graph, nodes, reach)
    assert part.graph.num_nodes < graph.num_nodes * (0.5 if reach < 3 else 0.9)
    assert np.array_equal(part.origin[part.nodes], nodes)
    whole = predict(model, graph)
    for found in (predict(model, part.graph, part.nodes), predict(model, graph, nodes)):
        assert found.labels == [whole.labels[node] for node in nodes]
        assert found.probabilities == pytest.approx(whole.probabilities[nodes], abs=2e-6)


def test_without_the_true_degrees_or_a_hop_less_predictions_differ(sparse_graph: Dataset) -> None:
    model = learned(IPAL, stream_of(sparse_graph), 2, epochs=2)
    graph, nodes = sparse_graph.graph, np.arange(0, 240, 12)
    whole = predict(model, graph).probabilities[nodes]
    part = neighbourhood(graph, nodes, 2)
    forgotten = predict(model, graph.induced(part.origin), part.nodes).probabilities
    assert np.abs(forgotten - whole).max() > 1e-3, "the test graph has no border: it shows nothing"
    shorter = neighbourhood(graph, nodes, 1)
    assert np.abs(predict(model, shorter.graph, shorter.nodes).probabilities - whole).max() > 1e-3
    wider = neighbourhood(graph, nodes, 3)  # one more hop is as good as the true degrees
    found = predict(model, graph.induced(wider.origin), wider.nodes).probabilities
    assert found == pytest.approx(whole, abs=2e-6)


@pytest.fixture
def model(tiny_stream: TaskStream) -> Model:
    return learned(Analytic, tiny_stream, 2, steps=1, width=64)


def test_predictions_are_those_of_the_estimator(model: Model, tiny: Dataset, tmp_path: Path) -> None:
    files.save(model, tmp_path / "model.safetensors")
    found = predict(files.load(tmp_path / "model.safetensors"), tiny.graph)
    assert found.labels == model.predict_graph(tiny.graph).labels.tolist()
    assert found.probabilities.sum(axis=1) == pytest.approx(np.ones(240), abs=1e-5)
    assert found.classes.tolist() == [0, 1, 2, 3]
    assert not found.rejected.any()


def test_reject_is_the_share_of_known_nodes_that_may_be_lost_as_in_python(tiny: Dataset) -> None:
    data = ipal.graph_from(tiny)
    learner = ipal.NCM().partial_fit(replace(data, train_mask=tiny.y < 4))
    known = tiny.y < 4
    for share in (0.05, 0.3):
        found = predict(learner, tiny.graph, reject=share)
        assert found.labels == learner.predict(data, reject=share).tolist()
        assert [label is None for label in found.labels] == found.rejected.tolist()
        assert abs(found.rejected[known].mean() - share) < 0.1
        assert found.rejected[~known].mean() > found.rejected[known].mean() + 0.3
        assert sum(found.counts().values()) == (~found.rejected).sum()


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([], "at least one"),
        ([3, 240], "no node 240"),
        ([1.5], "whole number"),
    ],
)
def test_nodes_that_cannot_be_meant_are_refused(model: Model, tiny: Dataset, nodes: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        predict(model, tiny.graph, nodes)  # type: ignore[arg-type]


def test_features_that_overflow_are_refused_and_not_answered_with_nonsense(tiny_stream: TaskStream) -> None:
    model = learned(METHODS["bare"], tiny_stream, 1, epochs=1)
    x = np.full_like(tiny_stream.graph.x, 3e38)
    with pytest.raises(DataError, match="so large"):
        predict(model, Graph(x, tiny_stream.graph.neighbours))


def test_a_table_of_names_with_commas_can_be_read_back(tiny: Dataset, tmp_path: Path) -> None:
    names = np.array(['soups, "hot"', "bread"])
    known = learn(config(NCM, calibration=0.2), Task(tiny.graph, np.arange(80), names[np.arange(80) % 2]))
    found = predict(known, tiny.graph, [5, 200], reject=0.5)
    write_csv(found, tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["node", "predicted", "confidence", "rejected", "p(bread)", 'p(soups, "hot")']
    for place, row in enumerate(rows):
        assert int(row["node"]) == found.nodes[place]
        assert row["rejected"] == str(bool(found.rejected[place])).lower()
        assert row["predicted"] == ("" if found.rejected[place] else found.labels[place])
        assert float(row["confidence"]) == pytest.approx(found.confidence[place], rel=1e-5)
        assert float(row["p(bread)"]) == pytest.approx(found.probabilities[place, 0], rel=1e-5)


def test_names_of_features_are_in_exported_files_and_errors(tiny: Dataset, model: Model) -> None:
    graph = replace(ipal.graph_from(tiny), columns=tuple(f"amount {number}" for number in range(16)))
    named = ipal.NCM().partial_fit(graph).model_
    for one in (named, model):
        about = {part.key: part.value for part in onnx.load_from_string(onnx_model(one)).metadata_props}
        assert json.loads(about["feature_names"]) == list(one.columns)
    with pytest.raises(DataError, match="trained on 16: amount 0, amount 1"):
        predict(named, replace(graph, x=graph.x[:, 1:], columns=()))
