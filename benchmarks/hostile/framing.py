"""Where a request ends: lengths that conflict, chunks, folded headers, clients that close their side early."""

import json
import random
import socket

from hostile.asking import GONE, Status, Target, WrongAnswerError, shout, way
from ipal.deploy.serving.bodies import JSON

BODY = json.dumps({"x": [], "edge_index": [[], []]}).encode()
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


def answers(target: Target, *parts: bytes, half_close: bool = False) -> list[int]:
    """The statuses of all answers until the server closes the connection."""
    found = b""
    with socket.create_connection((target.host, target.port), timeout=60) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(65536):
                found += more
        except (BrokenPipeError, ConnectionResetError):
            pass
    return [int(part[:3]) for part in found.split(b"HTTP/1.1 ")[1:]]


@way("wrong lengths", {200, 400, 408, 415, 422, GONE}, 3)
def wrong_lengths(target: Target, rng: random.Random) -> Status:
    lines = rng.choice(
        [
            [f"Content-Length: {len(BODY) - 5}"],
            ["Content-Length: -1"],
            ["Content-Length: x"],
            ["Transfer-Encoding: chunked"],
            ["Transfer-Encoding: nonsense"],
        ]
    )
    return shout(target, target.raw(lines), BODY, b"\r\n\r\n")


@way("conflicting lengths", {400, GONE}, 3)
def conflicting_lengths(target: Target, rng: random.Random) -> Status:
    """Refused, and what could pass for a second request is not answered. Who is still sending may see a reset."""
    length, chunked = f"Content-Length: {len(BODY)}", "Transfer-Encoding: chunked"
    lines = rng.choice(
        [
            [length, chunked],
            [chunked, length],
            [chunked, "Content-Length: 0"],
            [length, "Content-Length: 6"],
            [f"Content-Length: {len(BODY)}, 6"],
            [chunked, chunked],
            ["Transfer-Encoding: gzip, chunked"],
            ["Transfer-Encoding : chunked"],
            ["Transfer-Encoding: \x0bchunked"],
        ]
    )
    return _only(answers(target, target.raw(lines), CHUNKS, target.raw(method="GET", path="/health")))


@way("folded headers", {400, 422})
def folded_headers(target: Target, rng: random.Random) -> Status:
    """Joined to one line, which a proxy in front may have read differently."""
    lines = rng.choice(
        [["Transfer-Encoding:", "\tchunked"], ["X: y", " Content-Length: 5", "Transfer-Encoding: chunked"]]
    )
    return shout(target, target.raw(lines), CHUNKS)


@way("bad chunks", {400, GONE}, 2)
def bad_chunks(target: Target, rng: random.Random) -> Status:
    size = rng.choice([b"-5", b"0x5", b"5 5", b"f" * 30, b"", b"zz", b"+5", b"5_0"])
    return _only(answers(target, target.raw(["Transfer-Encoding: chunked"]), size + b"\r\n" + BODY + b"\r\n0\r\n\r\n"))


@way("half-closed: whole requests", {200, GONE}, 4)
def half_closed(target: Target, rng: random.Random) -> Status:
    """At most as many answers as requests, and then the end: uvicorn takes it that the client has gone."""
    sample = rng.choice(target.small(JSON))
    last = target.raw([f"Content-Length: {len(sample.body)}"]) + sample.body
    before = rng.choice([0, 0, 1, 5])
    found = answers(target, target.raw(method="GET", path="/health") * before, last, half_close=True)
    if len(found) > before + 1:
        raise WrongAnswerError(f"{len(found)} answers to {before + 1} requests of a half-closed client")
    return found[-1] if found else GONE


@way("half-closed: in the middle", {GONE}, 2)
def half_closed_early(target: Target, rng: random.Random) -> Status:
    sample = rng.choice(target.small(JSON))
    whole = target.raw([f"Content-Length: {len(sample.body)}"]) + sample.body
    return _only(answers(target, whole[: rng.randrange(len(whole) - 1)], half_close=True))


def _only(found: list[int]) -> Status:
    if len(found) > 1:
        raise WrongAnswerError(f"{len(found)} answers to one request: {found}")
    return found[0] if found else GONE
