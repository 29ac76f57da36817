"""The routes: what they refuse, in which words."""

import json
from typing import Any

import pytest

from ipal.data.datasets import Dataset
from ipal.deploy.serving.bodies import JSON
from ipal.deploy.serving.limits import Limits
from tests.deploy.conftest import Client
from tests.deploy.support import BODIES, post, refused

# ---------------------------------------------------------------------- what is refused


def test_unknown_paths_and_methods_are_said_in_a_sentence(client: Client) -> None:
    local = client()
    refused(local.get("/nothing"), 404, "/docs")
    refused(local.get("/predict/"), 404)
    response = local.get("/predict")
    refused(response, 405, "POST")
    assert response.headers["allow"] == "POST"
    refused(local.post("/memory", json={}), 405)
    assert local.request("HEAD", "/health").status_code == 405
    refused(local.request("OPTIONS", "/predict"), 405)
    assert "access-control-allow-origin" not in local.get("/health", headers={"origin": "http://evil.example"}).headers


@pytest.mark.parametrize("kind", ["text/plain", "", "multipart/form-data; boundary=x", "application/jsonx"])
def test_a_body_says_what_it_is(client: Client, kind: str) -> None:
    refused(post(client(), b"{}", kind), 415, "application/json", "application/x-npz")


def test_packed_bodies_are_refused(client: Client) -> None:
    refused(post(client(), b"{}", JSON, **{"content-encoding": "gzip"}), 415, "Content-Encoding")


def test_a_body_may_be_json_in_any_spelling(client: Client) -> None:
    body = json.dumps({"x": [[1.0] * 16], "edge_index": [[], []]}).encode()
    assert post(client(), body, "Application/JSON; charset=utf-8").status_code == 200


def test_large_bodies_are_refused_by_their_header_and_while_they_come(client: Client) -> None:
    refused(post(client(), b"[" * 200_001), 413, "200000", "--max-bytes")

    async def endless() -> Any:
        for _ in range(4):
            yield b"0" * 99_999
        raise AssertionError("more was read than is allowed")

    refused(post(client(), endless()), 413, "--max-bytes")  # type: ignore[arg-type]


@pytest.mark.parametrize("length", ["9" * 30, "9" * 5000])
def test_absurd_lengths_are_too_large(client: Client, length: str) -> None:
    refused(post(client(), b"{}", JSON, **{"content-length": length}), 413)


@pytest.mark.parametrize("kind", BODIES)
def test_graphs_beyond_the_limits_are_refused(client: Client, tiny: Dataset, kind: str) -> None:
    few_nodes = client(limits=Limits(nodes=239))
    refused(post(few_nodes, BODIES[kind](tiny.graph), kind), 413, "239", "--max-nodes")
    few_edges = client(limits=Limits(edges=tiny.graph.num_edges - 1))
    refused(post(few_edges, BODIES[kind](tiny.graph), kind), 413, "--max-edges")


def test_a_graph_for_another_model_is_refused(client: Client) -> None:
    refused(client().post("/predict", json={"x": [[1.0, 2.0]], "edge_index": [[], []]}), 422, "2 features", "16")


def test_a_mistake_in_the_program_is_one_sentence_too(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a secret")

    local = client()
    monkeypatch.setattr("ipal.deploy.serving.answers.predict", broken)
    body = {"x": [[1.0] * 16], "edge_index": [[], []]}
    sentence = refused(local.post("/predict", json=body), 500, "not your fault")
    assert "secret" not in sentence
    assert "a secret" in caplog.text, "who runs the server is not told"
    local.app.state.server.answerer.facts = {"no": object()}
    refused(local.get("/memory"), 500, "not your fault")


def test_too_little_memory_is_an_overload(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*_: object, **__: object) -> None:
        raise MemoryError

    local = client()
    monkeypatch.setattr("ipal.deploy.serving.answers.predict", greedy)
    response = local.post("/predict", json={"x": [[1.0] * 16], "edge_index": [[], []]})
    refused(response, 503, "memory")
    assert int(response.headers["retry-after"]) > 0
