"""The routes: what they answer and to whom, and what the server tells about itself."""

import gc
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from jsonschema import Draft202012Validator

import ipal
from ipal.closed_form.method import Analytic
from ipal.data.datasets import Dataset
from ipal.data.graph import Graph, checked_graph
from ipal.data.streams import TaskStream
from ipal.deploy.predict import neighbourhood, predict
from ipal.deploy.serving.bodies import JSON, NPZ, npz_body
from ipal.estimator.model import Model
from ipal.methods.base import Method
from ipal.methods.ipal import IPAL
from ipal.methods.ncm import NCM
from tests.deploy.conftest import Client
from tests.deploy.support import BODIES, post, refused
from tests.learning import learned

pytestmark = pytest.mark.filterwarnings("ignore:.*nodes are rejected:ipal.errors.Qualified")

# ---------------------------------------------------------------------- answers


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("features", ["dense", "sparse"])
def test_a_whole_graph_is_predicted_as_in_this_process(
    client: Client, rejecting: Model, tiny: Dataset, kind: str, features: str
) -> None:
    graph = tiny.graph
    if features == "sparse":
        graph = Graph(sp.csr_array(np.where(graph.x > 0.5, graph.x, 0)), graph.neighbours, symmetric=True)
    expected = predict(rejecting, graph, reject=0.2)
    response = post(client(rejecting), BODIES[kind](graph, reject=0.2), kind)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["classes"] == [0, 1, 2, 3]
    assert answer["nodes"] == list(range(240))
    assert answer["predicted"] == expected.labels
    assert None in answer["predicted"]
    assert answer["confidence"] == pytest.approx(expected.confidence, abs=2e-6)
    assert np.array(answer["probabilities"]) == pytest.approx(expected.probabilities, abs=2e-6)


@pytest.mark.parametrize("kind", BODIES)
def test_nodes_with_their_neighbourhood_are_predicted_as_in_the_whole_graph(
    client: Client, known: Model, tiny: Dataset, kind: str
) -> None:
    hops = client().get("/memory").json()["hops"]
    part = neighbourhood(tiny.graph, [200, 3], hops)
    assert part.graph.num_nodes < tiny.graph.num_nodes
    answer = post(client(), BODIES[kind](part.graph, part.nodes, probabilities=False), kind).json()
    whole = predict(known, tiny.graph)
    assert answer["nodes"] == part.nodes.tolist()
    assert answer["predicted"] == [whole.labels[200], whole.labels[3]]
    assert answer["confidence"] == pytest.approx(whole.confidence[[200, 3]], abs=2e-6)
    assert "probabilities" not in answer


def test_edges_count_both_ways_unless_it_is_said_otherwise(client: Client, known: Model, tiny: Dataset) -> None:
    x, edges = tiny.graph.x, tiny.graph.edges[:, ::3]
    for directed in (False, True):
        expected = predict(known, checked_graph(x, edges, undirected=not directed)).confidence
        said = {"x": x.tolist(), "edge_index": edges.tolist(), "directed": directed}
        assert client().post("/predict", json=said).json()["confidence"] == pytest.approx(expected, abs=2e-6)


def test_a_graph_file_is_a_request(client: Client, tiny: Dataset, tmp_path: Any) -> None:
    np.savez_compressed(tmp_path / "mine.npz", x=tiny.graph.x, edge_index=tiny.graph.edges, y=tiny.y)
    response = post(client(), (tmp_path / "mine.npz").read_bytes(), NPZ)
    assert len(response.json()["predicted"]) == 240


def test_the_model_says_what_it_is_takes_and_keeps(client: Client, known: Model) -> None:
    response = client().get("/memory")
    assert response.json() == {
        "method": "ipal",
        "version": response.headers["x-model-version"],
        "classes": [0, 1, 2, 3],
        "features": 16,
        "feature_names": [],
        "hops": 2,
        "hops_to_reject": 4,
        "directed": False,
        **known.memory_report(),
        "only_while_learning": [],
    }


