"""The OpenAPI description is as strict as the server: what it forbids is refused, and what it allows is answered."""

import json
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import onnx
import pytest
from jsonschema import Draft202012Validator

import ipal
from ipal.data.datasets import Dataset
from ipal.deploy.export import onnx_model
from ipal.deploy.predict import predict
from ipal.deploy.serving.app import KINDS
from ipal.deploy.serving.bodies import JSON
from ipal.deploy.serving.limits import Limits
from ipal.errors import DataError
from ipal.estimator.model import Model
from tests.deploy.conftest import Client
from tests.deploy.support import LocalClient, refused
from tests.deploy.test_bodies import FEW as SMALL
from tests.deploy.test_bodies import REFUSED

LIMITS = Limits(nodes=5, edges=6)
ROW = [0.5] * 16
FEW: dict[str, Any] = {"x": [ROW, ROW, ROW], "edge_index": [[0, 1], [1, 2]]}
SPARSE: dict[str, Any] = {"indices": [1, 0], "indptr": [0, 1, 1, 2], "values": [0.5, 2], "shape": [3, 16]}

ALLOWED: dict[str, dict[str, Any]] = {
    "few": {},
    "whole features": {"x": [[1] * 16], "edge_index": [[], []]},
    "the largest features": {"x": [[3.4028234663852886e38] + [0] * 15], "edge_index": [[], []]},
    "as many nodes as are taken": {"x": [ROW] * 5},
    "as many edges as are taken": {"edge_index": [[0] * 6, [1] * 6]},
    "sparse": {"x": SPARSE},
    "sparse without values": {
        "x": {"indices": [], "indptr": [0, 0], "values": [], "shape": [1, 16]},
        "edge_index": [[], []],
    },
    "weights": {"edge_weight": [0, 2.5]},
    "degrees": {"degree": [1, 2, 9]},
    "degrees of weights": {"edge_weight": [0.5, 2], "degree": [0.5, 4.25, 2]},
    "nodes": {"nodes": [2, 0]},
    "reject": {"reject": 0.05},
    "coverage": {"coverage": 0.9},
    "directed": {"directed": True},
    "without probabilities": {"probabilities": False},
    "nulls": dict.fromkeys(("edge_weight", "nodes", "degree", "reject", "coverage", "directed", "probabilities"), None),
}
FORBIDDEN: dict[str, dict[str, Any]] = {
    "something else": {"y": [1, 2, 3]},
    "misspelt": {"rejects": 0.05},
    "no x": {"x": None},
    "no edges": {"edge_index": None},
    "no nodes": {"x": [], "edge_index": [[], []]},
    "narrow": {"x": [ROW[1:]] * 3},
    "wide": {"x": [[*ROW, 1.0]] * 3},
    "ragged": {"x": [ROW, ROW, ROW[1:]]},
    "text": {"x": [["1", *ROW[1:]]] * 3},
    "truth": {"x": [[True, *ROW[1:]]] * 3},
    "null": {"x": [[None, *ROW[1:]]] * 3},
    "beyond single precision": {"x": [[1e39, *ROW[1:]]] * 3},
    "too many nodes": {"x": [ROW] * 6},
    "too many edges": {"edge_index": [[0] * 7, [1] * 7]},
    "one end": {"edge_index": [[0]]},
    "three ends": {"edge_index": [[0], [1], [2]]},
    "half an edge": {"edge_index": [[0.5], [1]]},
    "edges of truth": {"edge_index": [[True], [0]]},
    "edge below": {"edge_index": [[-1], [0]]},
    "huge edge": {"edge_index": [[2**63], [0]]},
    "half sparse": {"x": {name: SPARSE[name] for name in ("indices", "indptr")}},
    "more than sparse": {"x": {**SPARSE, "kind": "csr"}},
    "sparse of another width": {"x": {**SPARSE, "shape": [3, 17]}},
    "sparse beyond": {"x": {**SPARSE, "indices": [1, 16]}},
    "sparse of a crowd": {"x": {**SPARSE, "shape": [6, 16]}},
    "sparse in three dimensions": {"x": {**SPARSE, "shape": [3, 16, 1]}},
    "sparse of truth": {"x": {**SPARSE, "values": [True, 2]}},
    "negative weight": {"edge_weight": [1, -1]},
    "weights of truth": {"edge_weight": [True, 1]},
    "infinite weight": {"edge_weight": [1, 1e39]},
    "nodes that are none": {"nodes": []},
    "a node twice": {"nodes": [1, 1]},
    "a node below": {"nodes": [-1]},
    "one node": {"nodes": 1},
    "degree below": {"degree": [-1, 2, 1]},
    "fractions of degrees": {"degree": [1.5, 2, 1]},
    "degree beyond": {"degree": [2**40, 2, 1]},
    "nothing may be lost": {"reject": 0},
    "all may be lost": {"reject": 1},
    "reject as text": {"reject": "0.05"},
    "reject of truth": {"reject": True},
    "coverage of all": {"coverage": 1.0},
    "directed by number": {"directed": 1},
    "probabilities as text": {"probabilities": "no"},
}


@pytest.fixture
def local(client: Client, rejecting: Model) -> LocalClient:
    return client(rejecting, LIMITS)


