"""Clients that close their side early, requests that can be read in two ways, and uvicorn without the known parts."""

import socket
import sys
import time
from typing import Any

import pytest

from ipal.deploy.serving import connections
from ipal.deploy.serving.limits import Limits
from tests.deploy.support import BODY, POST, Start, told, whole_request

LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


def exchange(address: tuple[str, int], sent: bytes, half_close: bool = False) -> bytes:
    """Everything that comes back until the server closes the connection."""
    with socket.create_connection(address) as connection:
        connection.sendall(sent)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        return told(connection)


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (POST + LENGTH + b"\r\n" + BODY, 1),
        (POST + CHUNKED + b"\r\n" + CHUNKS, 1),
        (HEALTH, 1),
        (HEALTH * 7 + POST + LENGTH + b"\r\n" + BODY, 8),
    ],
    ids=["length", "chunked", "no body", "pipelined"],
)
def test_a_client_that_half_closes_gets_its_answers_and_then_the_end(start: Start, sent: bytes, answers: int) -> None:
    # Within `seconds`: the connection is closed because all is answered, not because its time is over.
    assert exchange(start(seconds=60), sent, half_close=True).count(b"HTTP/1.1 200 ") == answers


@pytest.mark.parametrize("sent", [POST, POST + LENGTH + b"\r\n" + BODY[:-1], b""], ids=["header", "body", "nothing"])
def test_half_a_request_of_a_client_that_half_closes_is_dropped_at_once(start: Start, sent: bytes) -> None:
    assert exchange(start(seconds=60), sent, half_close=True) == b""


@pytest.mark.parametrize(
    "header",
    [
        LENGTH + CHUNKED,
        CHUNKED + LENGTH,
        CHUNKED + b"Content-Length: 0\r\n",
        b"X: y\r\n z: 1\r\n" + CHUNKED,
        b"Transfer-Encoding:\r\n\tchunked\r\n",
        CHUNKED + CHUNKED,
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        LENGTH + b"Content-Length: 7\r\n",
    ],
)
def test_a_request_that_can_be_read_in_two_ways_is_refused_and_what_follows_is_not_read(
    start: Start, header: bytes
) -> None:
    answer = exchange(start(seconds=60), POST + header + b"\r\n" + CHUNKS + HEALTH)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_chunks_in_a_request_of_http_1_0_are_refused(start: Start) -> None:
    sent = POST.replace(b"HTTP/1.1", b"HTTP/1.0") + CHUNKED + b"\r\n" + CHUNKS
    assert exchange(start(seconds=60), sent).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("size", [b"-5", b"0x5", b"5 5", b"f" * 30, b"", b"zz"])
def test_a_bad_size_of_a_chunk_is_refused(start: Start, size: bytes) -> None:
    answer = exchange(start(seconds=60), POST + CHUNKED + b"\r\n" + size + b"\r\n" + BODY)
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_the_second_of_two_requests_may_be_refused_for_a_folded_header(start: Start) -> None:
    answer = exchange(start(seconds=60), HEALTH + HEALTH.replace(b"a\r\n\r\n", b"a\r\n b\r\n\r\n"))
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400"]


def test_a_line_of_the_body_that_begins_with_a_space_is_no_folded_header(start: Start) -> None:
    body = BODY.replace(b", ", b",\n ")
    assert exchange(start(seconds=60), whole_request(body)).startswith(b"HTTP/1.1 200 ")


# ---------------------------------------------------------------------- clients that go on sending

CONFLICT = POST + LENGTH + b"Content-Length: 7\r\n\r\n"
MORE = b" " * 2**25  # more than the buffers of both sides hold: with a reset, sending it fails


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (CONFLICT, b"400"),
        (POST + LENGTH + CHUNKED + b"\r\n", b"400"),
        (POST + b"X: y\r\n z: 1\r\n\r\n", b"400"),
        (POST + CHUNKED + b"\r\nzz\r\n", b"400"),
        (POST + b"Connection: close\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(MORE), b"415"),
        (POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % 2**40, b"413"),
    ],
    ids=["two lengths", "length and chunks", "folded", "bad chunk", "wrong kind", "too large"],
)
def test_a_client_that_goes_on_sending_after_it_is_refused_gets_the_answer_and_no_reset(
    start: Start, head: bytes, status: bytes
) -> None:
    with socket.create_connection(start(seconds=60)) as connection:
        connection.sendall(head)
        connection.sendall(MORE)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [status]


def test_a_refused_client_that_sends_too_much_is_cut_off(start: Start) -> None:
    with socket.create_connection(start(seconds=60, bytes=2**20)) as connection:
        connection.sendall(CONFLICT)
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            connection.sendall(MORE)


def send_slowly(connection: socket.socket) -> None:
    for _ in range(100):
        connection.sendall(b" ")
        time.sleep(0.05)


@pytest.mark.parametrize(("seconds", "linger"), [(60, 0.3), (0.3, 60)], ids=["lingering", "the header's deadline"])
@pytest.mark.parametrize("head", [CONFLICT, POST + LENGTH + CHUNKED + b"\r\n"], ids=["connection", "application"])
def test_a_refused_client_that_neither_ends_nor_closes_is_cut_off(
    start: Start, monkeypatch: pytest.MonkeyPatch, head: bytes, seconds: float, linger: float
) -> None:
    monkeypatch.setattr(connections, "LINGER", linger)
    with socket.create_connection(start(seconds=seconds)) as connection:
        connection.sendall(head)
        assert told(connection).startswith(b"HTTP/1.1 400 ")
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            send_slowly(connection)


def test_a_body_that_turns_out_to_be_bad_is_not_waited_for(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    # Its application was waiting for more of it, and would have answered a second time after `seconds`.
    with socket.create_connection(start(seconds=1)) as connection:
        connection.sendall(POST + CHUNKED + b"\r\n5\r\n[[[[[\r\n")
        time.sleep(0.2)
        connection.sendall(b"zz\r\n")
        assert told(connection).count(b"HTTP/1.1 ") == 1
        time.sleep(1)
    assert caplog.text == ""


# ---------------------------------------------------------------------- another uvicorn


def without_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn.protocols.http.h11_impl", None)


def without_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "METHODS", (*connections.METHODS, "a_method_that_is_gone"))


def without_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "OF_REQUEST", (*connections.OF_REQUEST, "an_attribute_that_is_gone"))


@pytest.mark.parametrize("missing", [without_module, without_method, without_attribute])
def test_another_uvicorn_is_noticed(monkeypatch: pytest.MonkeyPatch, missing: Any) -> None:
    assert connections.known_protocol() is not None
    missing(monkeypatch)
    assert connections.connection_class(Limits(), lambda: None) is None


def test_with_another_uvicorn_the_server_works_and_says_what_is_lost(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_method(monkeypatch)
    address = start()
    assert "slow clients are not cut off" in caplog.text
    assert exchange(address, whole_request()).startswith(b"HTTP/1.1 200 ")
    conflict = exchange(address, POST + LENGTH + CHUNKED + b"\r\n" + CHUNKS + HEALTH)
    assert conflict.startswith(b"HTTP/1.1 400 ")
    assert conflict.count(b"HTTP/1.1 ") == 1
