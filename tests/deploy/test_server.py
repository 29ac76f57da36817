"""The server on a real socket: slow and ambiguous requests, many connections, stopping, what cannot be served."""

import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ipal.data.datasets import Dataset
from ipal.deploy.predict import predict
from ipal.deploy.serving.bodies import NPZ, npz_body
from ipal.deploy.serving.server import check_connections
from ipal.estimator.model import Model
from tests.deploy.support import BODY, POST, Start, told
from tests.support import Command, complaint


def test_who_sends_a_body_by_drops_is_told_so(start: Start) -> None:
    with socket.create_connection(start(seconds=0.2)) as connection:
        connection.sendall(POST + b"Content-Length: 1000\r\n\r\n{")
        for _ in range(3):
            time.sleep(0.04)
            connection.sendall(b" ")
        answer = told(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive within 0.2 seconds" in answer


def test_who_does_not_read_the_answers_is_cut_off(start: Start) -> None:
    """More answers than the buffers in between hold: the server cannot go on, and does not wait forever."""
    asked, address = 3000, start(seconds=0.5)

    def answered() -> int:
        counter = http.client.HTTPConnection(*address)
        counter.request("GET", "/metrics")
        lines = counter.getresponse().read().decode().splitlines()
        counter.close()
        return sum(int(float(line.split()[-1])) for line in lines if "requests_total{" in line and '"/docs"' in line)

    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address)
        connection.sendall(b"GET /docs HTTP/1.1\r\nHost: a\r\n\r\n" * asked)
        before, now = -1, 0
        while now > before:  # until no more is answered: then the connection's time is over
            time.sleep(1.0)
            before, now = now, answered()
        read = told(connection)
    assert 0 < read.count(b"HTTP/1.1 200 ") < asked


def exchange(address: tuple[str, int], sent: bytes) -> bytes:
    """Everything that comes back until the server closes the connection."""
    with socket.create_connection(address) as connection:
        connection.sendall(sent)
        return told(connection)


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 90,
        b"GET /health HTTP/1.1\r\n\r\n",
        POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        POST + b"Transfer-Encoding: nonsense\r\n\r\n",
        POST + b"A: " + b"b" * 100_000,
    ],
    ids=["words", "TLS", "no host", "two lengths", "encoding", "large header"],
)
def test_what_is_no_http_is_refused(start: Start, sent: bytes) -> None:
    assert exchange(start(), sent).startswith(b"HTTP/1.1 400 ")


LENGTH, CHUNKED = b"Content-Length: %d\r\n" % len(BODY), b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    "header",
    [
        LENGTH + CHUNKED,
        CHUNKED + b"Content-Length: 0\r\n",
        CHUNKED + CHUNKED,
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
    ],
)
def test_a_request_that_can_be_read_in_two_ways_is_refused_and_what_follows_is_not_read(
    start: Start, header: bytes
) -> None:
    answer = exchange(start(seconds=60), POST + header + b"\r\n" + CHUNKS + HEALTH)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_beyond_the_connections_that_are_allowed_all_are_told_to_come_back(start: Start) -> None:
    address = start(connections=3)
    with socket.create_connection(address), socket.create_connection(address), socket.create_connection(address):
        assert exchange(address, HEALTH).startswith(b"HTTP/1.1 503 ")
    time.sleep(0.2)
    assert exchange(address, HEALTH.replace(b"a\r\n", b"a\r\nConnection: close\r\n")).startswith(b"HTTP/1.1 200 ")


def test_a_thousand_idle_connections_do_not_keep_health_from_answering(start: Start) -> None:
    check_connections(2 * 1000)  # both ends are in this process
    address = start()
    with ExitStack() as idle:
        for _ in range(1000):
            idle.enter_context(socket.create_connection(address)).sendall(b"GET /health HT")
        begin = time.perf_counter()
        with socket.create_connection(address) as asking:
            asking.sendall(HEALTH)
            assert asking.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert time.perf_counter() - begin < 1


def test_connections_that_the_system_allows_are_allowed_and_more_are_said(
    command: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] - 1, before[1]))
        check_connections(before[1] - 128)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    monkeypatch.setattr("resource.getrlimit", lambda _: (200, 300))
    said = complaint(command("serve", model, "--max-connections", 400), "--max-connections 400", "ulimit -n")
    assert "give at most 172" in said


# ---------------------------------------------------------------------- the command


def test_the_command_serves_and_stops_gracefully(model: Path, known: Model, tiny: Dataset, tmp_path: Path) -> None:
    token = "0123456789abcdef-token"
    (tmp_path / "token").write_text(token + "\n")
    command = [sys.executable, "-m", "ipal", "serve", str(model), "--port", "0", "--token-file", "token"]
    environment = {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    options: dict[str, Any] = {"cwd": tmp_path, "env": environment, "text": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("Listening on http://127.0.0.1:"), server.communicate()
        port = int(line.strip().rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/memory")
        answer = connection.getresponse()
        assert (answer.status, "error" in json.loads(answer.read())) == (401, True)
        # In the middle of a request when it is told to stop.
        body, headers = npz_body(tiny.graph), {"Content-Type": NPZ, "Authorization": f"Bearer {token}"}
        connection.putrequest("POST", "/predict")
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            connection.putheader(name, value)
        connection.endheaders(body[:1000])
        time.sleep(0.3)
        server.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        connection.send(body[1000:])
        answer = connection.getresponse()
        assert json.loads(answer.read())["predicted"] == predict(known, tiny.graph).labels
        connection.close()
        out, err = server.communicate(timeout=20)
    assert server.returncode == 0
    assert out == ""
    assert "Stopped" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], ["0.0.0.0", "--token-file", "127.0.0.1"]),
        (["--host", "::"], ["--token-file"]),
        (["--host", "192.168.1.7"], ["--token-file"]),
        (["--token-file", "missing"], ["missing", "cannot be read"]),
        (["--token-file", "empty"], ["at least 16", "openssl"]),
        (["--token-file", "short"], ["at least 16"]),
        (["--host", "no.such.name.invalid", "--token-file", "good"], ["no.such.name.invalid", "--host"]),
        (["--max-bytes", "many"], ["--max-bytes", "many"]),
    ],
)
def test_what_cannot_be_served_is_said_at_once(
    command: Command, model: Path, tmp_path: Path, options: list[str], words: list[str]
) -> None:
    for name, content in {"empty": "\n", "short": "abc", "good": "0123456789abcdef"}.items():
        (tmp_path / name).write_text(content)
    complaint(command("serve", model, *options), *words)


def test_a_token_may_come_from_the_environment(command: Command, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPAL_TOKEN", "short")
    complaint(command("serve", model), "at least 16")


def test_a_port_that_is_taken_is_said(command: Command, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        complaint(command("serve", model, "--port", port), str(port), "in use", "--port")


def test_without_the_libraries_it_is_said_what_to_install(
    command: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib.util import find_spec

    monkeypatch.setattr("ipal.system.optional.find_spec", lambda name: None if name == "fastapi" else find_spec(name))
    complaint(command("serve", model), "fastapi", "pip install 'ipal[serve]'")
