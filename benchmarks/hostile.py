"""Requests of all kinds for benchmarks/serving.py: sound ones, and every way to misbehave that we could think of.

A way is a function that makes one request of a server and tells the status of its answer (None where there is none);
beside it stands which statuses it may have. 503, the declared overload, is always allowed.
"""

import http.client
import io
import json
import pickle
import random
import socket
import struct
import time
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipal.serving.bodies import JSON, NPZ

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
    """Seconds after which it cuts dawdlers off."""
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


# ---------------------------------------------------------------------- sound


@way("sound: predictions", {200}, 40)
def predictions(target: Target, rng: random.Random) -> Status:
    sample = target.any_sample(rng)
    status, content = ask(target, sample.body, target.headers(sample.kind))
    if status == 200:
        found = json.loads(content)
        difference = np.abs(np.array(found["confidence"]) - sample.confidence).max()
        if found["predicted"] != sample.predicted or difference > 1e-5:
            raise WrongAnswerError(f"a prediction that is not the model's: off by {difference}")
    return int(status) if status else GONE


@way("sound: other routes", {200}, 8)
def routes(target: Target, rng: random.Random) -> Status:
    path = rng.choice(["/health", "/memory", "/metrics", "/docs", "/openapi.json"])
    status: Status = ask(target, None, target.headers(), "GET", path)[0]
    return status


@way("sound: several at once", {200})
def pipelined(target: Target, rng: random.Random) -> Status:
    one = target.raw(method="GET", path="/health")
    return shout(target, one * rng.randint(2, 20))


# ---------------------------------------------------------------------- who asks, where, how


@way("wrong token", {401}, 3)
def wrong_token(target: Target, rng: random.Random) -> Status:
    body = target.any_sample(rng).body
    token = rng.choice(["wrong", target.token[:-1], target.token + "x", "é", " "])
    status: Status = ask(
        target, body, {**target.headers(), "Authorization": f"Bearer {token}".encode("latin-1")}, "POST"
    )[0]
    return status


@way("wrong path or method", {404, 405}, 3)
def wrong_path(target: Target, rng: random.Random) -> Status:
    method = rng.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
    path = rng.choice(
        ["/", "/predict/", "/../../etc/passwd", "/%00", "/predict" if method != "POST" else "/x", "/" + "a" * 999]
    )
    status: Status = ask(target, b"{}", target.headers(), method, path)[0]
    return status


@way("wrong content type", {415}, 2)
def wrong_type(target: Target, rng: random.Random) -> Status:
    kind = rng.choice(["text/plain", "", "multipart/form-data", "application/xml", "application/json,"])
    headers = rng.choice([target.headers(kind), {**target.headers(), "Content-Encoding": "gzip"}])
    status: Status = ask(target, target.any_sample(rng).body, headers)[0]
    return status


@way("no HTTP", {400, GONE}, 3)
def no_http(target: Target, rng: random.Random) -> Status:
    junk = [
        rng.randbytes(rng.randint(1, 5000)) + b"\r\n\r\n",
        b"\x16\x03\x01" + rng.randbytes(200) + b"\r\n\r\n",
        b"POST /predict\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        target.raw(["A: " + "b" * 100_000]),
        target.raw([f"A{n}: b" for n in range(10_000)]),
    ]
    return shout(target, rng.choice(junk))


@way("wrong lengths", {200, 400, 408, 415, 422, GONE}, 3)
def wrong_lengths(target: Target, rng: random.Random) -> Status:
    body = json.dumps({"x": [], "edge_index": [[], []]}).encode()
    lines = rng.choice(
        [
            [f"Content-Length: {len(body) - 5}"],
            ["Content-Length: -1"],
            ["Content-Length: x"],
            ["Content-Length: 5", "Content-Length: 6"],
            ["Transfer-Encoding: chunked"],
            ["Transfer-Encoding: nonsense"],
            ["Transfer-Encoding: chunked", f"Content-Length: {len(body)}"],
        ]
    )
    return shout(target, target.raw(lines), body, b"\r\n\r\n")


# ---------------------------------------------------------------------- JSON


@way("JSON: cut short or broken", {400, 422}, 4)
def broken_json(target: Target, rng: random.Random) -> Status:
    sound = bytearray(target.any_sample(rng).body)
    del sound[rng.randrange(len(sound)) :]
    return post(
        target, bytes(rng.choice([sound, sound + b"\xff", rng.randbytes(100), b"", b"[" * 60, b'{"\\ud800":1}']))
    )