def test_nodes_of_unknown_classes_and_sets_are_answered(client: Client, rejecting: Model, tiny: Dataset) -> None:
    model = rejecting
    body = npz_body(tiny.graph, reject=0.05, coverage=0.9)
    answer = post(client(model), body, NPZ).json()
    own = predict(model, tiny.graph, reject=0.05, coverage=0.9)
    assert answer["predicted"] == own.labels
    assert answer["sets"] == [own.classes[row].tolist() for row in own.sets]
    for wrong in ({"reject": 2.0}, {"coverage": -1.0}):
        assert post(client(model), npz_body(tiny.graph, **wrong), NPZ).status_code == 422


@pytest.mark.parametrize("asked", [{"reject": 0.05}, {"coverage": 0.9}])
def test_what_was_not_calibrated_is_refused_in_a_sentence(
    client: Client, tiny: Dataset, tiny_stream: TaskStream, asked: dict[str, float]
) -> None:
    local = client(learned(NCM, tiny_stream, 1))
    refused(post(local, npz_body(tiny.graph, **asked), NPZ), 422, "not calibrated", "calibration=0.2")


@pytest.mark.parametrize("method", [IPAL, NCM, Analytic])
def test_nothing_of_a_graph_is_kept(
    client: Client, tiny: Dataset, tiny_stream: TaskStream, method: type[Method]
) -> None:
    """The library keeps what it made of a graph as long as the graph lives: here that is until the answer."""
    options = {"steps": 1, "width": 32} if method is Analytic else {}
    local = client(learned(method, tiny_stream, 1, epochs=1, **options))
    body = npz_body(tiny.graph, [5, 200])
    post(local, body, NPZ)
    before = graphs()
    gc.disable()
    try:
        for _ in range(5):
            assert post(local, body, NPZ).status_code == 200
    finally:
        gc.enable()
    assert graphs() == before


def graphs() -> int:
    """How many there are in this process."""
    return sum(type(each) is Graph for each in gc.get_objects())


# ---------------------------------------------------------------------- who may ask


TOKEN = "correct-horse-battery"


GUARDED = {"/memory": "GET", "/metrics": "GET", "/predict": "POST", "/explain": "POST", "/reload": "POST"}


@pytest.mark.parametrize("header", [None, f"Bearer {TOKEN}x", TOKEN, "Bearer é"])
def test_without_the_token_no_route_says_anything_of_the_model(client: Client, header: str | None) -> None:
    guarded = client(token=TOKEN)
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    assert guarded.get("/health", headers=headers).json()["status"] == "ok"
    for path, method in GUARDED.items():
        response = guarded.request(method, path, headers=headers)
        refused(response, 401, "Authorization: Bearer")
        assert response.headers["www-authenticate"] == "Bearer"
    for path in ("/docs", "/openapi.json"):
        assert guarded.get(path).text == client(token="another").get(path).text
    assert guarded.get("/memory", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("LOCALHOST", 200),
        ("[::1]:9", 200),
        ("evil.example:8000", 400),
        ("127.0.0.1.evil", 400),
    ],
)
def test_another_machines_name_is_refused(client: Client, host: str, status: int) -> None:
    local = client(hosts={"127.0.0.1", "localhost", "[::1]"})
    assert local.get("/health", headers={"host": host}).status_code == status


# ---------------------------------------------------------------------- what is told about the server


def test_prometheus_is_told_by_path_and_status_in_bounded_words(
    client: Client, rejecting: Model, tiny: Dataset
) -> None:
    local = client(rejecting)
    post(local, npz_body(tiny.graph, reject=0.2), NPZ)
    post(local, b"{")
    for number in range(20):
        local.get(f"/made-up-{number}")
    response = local.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    text = response.text
    assert 'ipal_requests_total{path="/predict",status="200"} 1.0' in text
    assert 'ipal_requests_total{path="/predict",status="400"} 1.0' in text
    assert 'ipal_requests_total{path="other",status="404"} 20.0' in text
    assert "made-up" not in text
    assert 'ipal_request_seconds_count{path="/predict"} 2.0' in text
    assert "ipal_nodes_predicted_total 240.0" in text
    rejected = re.search(r"^ipal_nodes_rejected_total (\d+)", text, flags=re.MULTILINE)
    assert rejected is not None
    assert 0 < int(rejected[1]) < 240


