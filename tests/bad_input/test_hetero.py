"""Graphs of several types that cannot be learned, predicted, stored or served: refused, with a sentence."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData

import ipal
from ipal.config import Sampling
from ipal.deploy.export import onnx_model
from ipal.deploy.predict import predict
from ipal.deploy.serving.answers import Answerer, Settings
from ipal.deploy.serving.limits import Limits
from ipal.errors import ConfigError, DataError, StoreError
from ipal.estimator import files
from ipal.estimator.learners import learner_class
from ipal.estimator.registry import METHODS
from ipal.state.snapshot import Snapshot
from tests.estimator.hetero_support import CITES, WRITES, library, small, stacked


def without(*path: str) -> Callable[[HeteroData], Any]:
    return lambda data: delattr(data[path[0]], path[1])


def setting(kind: Any, name: str, value: Any) -> Callable[[HeteroData], Any]:
    return lambda data: data[kind].__setattr__(name, value)


NOT_LEARNED: dict[str, tuple[Callable[[HeteroData], Any], str]] = {
    "no features": (without("author", "x"), "Nodes of type 'author' have no features"),
    "no labels": (without("paper", "y"), "No type of nodes has labels: set y"),
    "two types with labels": (setting("author", "y", torch.zeros(36)), r"\['paper', 'author'\] have labels"),
    "no such type": (
        setting(("paper", "at", "venue"), "edge_index", torch.zeros(2, 3, dtype=torch.int64)),
        "type 'venue', of which there are none",
    ),
    "no such node": (setting(WRITES, "edge_index", torch.tensor([[36], [0]])), "node 36 of 'author', .* 0 to 35"),
    "no such node at all": (setting(WRITES, "edge_index", torch.tensor([[0], [-1]])), "node -1"),
    "too many labels": (setting("paper", "y", torch.zeros(108)), "108 labels for 72 nodes"),
    "a weight too few": (setting(CITES, "edge_weight", torch.ones(3)), "edge_weight must hold one number"),
    "a negative weight": (lambda data: with_negative(data), "has the weight -1.0"),
    "another shape": (setting(WRITES, "edge_index", torch.zeros(3, 4, dtype=torch.int64)), "2 x edges"),
    "no table": (setting("author", "x", torch.ones(36)), "features of type 'author' must be a table"),
    "not finite": (setting("author", "x", torch.full((36, 4), torch.nan)), "NaN"),
}


def with_negative(data: HeteroData) -> None:
    data[CITES].edge_weight = -torch.ones(data[CITES].edge_index.shape[1])


@pytest.mark.parametrize("case", NOT_LEARNED)
def test_what_cannot_be_learned_is_refused(case):
    data = library()
    spoil, sentence = NOT_LEARNED[case]
    spoil(data)
    model = ipal.Analytic()
    with pytest.raises(DataError, match=sentence) as refusal:
        model.partial_fit(data)
    assert str(refusal.value).count(". ") == 0, "one sentence"
    assert not model.__sklearn_is_fitted__()


NOT_PREDICTED: dict[str, tuple[Callable[[HeteroData], Any], str]] = {
    "a new type of nodes": (setting("venue", "x", torch.ones(2, 2)), "learned no type 'venue': remove it"),
    "a new type of edges": (
        setting(("author", "knows", "author"), "edge_index", torch.zeros(2, 0, dtype=torch.int64)),
        r"del data\[\('author', 'knows', 'author'\)\]",
    ),
    "other features": (setting("author", "x", torch.ones(36, 5)), "'author' have 5 features, .* trained on 4"),
    "nobody to predict": (lambda data: [data.__delitem__(kind) for kind in (CITES, WRITES, "paper")], "type 'paper'"),
}


@pytest.mark.parametrize("case", NOT_PREDICTED)
def test_graphs_of_other_types_are_refused(case):
    data, model = library(), small(ipal.NCM).partial_fit(library())
    spoil, sentence = NOT_PREDICTED[case]
    spoil(data)
    for use in (model.predict, model.predict_proba, model.embed):
        with pytest.raises(DataError, match=sentence):
            use(data)


def test_labels_stay_at_the_type_that_they_were_at_first():
    data, model = library(), small(ipal.NCM).partial_fit(library())
    del data["paper"].y
    data["author"].y = torch.zeros(36)
    with pytest.raises(DataError, match=r"Nodes of type 'paper' have no labels: set data\['paper'\].y"):
        model.partial_fit(data)


def test_a_model_with_types_takes_no_graph_without_and_the_other_way_round():
    data = library()
    typed, plain = small(ipal.NCM).partial_fit(data), small(ipal.NCM).partial_fit(stacked(data))
    for use in (typed.predict, typed.partial_fit, lambda some: predict(typed.model_, some)):
        with pytest.raises(DataError, match="trained on a HeteroData with labels at 'paper'"):
            use(stacked(data))
    for use in (plain.predict, plain.partial_fit, lambda some: predict(plain.model_, some)):
        with pytest.raises(DataError, match="to_homogeneous"):
            use(data)


def test_methods_that_keep_nodes_and_minibatches_are_refused():
    for method in METHODS.values():
        if method.keeps != "statistics":
            with pytest.raises(DataError, match="cannot keep those of several types"):
                small(learner_class(method)).partial_fit(library())
    with pytest.raises(DataError, match="set batch='full'"):
        small(ipal.IPAL, batch=Sampling(nodes=8, fanouts=(2, 2))).partial_fit(library())


def test_no_onnx_file_is_made_and_no_request_answered(tmp_path):
    model = small(ipal.Analytic).partial_fit(library())
    with pytest.raises(ConfigError, match="an ONNX file cannot hold"):
        onnx_model(model.model_)
    model.save(tmp_path / "model")
    with pytest.raises(DataError, match="files and requests have no types"):
        Answerer(tmp_path / "model", Settings(Limits()))  # before a server says that it is there


@pytest.mark.parametrize(
    "types",
    [
        {"nodes": {"paper": 6}, "edges": []},
        {"nodes": {"paper": 6, "author": 4}, "edges": [["paper", "cites"]]},
        {"nodes": {"paper": 6, "author": 4}, "edges": [["paper", "at", "venue"]]},
        {"nodes": {"paper": 6, "author": 4}, "edges": [["paper", "cites", "paper"]]},
        {"nodes": {"paper": 10**12, "author": 4}, "edges": []},
        [],
    ],
)
def test_a_file_with_other_types_is_refused(types, tmp_path):
    model = ipal.Analytic(width=40, steps=1).partial_fit(library())
    state = files.snapshot(model.model_)
    Snapshot(state.tensors, {**state.facts, "types": types}).save(tmp_path / "model.safetensors")
    # With fewer types of edges sums are as wide, and the fingerprint of the map tells.
    with pytest.raises(StoreError, match=r"does not fit|other random directions"):
        ipal.load(tmp_path / "model.safetensors")