def validator(local: LocalClient, path: str) -> Draft202012Validator:
    described = local.get("/openapi.json").json()["paths"][path]["post"]["requestBody"]["content"]
    schema = described[JSON]["schema"]
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_what_the_description_allows_is_answered(local: LocalClient) -> None:
    allowed = validator(local, "/predict")
    for name, changes in ALLOWED.items():
        body = {**FEW, **changes}
        assert allowed.is_valid(body), name
        assert local.post("/predict", json=body).status_code == 200, name


def test_what_the_description_forbids_is_refused(local: LocalClient) -> None:
    allowed = validator(local, "/predict")
    for name, changes in FORBIDDEN.items():
        body = {**FEW, **changes}
        assert not allowed.is_valid(body), name
        answer = local.post("/predict", json=body)
        assert answer.status_code in (400, 413, 422), name
        refused(answer, answer.status_code)
    for missing in FEW:
        body = {name: value for name, value in FEW.items() if name != missing}
        assert not allowed.is_valid(body)
        refused(local.post("/predict", json=body), 422, "missing")


@pytest.mark.parametrize("path", ["/predict", "/explain"])
def test_an_explanation_takes_one_node_and_no_options_of_predictions(local: LocalClient, path: str) -> None:
    allowed, explains = validator(local, path), path == "/explain"
    sound = {**FEW, "nodes": [1]}
    bodies = [FEW, {**FEW, "nodes": None}, {**FEW, "nodes": [1, 2]}]
    bodies += [{**sound, **option} for option in ({"reject": 0.05}, {"coverage": 0.9}, {"probabilities": True})]
    for body in bodies:
        assert allowed.is_valid(body) != explains
        assert local.post(path, json=body).status_code == (422 if explains else 200)
    for body in (sound, {**sound, "reject": None, "probabilities": None}):
        assert allowed.is_valid(body)
        assert local.post(path, json=body).status_code == 200


IN_WORDS = {
    "too few weights",
    "degree below the weights",
    "uneven ends",
    "edges in halves",
    "edge beyond",
    "degree of half",
    "degree too small",
}
"""What does not fit together, or is written in another way: that is said in words."""


def test_what_else_is_refused_is_forbidden_too(local: LocalClient) -> None:
    allowed = validator(local, "/predict")
    others = {name: content for name, (content, *_) in REFUSED.items() if isinstance(content, dict)}
    for name, content in others.items():
        if content.get("x") == SMALL["x"]:
            body = {**content, "x": FEW["x"]}
            assert allowed.is_valid(body) == (name in IN_WORDS), name
            assert local.post("/predict", json=body).status_code in (413, 422), name


def test_options_in_the_address_are_refused_where_none_are_described(local: LocalClient) -> None:
    described = local.get("/openapi.json").json()["paths"]
    assert "parameters" not in described["/predict"]["post"]
    refused(local.post("/predict?reject=0.05", json=FEW), 422, "in the body")
    top = next(one for one in described["/explain"]["post"]["parameters"] if one["name"] == "top")["schema"]
    body = {**FEW, "nodes": [1]}
    for number, status in ((top["minimum"] - 1, 422), (top["minimum"], 200), (top["maximum"] + 1, 422)):
        assert local.post(f"/explain?top={number}", json=body).status_code == status


def test_every_type_of_body_that_is_taken_is_described(local: LocalClient) -> None:
    described = local.get("/openapi.json").json()["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert described.keys() == KINDS.keys()


# ---------------------------------------------------------------------- names of features


@pytest.fixture
def named(tiny: Dataset) -> Model:
    data = replace(ipal.graph_from(tiny), columns=tuple(f"amount {number}" for number in range(16)))
    return ipal.NCM().partial_fit(data).model_


def test_the_server_says_what_features_are(client: Client, named: Model) -> None:
    local = client(named)
    assert local.get("/memory").json()["feature_names"] == list(named.schema.columns)
    assert "16 numbers for each node: amount 0, amount 1, " in unescape(local.get("/").text)
    assert "amount 15" in unescape(local.get("/").text)
    assert "amount 0, amount 1" in unescape(local.get("/docs").text)
    narrow = {"x": [[1.0] * 15], "edge_index": [[], []]}
    refused(local.post("/predict", json=narrow), 422, "15 features", "trained on 16: amount 0, amount 1, ", "amount 15")
    found = local.post("/explain", json={"x": [ROW], "edge_index": [[], []], "nodes": [0]}).json()
    assert {one["feature"] for one in found["by_feature"]} <= set(named.schema.columns)
    assert client().get("/memory").json()["feature_names"] == []


def test_an_exported_file_says_what_features_are(named: Model, known: Model) -> None:
    for model in (named, known):
        about = {one.key: one.value for one in onnx.load_from_string(onnx_model(model)).metadata_props}
        assert json.loads(about["feature_names"]) == list(model.schema.columns)


def test_a_graph_of_another_width_is_told_what_is_expected(named: Model, tiny: Dataset, tmp_path: Path) -> None:
    graph = ipal.graph_from(tiny)
    with pytest.raises(DataError, match="trained on 16: amount 0, amount 1"):
        predict(named, replace(graph, x=graph.x[:, 1:], columns=()))
