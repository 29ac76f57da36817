"""A client without network of an application in this process, what it asks, and what is said on a real socket."""

import asyncio
import io
import json
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx
import numpy as np
from fastapi import FastAPI

from ipal.deploy.serving.bodies import JSON, NPZ, json_body, npz_body

Result = TypeVar("Result")


def completed(call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """What a coroutine gives, in a thread of its own: in this one a browser's loop may be running already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(call())).result()


class LocalClient:
    """Every request has an event loop of its own, so that several threads may ask."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, path, **options)

        return completed(ask)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)


BODIES = {JSON: json_body, NPZ: npz_body}


def archive(**arrays: Any) -> bytes:
    """An .npz file."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


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


# ---------------------------------------------------------------------- a real socket

BODY = json.dumps({"x": [[1.0] * 16], "edge_index": [[], []]}).encode()
POST = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
Start = Callable[..., tuple[str, int]]


def told(connection: socket.socket, seconds: float = 5.0) -> bytes:
    """Everything until the other side hangs up."""
    connection.settimeout(seconds)
    found = b""
    try:
        while chunk := connection.recv(65536):
            found += chunk
    except ConnectionResetError:
        pass
    return found


def whole_request(body: bytes = BODY) -> bytes:
    return POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
