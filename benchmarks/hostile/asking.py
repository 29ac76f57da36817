"""A server under test, how it is asked, and the register of ways to ask."""

import http.client
import json
import random
import socket
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ipal.deploy.serving.bodies import JSON, NPZ

OVERLOAD = 503
GONE = None
Status = int | None


@dataclass(frozen=True)
class Sample:
    """A sound request, and what its answer must say."""

    kind: str
    body: bytes
    predicted: list[Any]
    confidence: list[float]


@dataclass(frozen=True)
class Target:
    """A server under test."""

    host: str
    port: int
    token: str
    most_bytes: int
    patience: float
    """Seconds after which it cuts slow clients off."""
    features: int
    """That its model takes."""
    samples: dict[str, list[Sample]]
    """Sound requests, by kind."""

    def small(self, kind: str) -> list[Sample]:
        """Those that are as JSON or .npz, and are not too large."""
        every = [one for some in self.samples.values() for one in some if len(one.body) < self.most_bytes]
        return [one for one in every if one.kind == kind]

    def any_sample(self, rng: random.Random) -> Sample:
        return rng.choice(self.small(rng.choice([JSON, NPZ])))

    def headers(self, kind: str = JSON, token: str | None = None) -> dict[str, str]:
        return {"Content-Type": kind, "Authorization": f"Bearer {token or self.token}"}

    def raw(self, lines: Iterable[str] = (), method: str = "POST", path: str = "/predict", kind: str = JSON) -> bytes:
        """The header of a request, as bytes."""
        names = {"Host": "127.0.0.1", **self.headers(kind)}
        head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in names.items()), *lines]
        return "\r\n".join([*head, "", ""]).encode()


class WrongAnswerError(Exception):
    """An answer that is well-formed and not true."""


Way = Callable[[Target, random.Random], Status]
WAYS: dict[str, tuple[Way, set[Status], int]] = {}
"""By name: the way, the statuses that it may have, and how often it is taken."""


def way(name: str, allowed: Iterable[Status], weight: int = 1) -> Callable[[Way], Way]:
    def add(function: Way) -> Way:
        WAYS[name] = (function, {*allowed, OVERLOAD}, weight)
        return function

    return add


# ---------------------------------------------------------------------- asking


def ask(target: Target, body: Any, headers: dict[str, str], method: str = "POST", path: str = "/predict") -> Any:
    """Status and content of an answer, by Python's own client."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=60)
    try:
        try:
            connection.request(method, path, body, headers)
        except (BrokenPipeError, ConnectionResetError):  # refused before all was sent: the answer may be there already
            if connection.sock is None:
                return GONE, b""
        answer = connection.getresponse()
        content = answer.read()
        if answer.status == OVERLOAD and "Retry-After" not in answer.headers:
            raise WrongAnswerError("an overload without Retry-After")
        if answer.status >= 400:
            _check_sentence(content)
        return answer.status, content
    except (ConnectionResetError, BrokenPipeError, http.client.BadStatusLine):
        return GONE, b""
    finally:
        connection.close()


def _check_sentence(content: bytes) -> None:
    said = json.loads(content)
    if list(said) != ["error"] or "Traceback" in said["error"]:
        raise WrongAnswerError(f"no sentence: {content[:200]!r}")


def shout(target: Target, *parts: bytes, pause: float = 0.0, listen: bool = True) -> Status:
    """Send bytes as they are; the status of what comes back."""
    with socket.create_connection((target.host, target.port), timeout=60) as connection:
        for part in parts:
            try:
                connection.sendall(part)
            except (BrokenPipeError, ConnectionResetError):
                break
            time.sleep(pause)
        if not listen:
            if pause == 0:  # hang up so that the other side sees an error, not an end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return GONE
        try:
            head = connection.recv(65536)
        except ConnectionResetError:
            return GONE
        return int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.1 ") else GONE


def post(target: Target, body: Any, kind: str = JSON) -> Status:
    status: Status = ask(target, body, target.headers(kind))[0]
    return status


def said(target: Target, **changes: Any) -> Status:
    """A small graph in JSON, with something changed."""
    graph = {"x": [[0.5] * target.features] * 3, "edge_index": [[0, 1], [1, 2]], **changes}
    return post(target, json.dumps(graph))