@pytest.fixture
def described(client: Client) -> dict[str, Any]:
    content: dict[str, Any] = client().get("/openapi.json").json()
    return content


def test_every_answer_is_declared(described: dict[str, Any]) -> None:
    assert set(described["paths"]) == {"/predict", "/explain", "/memory", "/health", "/metrics"}
    for path in ("/predict", "/explain"):
        route = described["paths"][path]["post"]
        assert set(route["responses"]) == {"200", "400", "401", "408", "409", "413", "415", "422", "503"}
        assert set(route["requestBody"]["content"]) == {JSON, NPZ}
    assert [one["name"] for one in route["parameters"]] == ["against", "top"]
    assert "hops" in described["info"]["description"]


SOUND: dict[str, Any] = {"x": [[0.5] * 16] * 3, "edge_index": [[0, 1], [1, 2]]}
SPARSE = {"x_indices": [1, 0], "x_indptr": [0, 1, 1, 2], "x_values": [0.5, 2], "x_shape": [3, 16]}
ALLOWED: list[dict[str, Any]] = [
    {},
    {"x": [[1] * 16], "edge_index": [[], []]},
    {"x": None, **SPARSE, "edge_weight": [0, 2.5], "degree": [0.5, 4.25, 2.5]},
    {"degree": [1, 2, 9], "nodes": [2, 0], "reject": 0.05, "coverage": 0.9, "directed": True, "probabilities": False},
    dict.fromkeys(("edge_weight", "nodes", "degree", "reject", "coverage", "directed", "probabilities"), None),
]
FORBIDDEN: list[dict[str, Any]] = [
    {"y": [1, 2, 3]},
    {"x": [["1"] * 16] * 3},
    {"x_kind": "csr"},
    {"edge_index": None},
    {"edge_index": [[0.5], [1]]},
    {"reject": 0},
    {"coverage": 1.0},
    {"directed": 1},
]


def test_the_description_is_what_the_server_takes(client: Client, rejecting: Model, described: dict[str, Any]) -> None:
    local = client(rejecting)
    allowed = Draft202012Validator(described["paths"]["/predict"]["post"]["requestBody"]["content"][JSON]["schema"])
    for changes in ALLOWED:
        assert allowed.is_valid({**SOUND, **changes})
        assert local.post("/predict", json={**SOUND, **changes}).status_code == 200, changes
    for changes in FORBIDDEN:
        assert not allowed.is_valid({**SOUND, **changes})
        refused(local.post("/predict", json={**SOUND, **changes}), 422)
    for missing in SOUND:
        body = {name: value for name, value in SOUND.items() if name != missing}
        assert not allowed.is_valid(body)
        refused(local.post("/predict", json=body), 422, missing)


def test_routes_are_described_for_people(client: Client) -> None:
    assert "/openapi.json" in client().get("/docs").text


def test_the_server_says_what_features_are(client: Client, tiny: Dataset) -> None:
    columns = tuple(f"amount {number}" for number in range(16))
    local = client(ipal.NCM().partial_fit(replace(ipal.graph_from(tiny), columns=columns)).model_)
    assert local.get("/memory").json()["feature_names"] == list(columns)
    narrow = {"x": [[1.0] * 15], "edge_index": [[], []]}
    refused(local.post("/predict", json=narrow), 422, "15 features", "trained on 16: amount 0, amount 1, ", "amount 15")
    found = local.post("/explain", json={**SOUND, "nodes": [0]}).json()
    assert {one["feature"] for one in found["by_feature"]} <= set(columns)


def test_nothing_is_kept_by_browsers_or_guessed_at(client: Client) -> None:
    for response in (client().get("/health"), client().get("/nothing"), client(token=TOKEN).get("/memory")):
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-content-type-options"] == "nosniff"
