"""The routes: what they refuse, in which words; under load some wait, and the rest is told to come back."""

import asyncio
import json
import threading
from typing import Any

import pytest

from ipal.data.datasets import Dataset
from ipal.deploy.serving.bodies import JSON, NPZ, Limits, npz_body
from ipal.deploy.serving.served import Served
from tests.deploy.conftest import Client
from tests.deploy.support import BODIES, completed, post, refused


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


def test_a_body_says_what_it_is_and_is_not_packed(client: Client) -> None:
    local = client()
    for kind in ("text/plain", "", "multipart/form-data; boundary=x", "application/jsonx"):
        refused(post(local, b"{}", kind), 415, "application/json", "application/x-npz")
    refused(post(local, b"{}", JSON, **{"content-encoding": "gzip"}), 415, "Content-Encoding")
    body = json.dumps({"x": [[1.0] * 16], "edge_index": [[], []]}).encode()
    assert post(local, body, "Application/JSON; charset=utf-8").status_code == 200


def test_options_in_the_address_are_refused_where_there_are_none(client: Client) -> None:
    refused(client().post("/predict?reject=0.05", json={}), 422, "in the body")


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


def test_a_mistake_in_the_program_is_one_sentence_too(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a secret")

    local = client()
    monkeypatch.setattr("ipal.deploy.serving.served.predict", broken)
    body = {"x": [[1.0] * 16], "edge_index": [[], []]}
    sentence = refused(local.post("/predict", json=body), 500, "Internal server error")
    assert "secret" not in sentence
    assert "a secret" in caplog.text, "who runs the server is not told"
    monkeypatch.setattr("ipal.deploy.serving.app.generate_latest", broken)
    refused(local.get("/metrics"), 500, "Internal server error")


def test_too_little_memory_is_an_overload(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*_: object, **__: object) -> None:
        raise MemoryError

    local = client()
    monkeypatch.setattr("ipal.deploy.serving.served.predict", greedy)
    response = local.post("/predict", json={"x": [[1.0] * 16], "edge_index": [[], []]})
    refused(response, 503, "memory")
    assert int(response.headers["retry-after"]) > 0


# ---------------------------------------------------------------------- overload


class Held:
    """Holds the thread that answers until it is let go."""

    def __init__(self, served: Served) -> None:
        self.begun, self.free = threading.Event(), threading.Event()
        served._thread.submit(self._wait)

    def _wait(self) -> None:
        self.begun.set()
        assert self.free.wait(10)


def test_some_wait_and_the_rest_is_told_to_come_back(client: Client, tiny: Dataset) -> None:
    local = client()
    served = local.app.state.server.served
    held, body = Held(served), npz_body(tiny.graph)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(post(local, body, NPZ))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(1000):
        if served._places._value == 0:
            break
        threading.Event().wait(0.005)
    response = post(local, body, NPZ)
    refused(response, 503, "try again")
    assert response.headers["retry-after"] == "1"
    assert local.get("/health").status_code == 200
    held.free.set()
    for thread in threads:
        thread.join()
    assert [one.status_code for one in found] == [200, 200, 200]
    assert post(local, body, NPZ).status_code == 200


def test_an_answer_that_takes_too_long_is_an_overload(client: Client, tiny: Dataset) -> None:
    local = client(limits=Limits(seconds=0.05))
    held = Held(local.app.state.server.served)
    response = post(local, npz_body(tiny.graph), NPZ)
    refused(response, 503, "0.05 seconds", "--timeout")
    assert response.headers["retry-after"] == "1"
    held.free.set()


def test_a_body_that_never_ends_is_given_up(client: Client) -> None:
    app = client(limits=Limits(seconds=0.05)).app
    told: list[Any] = []

    async def call() -> None:
        waiting = iter([{"type": "http.request", "body": b"{", "more_body": True}])

        async def receive() -> Any:
            return next(waiting, None) or await asyncio.Event().wait()

        async def send(message: Any) -> None:
            told.append(message)

        await app(_scope(), receive, send)

    completed(call)
    assert told[0]["status"] == 408
    assert (b"connection", b"close") in told[0]["headers"]
    assert "0.05 seconds" in json.loads(told[1]["body"])["error"]


def test_who_left_while_sending_is_not_answered(client: Client, tiny: Dataset) -> None:
    local, told = client(), list[Any]()

    async def call() -> None:
        sent = {"type": "http.request", "body": npz_body(tiny.graph), "more_body": True}
        messages = iter([sent, {"type": "http.disconnect"}])

        async def receive() -> Any:
            return next(messages)

        async def send(message: Any) -> None:
            told.append(message)

        await local.app(_scope(NPZ), receive, send)

    completed(call)
    assert local.app.state.server.held == 0
    text = local.get("/metrics").text
    assert 'ipal_requests_total{path="/predict",status="gone"} 1.0' in text
    assert "ipal_nodes_predicted_total 0.0" in text


def test_bodies_on_their_way_take_a_bounded_room(client: Client) -> None:
    local = client(limits=Limits(bytes=1000))
    server = local.app.state.server
    server.held = 3900
    refused(post(local, b"{" + b" " * 200), 503, "try again")
    assert server.held == 3900
    refused(post(local, b"{"), 400)
    assert server.held == 3900


def _scope(kind: str = JSON) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/predict",
        "raw_path": b"/predict",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"content-type", kind.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
