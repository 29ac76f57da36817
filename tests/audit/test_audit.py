"""The audit of a model: what it keeps, which classes that reveals, and whether leaks are found."""

import dataclasses
import json

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from ipal.audit import audit
from ipal.audit.attacks import directions, span_test, stored_rows
from ipal.config import EncoderConfig, TrainConfig
from ipal.data.datasets import Dataset
from ipal.data.graph import Graph
from ipal.errors import DataError
from ipal.estimator import files
from ipal.estimator.learner import Learner
from ipal.estimator.learners import EFC, learner_class
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import shared_settings
from ipal.methods.base import Method

EVERY_METHOD = pytest.mark.parametrize("method", list(METHODS.values()), ids=list(METHODS))
SHARED = {"train": TrainConfig(epochs=2), "encoder": EncoderConfig(hidden=8, width=8)}
SMALL = {"analytic": {"width": 64}}
FORMS = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])


def data_of(dataset: Dataset, classes: tuple[int, ...], most: dict[int, int] | None = None) -> Data:
    """Nodes of some classes, all of them for training; of some classes only the first few."""
    nodes = np.concatenate([np.flatnonzero(dataset.y == c)[: (most or {}).get(c)] for c in classes])
    graph = dataset.graph.induced(nodes)
    x = (
        torch.from_numpy(graph.x)
        if isinstance(graph.x, np.ndarray)
        else torch.from_numpy(graph.x.toarray()).to_sparse()
    )
    return Data(x=x, edge_index=torch.from_numpy(graph.edges), y=torch.from_numpy(dataset.y[nodes]))


def fitted(method: type[Method], dataset: Dataset, most: dict[int, int] | None = None, **options: object) -> Learner:
    shared = {name: value for name, value in SHARED.items() if name in shared_settings(method)}
    learner = learner_class(method)(**{**shared, **SMALL.get(method.name, {}), **options})
    for classes in ((0, 1), (2, 3)):
        learner.partial_fit(data_of(dataset, classes, most))
    return learner


def in_form(dataset: Dataset, sparse: bool) -> Dataset:
    if not sparse:
        return dataset
    return dataclasses.replace(dataset, graph=Graph(sp.csr_array(dataset.graph.x), dataset.graph.edges))


@pytest.mark.parametrize(
    ("name", "sparse"), [*((name, False) for name in METHODS), ("er-gnn", True), ("analytic", True)]
)
def test_raw_nodes_are_found_where_they_are_stored_and_nowhere_else(name, sparse, tiny: Dataset):
    method = METHODS[name]
    dataset = in_form(tiny, sparse)
    learner = fitted(method, dataset)
    found = audit(learner.model_, dataset)
    json.dumps(found, allow_nan=False)
    stored, exemplars = found["data"]["stored_rows"]["raw features"], method.keeps != "statistics"
    assert stored["looked_for"] == 240
    assert (stored["found"] >= 40) if exemplars else (stored["found"] == 0)
    assert bool(stored["where"]) == found["retained"]["stores_exemplars"] == exemplars
    assert found["data"]["stored_rows"]["the model's own representation"]["found"] == 0


@EVERY_METHOD
def test_all_that_is_kept_is_listed_and_every_class_counted(method, tiny: Dataset):
    learner = fitted(method, tiny)
    found = audit(learner.model_)
    saved = files.snapshot(learner.model_, moments=True).tensors.values()
    assert found["retained"]["bytes"] == sum(tensor.numel() * tensor.element_size() for tensor in saved)
    assert found["retained"]["bytes"] == sum(item["bytes"] for item in found["retained"]["items"])
    assert all(item["what"] for item in found["retained"]["items"])
    assert set(learner.model_.remembered()) == set(found["nodes_behind_class"])
    for name, one in learner.model_.remembered().items():
        assert one.count == np.sum(tiny.y == int(name))
        assert one.mean.shape == (learner.model_.embed(tiny.graph).shape[1],)
    assert "data" not in found


@EVERY_METHOD
def test_a_class_of_one_node_and_one_of_few_are_flagged(method, tiny: Dataset):
    found = audit(fitted(method, tiny, most={1: 1, 2: 5}).model_)
    if not found["nodes_behind_class"]:
        assert not found["flagged"]
        return
    assert list(found["flagged"]["1"]) == ["one-node"]
    assert "own row" in found["flagged"]["1"]["one-node"]
    assert "few-nodes" in found["flagged"]["2"]


@pytest.mark.parametrize("method", ["ncm", "slda", "analytic"])
def test_a_sum_over_one_node_is_found_to_be_that_node(method, tiny: Dataset):
    taught = data_of(tiny, (0, 1), most={1: 1})
    learner = learner_class(METHODS[method])(**SMALL.get(method, {})).partial_fit(taught)
    graph = Graph(taught.x.numpy(), taught.edge_index.numpy())
    found = audit(learner.model_, dataclasses.replace(tiny, graph=graph, y=taught.y.numpy()))
    stored = found["data"]["stored_rows"]["the model's own representation"]
    assert stored["found"] >= 1  # of others, a matrix of products may show a row
    assert any(name.startswith("memory.") for name in stored["where"])
    assert found["data"]["attempts"]["classes"]["1"]["from_mean"]["best_cosine"] == pytest.approx(1)


