"""The routes: what they answer, and what they refuse in which words."""

import asyncio
import gc
import json
import re
import threading
from concurrent.futures import Future
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from ipal.data.datasets import Dataset
from ipal.data.graph import Graph, checked_graph
from ipal.data.streams import TaskStream
from ipal.deploy.predict import neighbourhood, predict
from ipal.deploy.serving.answers import Answerer, Reply
from ipal.deploy.serving.bodies import JSON, NPZ, json_body, npz_body
from ipal.deploy.serving.limits import Limits
from ipal.learners import IPAL, NCM, Analytic, Learner
from tests.deploy.conftest import LIMITS, Client
from tests.deploy.support import LocalClient, completed
from tests.learners.support import learned

BODIES = {JSON: json_body, NPZ: npz_body}


def post(client: LocalClient, body: bytes, kind: str = JSON, **headers: str) -> Any:
    return client.post("/predict", content=body, headers={"content-type": kind, **headers})


def refused(response: Any, status: int, *words: str) -> str:
    """An answer that is one sentence, and nothing else."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == JSON
    content = response.json()
    assert list(content) == ["error"]
    for word in words:
        assert word in content["error"]
    assert "Traceback" not in response.text
    return str(content["error"])


# ---------------------------------------------------------------------- answers


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("features", ["dense", "sparse"])
def test_a_whole_graph_is_predicted_as_in_this_process(
    client: Client, known: Learner, tiny: Dataset, kind: str, features: str
) -> None:
    graph = tiny.graph
    if features == "sparse":
        graph = Graph.of(sp.csr_array(np.where(graph.x > 0.5, graph.x, 0)), graph.neighbours, symmetric=True)
    expected = predict(known, graph, reject=0.9)
    response = post(client(), BODIES[kind](graph, reject=0.9), kind)
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
    client: Client, known: Learner, tiny: Dataset, kind: str
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


def test_edges_count_both_ways_unless_it_is_said_otherwise(client: Client, known: Learner, tiny: Dataset) -> None:
    x, edges = tiny.graph.x, tiny.graph.edges[:, ::3]
    for directed in (False, True):
        expected = predict(known, checked_graph(x, edges, undirected=not directed)).confidence
        said = {"x": x.tolist(), "edge_index": edges.tolist(), "directed": directed}
        assert client().post("/predict", json=said).json()["confidence"] == pytest.approx(expected, abs=2e-6)
        del said["directed"]
        silent = client(directed=directed).post("/predict", json=said)
        assert silent.json()["confidence"] == pytest.approx(expected, abs=2e-6)


def test_a_graph_file_is_a_request(client: Client, tiny: Dataset, tmp_path: Any) -> None:
    np.savez_compressed(tmp_path / "mine.npz", x=tiny.graph.x, edge_index=tiny.graph.edges, y=tiny.y)
    response = post(client(), (tmp_path / "mine.npz").read_bytes(), "application/octet-stream")
    assert len(response.json()["predicted"]) == 240


@pytest.mark.parametrize("count", [1, 3])
def test_a_graph_without_edges_is_a_graph(client: Client, count: int) -> None:
    answer = client().post("/predict", json={"x": [[0.5] * 16] * count, "edge_index": [[], []]}).json()
    assert len(set(answer["predicted"])) == 1
    assert len(answer["predicted"]) == count


def test_the_model_says_what_it_is_takes_and_keeps(client: Client, known: Learner) -> None:
    response = client().get("/memory")
    assert response.json() == {
        "method": "ipal",
        "classes": [0, 1, 2, 3],
        "features": 16,
        "hops": 2,
        "directed": False,
        **known.memory_report(),
    }


@pytest.mark.parametrize("method", [IPAL, NCM, Analytic])
def test_nothing_of_a_graph_is_kept(
    client: Client, tiny: Dataset, tiny_stream: TaskStream, method: type[Learner]
) -> None:
    """The library keeps what it made of a graph as long as the graph lives: here that is until the answer."""
    options = {"hops": (1,), "expansion": 32} if method is Analytic else {}
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


@pytest.mark.parametrize("header", [None, "Bearer wrong", f"Bearer {TOKEN}x", TOKEN, "Basic abc", "Bearer"])
def test_without_the_token_only_health_answers(client: Client, header: str | None) -> None:
    guarded = client(token=TOKEN)
    headers = {} if header is None else {"authorization": header}
    assert guarded.get("/health", headers=headers).json() == {"status": "ok"}
    for path in ("/memory", "/metrics", "/docs", "/openapi.json", "/nothing"):
        response = guarded.get(path, headers=headers)
        refused(response, 401, "Authorization: Bearer")
        assert response.headers["www-authenticate"] == "Bearer"
    refused(guarded.post("/predict", content=b"x", headers=headers), 401)


def test_with_the_token_everything_answers(client: Client) -> None:
    guarded = client(token=TOKEN)
    for path in ("/memory", "/metrics", "/docs", "/openapi.json"):
        assert guarded.get(path, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


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


# ---------------------------------------------------------------------- what is refused


def test_unknown_paths_and_methods_are_said_in_a_sentence(client: Client) -> None:
    local = client()
    refused(local.get("/"), 404, "/docs")
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

    monkeypatch.setattr("ipal.deploy.serving.answers.predict", broken)
    body = {"x": [[1.0] * 16], "edge_index": [[], []]}
    sentence = refused(client().post("/predict", json=body), 500, "not your fault")
    assert "secret" not in sentence
    assert "a secret" in caplog.text, "who runs the server is not told"
    local = client()
    local.app.state.server.facts = {"no": object()}
    refused(local.get("/memory"), 500, "not your fault")


def test_too_little_memory_is_an_overload(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("ipal.deploy.serving.answers.predict", greedy)
    response = client().post("/predict", json={"x": [[1.0] * 16], "edge_index": [[], []]})
    refused(response, 503, "memory")
    assert int(response.headers["retry-after"]) > 0


# ---------------------------------------------------------------------- overload


class Held:
    """Holds the thread that answers until it is let go."""

    def __init__(self, answerer: Answerer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.free, self.answered = threading.Event(), threading.Event(), 0
        answer = answerer._answer

        def slow(body: bytes, kind: str) -> Reply | Exception:
            self.begun.set()
            assert self.free.wait(10)
            self.answered += 1
            return answer(body, kind)

        monkeypatch.setattr(answerer, "_answer", slow)


def test_one_is_answered_some_wait_and_the_rest_is_told_to_come_back(
    client: Client, tiny: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = client()
    held = Held(local.app.state.server.answerer, monkeypatch)
    body = npz_body(tiny.graph)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(post(local, body, NPZ))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert held.begun.wait(10)
    inside = local.app.state.server.answerer._places
    for _ in range(1000):
        if inside._value == 0:
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


def test_an_answer_that_takes_too_long_is_an_overload(
    client: Client, tiny: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = client(limits=Limits(seconds=0.05))
    held = Held(local.app.state.server.answerer, monkeypatch)
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


@pytest.mark.parametrize("left", ["while sending", "while waiting"])
def test_who_left_is_not_answered(client: Client, tiny: Dataset, monkeypatch: pytest.MonkeyPatch, left: str) -> None:
    local = client()
    answerer = local.app.state.server.answerer
    held = Held(answerer, monkeypatch)
    busy: Future[Any] = answerer.ask(npz_body(tiny.graph), NPZ)
    assert held.begun.wait(10)
    told: list[Any] = []

    async def call() -> None:
        sent = {"type": "http.request", "body": npz_body(tiny.graph), "more_body": left == "while sending"}
        messages = iter([sent, {"type": "http.disconnect"}])

        async def receive() -> Any:
            return next(messages)

        async def send(message: Any) -> None:
            told.append(message)

        await local.app(_scope(NPZ), receive, send)

    completed(call)
    assert told == []
    held.free.set()
    assert isinstance(busy.result(10), Reply)
    assert post(local, npz_body(tiny.graph), NPZ).status_code == 200
    assert held.answered == 2, "who left was answered"
    assert 'ipal_requests_total{path="/predict",status="gone"} 1.0' in local.get("/metrics").text


def test_bodies_on_their_way_take_a_bounded_room(client: Client) -> None:
    local = client(limits=Limits(bytes=1000))
    server = local.app.state.server
    server._held = 3900
    refused(post(local, b"{" + b" " * 200), 503, "try again")
    assert server._held == 3900
    refused(post(local, b"{"), 400)
    assert server._held == 3900


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


# ---------------------------------------------------------------------- what is told about the server


def test_prometheus_is_told_by_path_and_status_in_bounded_words(client: Client, tiny: Dataset) -> None:
    local = client()
    post(local, npz_body(tiny.graph, reject=0.9), NPZ)
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
    assert "ipal_requests_in_flight 1.0" in text, "this one"
    assert "ipal_nodes_predicted_total 240.0" in text
    rejected = re.search(r"^ipal_nodes_rejected_total (\d+)", text, flags=re.MULTILINE)
    assert rejected is not None
    assert 0 < int(rejected[1]) < 240


def test_every_answer_is_declared(client: Client) -> None:
    described = client().get("/openapi.json").json()
    assert set(described["paths"]) == {"/predict", "/memory", "/health", "/metrics"}
    predict_ = described["paths"]["/predict"]["post"]
    assert set(predict_["responses"]) == {"200", "400", "401", "408", "413", "415", "422", "503"}
    assert "Retry-After" in predict_["responses"]["503"]["headers"]
    assert set(predict_["requestBody"]["content"]) == {JSON, NPZ, "application/octet-stream"}
    fields = predict_["requestBody"]["content"][JSON]["schema"]["properties"]
    assert set(fields) == {"x", "edge_index", "nodes", "degree", "reject", "directed", "probabilities"}
    assert "2 hops" in described["info"]["description"]


class Links(HTMLParser):
    """Everything that a page would load or leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "link", "img", "iframe", "object"}
        self.found += [value or "" for name, value in attrs if name in {"src", "href"}]


def test_the_page_needs_no_network(client: Client) -> None:
    response = client().get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    links = Links()
    links.feed(response.text)
    assert links.found == ["/openapi.json"]
    assert "://" not in response.text
    for word in ("POST /predict", "edge_index", "Retry-After", "/metrics", "none of the known"):
        assert word in response.text


def test_nothing_is_kept_by_browsers_or_guessed_at(client: Client) -> None:
    for response in (client().get("/health"), client().get("/nothing"), client(token=TOKEN).get("/memory")):
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-content-type-options"] == "nosniff"


def test_limits_of_the_tests_are_smaller_than_those_of_the_server() -> None:
    assert LIMITS.bytes < Limits().bytes
    assert Limits().all_bytes == 4 * Limits().bytes
