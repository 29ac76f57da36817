"""Sound requests, and those that are wrong in who asks, where and how; too large, too slow, or gone."""

import json
import random
import time

import numpy as np

from hostile.asking import GONE, Status, Target, WrongAnswerError, ask, post, shout, way

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
        target,
        body,
        {**target.headers(), "Authorization": f"Bearer {token}".encode("latin-1")},
        "POST",
        rng.choice(["/predict", "/reload"]),
    )[0]
    return status


@way("wrong path or method", {404, 405}, 3)
def wrong_path(target: Target, rng: random.Random) -> Status:
    method = rng.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
    path = rng.choice(
        [
            "/nothing",
            "/predict/",
            "/../../etc/passwd",
            "/%00",
            "/predict" if method != "POST" else "/x",
            "/" + "a" * 999,
        ]
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
    """Of the body. Whoever does not end a header is cut off by a proxy only."""
    head = target.raw(["Content-Length: 1000"])
    parts = rng.choice([[head, b"{"], [head, *[b" "] * 8]])
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