def test_the_mean_and_products_remembered_are_those_of_the_rows(tiny: Dataset):
    graph = data_of(tiny, (0, 1))
    rows = {}
    for method, options in (("ncm", {}), ("efc", SHARED)):
        learner = learner_class(METHODS[method])(**options).partial_fit(graph)
        rows[method] = torch.from_numpy(learner.embed(graph))[graph.y == 1].double()
        kept = learner.model_.remembered()["1"]
        torch.testing.assert_close(kept.mean.double(), rows[method].mean(dim=0), rtol=1e-4, atol=1e-5)
        if method != "ncm":
            assert kept.second is not None
            torch.testing.assert_close(kept.second().double(), rows[method].T @ rows[method], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("method", "options"), [("slda", {}), ("analytic", {"width": 64})])
def test_a_shared_matrix_is_said_to_be_one_and_spans_all_that_taught(method, options, tiny: Dataset):
    most = {label: 2 for label in range(4)}
    learner = fitted(METHODS[method], tiny, most, **options)
    found = audit(learner.model_)
    assert any("subtract" in remark for remark in found["remarks"])
    assert any("8 training nodes" in remark for remark in found["remarks"])
    assert all("fewer-than-width" not in kinds for kinds in found["flagged"].values())
    kept = learner.model_.remembered()["0"]
    assert kept.shared is not None
    rows = torch.from_numpy(learner.embed(data_of(tiny, (0, 1), most))).double()
    unseen = torch.from_numpy(learner.embed(data_of(tiny, (4, 5)))).double()
    shares = span_test(directions(kept.shared(), 8), rows, rows[:0], unseen)
    assert shares["members_inside"] == pytest.approx(1, abs=1e-4)
    assert shares["auc_against_others"] == 1


def test_matrices_of_classes_tell_who_taught(tiny: Dataset):
    taught = data_of(tiny, (0, 1), most={0: 6})
    encoder = EncoderConfig(hidden=64, width=512, last_activation="relu")
    learner = EFC(train=TrainConfig(epochs=0), encoder=encoder).partial_fit(taught)
    graph = Graph(taught.x.numpy(), taught.edge_index.numpy())
    found = audit(learner.model_, dataclasses.replace(tiny, graph=graph, y=taught.y.numpy()))
    assert set(found["flagged"]["0"]) == {"few-nodes", "fewer-than-width"}
    attempt = found["data"]["attempts"]["classes"]["0"]
    assert attempt["from_matrix"]["span"]["members_inside"] == pytest.approx(1)
    assert attempt["from_matrix"]["span"]["auc_against_others"] == 1


def test_directions_span_the_rows():
    rows = torch.randn(8, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    span = directions(rows.T @ rows, 8)
    assert span.shape == (8, 300)
    torch.testing.assert_close(rows @ span.T @ span, rows)


@FORMS
def test_planted_rows_are_found_in_every_form(sparse):
    random = np.random.default_rng(0)
    x = random.normal(size=(50, 12)).astype(np.float32) * (random.random((50, 12)) < 0.7)
    rows = sp.csr_array(x) if sparse else x
    noise = torch.from_numpy(random.normal(size=(30, 12)).astype(np.float32))
    row = torch.from_numpy(x[7])
    assert stored_rows({"a": noise, "b": noise.T.contiguous(), "c": noise.flatten()}, rows).nodes == set()
    planted = {
        "row": torch.cat([noise, row[None]]),
        "scaled": torch.cat([noise, -3 * row[None].double()]),
        "column": torch.cat([noise, row[None]]).T.contiguous(),
        "of a stack": torch.cat([noise, row[None], noise[:29]]).reshape(3, 20, 12),
        "flat": torch.cat([noise, row[None]]).flatten(),
    }
    for name, tensor in planted.items():
        found = stored_rows({"other": noise, name: tensor}, rows)
        assert (found.nodes, found.where) == ({7}, {name})
    parts = sp.csr_array(x[5:9])
    csr = {"k.x_values": parts.data, "k.x_indices": parts.indices, "k.x_indptr": parts.indptr}
    found = stored_rows({name: torch.from_numpy(part) for name, part in csr.items()}, rows)
    assert (found.nodes, found.where) == ({5, 6, 7, 8}, {"k.x_values"})


def test_a_column_that_only_one_node_uses_shows_its_row_in_the_products():
    random = np.random.default_rng(0)
    rows = random.random((20, 12)).astype(np.float32)
    rows[np.arange(20) != 3, 5] = 0
    half = torch.from_numpy(np.tril(rows.T @ rows))
    whole_matrix = half + half.tril(-1).T
    assert stored_rows({"half": half}, rows).nodes == set()
    found = stored_rows({"half": half, "whole": whole_matrix}, rows)
    assert (found.nodes, found.where) == ({3}, {"whole"})


def test_rows_that_say_too_little_are_counted_not_found():
    x = np.eye(6, dtype=np.float32)
    found = stored_rows({"identity": torch.eye(6)}, x)
    assert (found.looked_for, found.too_plain, found.nodes) == (0, 6, set())


def test_another_graph_is_answered_with_a_sentence(tiny: Dataset):
    narrow = dataclasses.replace(tiny, graph=Graph(tiny.graph.x[:, :5], tiny.graph.edges))
    with pytest.raises(DataError, match="5 features"):
        audit(fitted(METHODS["ncm"], tiny).model_, narrow)


def test_moments_are_said_to_be_kept_and_a_saved_model_has_none(tiny: Dataset, tmp_path):
    learner = fitted(METHODS["bare"], tiny, calibration=0)
    with_moments = audit(learner.model_)
    assert any("moments are in it" in remark for remark in with_moments["remarks"])
    learner.save(tmp_path / "model")
    saved = audit(files.load(tmp_path / "model"))
    assert saved["retained"]["bytes"] < with_moments["retained"]["bytes"]
    assert not any("moments" in remark for remark in saved["remarks"])