@way("JSON: bombs", {400, 413, 422}, 4)
def json_bombs(target: Target, rng: random.Random) -> Status:
    size = target.most_bytes // 16
    bombs = [
        lambda: b"[" * size,
        lambda: b'{"x":' * (size // 5),
        lambda: b'{"x":[' + b"[]," * (size // 3) + b"[]]}",
        lambda: b'{"x":[[' + b"9" * size + b"]]}",
        lambda: b'{"x":[["' + b"a" * (size // 2) + b'"' + b",0" * (size // 4) + b']],"edge_index":[[],[]]}',
        lambda: b'{"x":[[' + b"0," * (size // 2) + b'0]],"edge_index":[[],[]]}',
        lambda: b'{"' + b"k" * size + b'":1}',
    ]
    return post(target, rng.choice(bombs)())


@way("JSON: no graph", {400, 413, 422}, 10)
def no_graph(target: Target, rng: random.Random) -> Status:
    wrong: list[dict[str, Any]] = [
        {"x": [[1.0]]},
        {"x": []},
        {"x": [[]]},
        {"x": "text"},
        {"x": None},
        {"x": [[float("nan")]]},
        {"x": [[1e308]]},
        {"x": [[10**400]]},
        {"x": [[1], [1, 2]]},
        {"x": [[True, "1", None]]},
        {"x": {"indices": [0], "indptr": [0, 1], "values": [1], "shape": [10**12, 10**12]}},
        {"x": {"indices": [-1], "indptr": [0, 1], "values": [1], "shape": [1, 1]}},
        {"edge_index": [[0, 3], [1, 1]]},
        {"edge_index": [[-1], [0]]},
        {"edge_index": [[0.5], [1]]},
        {"edge_index": [[2**70], [1]]},
        {"edge_index": [[0, 1]]},
        {"edge_index": [[[0]], [[1]]]},
        {"nodes": [3]},
        {"nodes": [0, 0]},
        {"nodes": []},
        {"nodes": ["0"]},
        {"nodes": [True]},
        {"degree": [0, 0, 0]},
        {"degree": [1e9, 1, 1]},
        {"reject": 2},
        {"reject": "0.5"},
        {"directed": "yes"},
        {"unknown": 1},
    ]
    return said(target, **rng.choice(wrong))


# ---------------------------------------------------------------------- .npz


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _zip(member: bytes, name: str = "x.npy", copies: int = 1) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(copies):
            archive.writestr(name if copies == 1 else f"{number}{name}", member)
    return file.getvalue()


_PICKLED = _npz(x=np.array([{"a": 1}], dtype=object), edge_index=np.zeros((2, 0), int))
_BOMB = _zip(b"\0" * 40_000_000)
_LYING = _BOMB.replace(struct.pack("<I", 40_000_000), struct.pack("<I", 20_000))
_SHAPE = (
    b"\x93NUMPY\1\0\x76\0" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 9), }".ljust(117) + b"\n"
)
_CROWD = _zip(b"", copies=5_000)


@way("npz: broken", {400, 413, 422}, 4)
def broken_npz(target: Target, rng: random.Random) -> Status:
    sound = bytearray(rng.choice(target.small(NPZ)).body)
    if rng.random() < 0.5:
        del sound[rng.randrange(len(sound)) :]
    else:  # somewhere in the list of members, so that it cannot be another sound file
        sound[-60:-40] = rng.randbytes(20)
    return post(target, bytes(rng.choice([sound, rng.randbytes(1000), b"PK\5\6" + b"\0" * 18])), NPZ)


@way("npz: pickles and bombs", {400, 413, 422}, 5)
def npz_bombs(target: Target, rng: random.Random) -> Status:
    bodies = [
        _PICKLED,
        pickle.dumps({"x": [1]}),
        _BOMB,
        _LYING,
        _CROWD,
        _zip(_SHAPE),
        _zip(b"\x93NUMPY\1\0\xff\xff" + b"(" * 65535),
    ]
    return post(target, rng.choice(bodies), NPZ)


@way("npz: no graph", {400, 413, 422}, 3)
def npz_no_graph(target: Target, rng: random.Random) -> Status:
    none = np.zeros((2, 0), int)
    bodies = [
        _npz(x=np.ones((2, 1)), edge_index=none),
        _npz(x=np.full((2, 9), np.nan), edge_index=none),
        _npz(x=np.array([["a"]]), edge_index=none),
        _npz(x=np.ones((2, 2, 2)), edge_index=none),
        _npz(x=np.ones((2, 2)), edge_index=np.ones((2, 3))),
        _npz(x=np.ones((2, 2)), edge_index=np.full((2, 3), 2**63, dtype=np.uint64)),
        _npz(x=np.ones((2, 2)), edge_index=none, other=none),
        _npz(edge_index=none),
    ]
    return post(target, rng.choice(bodies), NPZ)


# ---------------------------------------------------------------------- too large, too slow, gone


@way("too large: says so", {413, GONE}, 2)
def too_large(target: Target, rng: random.Random) -> Status:
    if rng.random() < 0.5:
        return shout(target, target.raw([f"Content-Length: {rng.choice([target.most_bytes + 1, 10**18])}"]))
    return post(target, b" " * (target.most_bytes + 1))


@way("too large: in pieces", {413, GONE})
def too_large_in_pieces(target: Target, rng: random.Random) -> Status:
    piece = b" " * (target.most_bytes // 16)
    return post(target, (piece for _ in range(20)))


@way("too slow", {400, 408, GONE}, 1)
def too_slow(target: Target, rng: random.Random) -> Status:
    head = target.raw(["Content-Length: 1000"])
    parts = rng.choice([[head[:50]], [head, b"{"], [head, *[b" "] * 8]])
    begin = time.perf_counter()
    status = shout(target, *parts, pause=target.patience / 10)
    if time.perf_counter() - begin > 20 * target.patience:
        raise WrongAnswerError("a slow sender was not cut off")
    return status


@way("gone: in the middle", {GONE}, 4)
def gone(target: Target, rng: random.Random) -> Status:
    sample = target.any_sample(rng)
    head = target.raw([f"Content-Length: {len(sample.body)}"], kind=sample.kind)
    whole = head + sample.body
    return shout(target, whole[: rng.randrange(len(whole))], listen=False, pause=rng.choice([0, 0.001]))


@way("gone: without reading", {GONE}, 3)
def gone_without_reading(target: Target, rng: random.Random) -> Status:
    sample = target.any_sample(rng)
    head = target.raw([f"Content-Length: {len(sample.body)}"], kind=sample.kind)
    return shout(target, head + sample.body, listen=False, pause=rng.choice([0, 0.001, 0.02]))
