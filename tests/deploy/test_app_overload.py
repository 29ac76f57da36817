"""The routes under load: some wait, the rest is told to come back, and who left is not answered."""

import asyncio
import json
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from ipal.data.datasets import Dataset
from ipal.deploy.serving.answerer import Answerer
from ipal.deploy.serving.answers import Reply
from ipal.deploy.serving.bodies import JSON, NPZ, npz_body
from ipal.deploy.serving.limits import Limits
from tests.deploy.conftest import Client
from tests.deploy.support import completed, post, refused

# ---------------------------------------------------------------------- overload


class Held:
    """Holds the thread that answers until it is let go."""

    def __init__(self, answerer: Answerer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.free, self.answered = threading.Event(), threading.Event(), 0
        answer = answerer._answer

        def slow(body: bytes, kind: str, *reply: Any) -> Reply | Exception:
            self.begun.set()
            assert self.free.wait(10)
            self.answered += 1
            return answer(body, kind, *reply)

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
