"""Closes slow connections, and idle ones where there are too many (slow-loris protection), answers half-closed
clients, refuses ambiguous headers, and reads what a client still sends after its answer.

uvicorn has no public interface for this, so its connection class is extended. If that class has changed,
`connection_class` returns None, and the server works without it (see `http_server`).
"""

import asyncio
import json
import re
import socket
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import h11

from ipal.deploy.serving.limits import Limits

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

NOT_HTTP = "This is no HTTP request that can be read."
FOLDED = re.compile(rb"\n[ \t][^\n]*")
"""A folded header: server and proxy may read it differently."""
END_OF_HEADER = re.compile(rb"\n\r?\n")
LINGER = 5.0
"""Seconds that a client may keep sending after the last answer."""
METHODS = (
    "connection_made",
    "connection_lost",
    "data_received",
    "eof_received",
    "handle_events",
    "on_response_complete",
)
"""Methods of uvicorn's class that are extended or called here."""
OF_CONNECTION = ("conn", "cycle", "transport")
OF_REQUEST = ("more_body", "response_complete", "disconnected", "message_event")
"""Attributes that its classes set: read or set here."""


class Lingering:
    """A transport with another `close`, for uvicorn to call."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None], is_closing: Callable[[], bool]) -> None:
        self._transport, self.close, self.is_closing = transport, close, is_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def known_protocol() -> "type[H11Protocol] | None":
    """uvicorn's class for connections, if it is the one that the class below extends."""
    try:
        from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
    except ImportError:
        return None
    sets = {*H11Protocol.__init__.__code__.co_names, *RequestResponseCycle.__init__.__code__.co_names}
    methods = all(hasattr(H11Protocol, name) for name in (*METHODS, "send_400_response"))
    return H11Protocol if methods and sets.issuperset(OF_CONNECTION + OF_REQUEST) else None


def connection_class(limits: Limits, count_malformed: Callable[[], None]) -> "type[H11Protocol] | None":
    """The connection class for uvicorn; None if it cannot be extended.

    A header has to arrive within `limits.seconds`. A body, its answer and the reading of the answer take three times as
    long at most: the application itself refuses a late body or answer, if the client still listens.

    Where the last answer is given before all of a request has arrived, the rest is read and thrown away (up to
    `limits.all_bytes`, for `LINGER` seconds and never beyond the time limits above): closed with bytes unread, the
    connection would be reset, and a client that is still sending would see that instead of the answer.

    Beyond `limits.connections`, the one that has waited longest without a request in progress makes room.
    """
    base = known_protocol()
    if base is None:
        return None
    idle_last: OrderedDict[Any, None] = OrderedDict()  # all that are open

    class Connection(base):  # type: ignore[misc, valid-type]
        _deadline: asyncio.TimerHandle | None = None
        _timed: object = None
        """The request that the deadline is for."""
        _has_ended: object = None
        """The client has closed its sending side."""
        _thrown_away: int | None = None
        """Bytes that came after the last answer; None before it."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(Lingering(transport, self._close, self._is_closing))
            self._transport = transport
            idle_last[self] = None
            # Header and body of an answer are two writes. Without this the second waits 40 ms for the first to be
            # acknowledged; asyncio sees to it only where a socket says that it is one of TCP.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._set_deadline(limits.seconds)
            if len(idle_last) > limits.connections:
                crowded_out = next((one for one in idle_last if one._is_idle()), self)
                del idle_last[crowded_out]
                crowded_out._transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            idle_last.pop(self, None)
            if self._deadline is not None:
                self._deadline.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._thrown_away is None:
                super().data_received(data)
                return
            self._thrown_away += len(data)
            if self._thrown_away > limits.all_bytes:
                self._transport.abort()

        def eof_received(self) -> bool:
            """Whether the connection stays open for an answer."""
            self._has_ended = self._transport
            return self._is_answering()

        def handle_events(self) -> None:
            if self._is_closing():  # refused: the rest is ignored
                return
            if self.conn.their_state is h11.IDLE:
                header = END_OF_HEADER.split(self.conn.trailing_data[0].lstrip(b"\r\n"), maxsplit=1)[0]
                if FOLDED.search(header):
                    self.send_400_response(NOT_HTTP)
                    return
            super().handle_events()
            if self.cycle is not self._timed:
                self._timed = self.cycle
                self._set_deadline(3 * limits.seconds)

        def on_response_complete(self) -> None:
            # First: with it, the next request may begin.
            self._set_deadline(limits.seconds)
            if self in idle_last:
                idle_last.move_to_end(self)
            super().on_response_complete()
            if self._has_ended and not self._is_answering():
                self._transport.close()

        def send_400_response(self, msg: str) -> None:
            count_malformed()
            body = json.dumps({"error": NOT_HTTP}).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            try:
                for event in (h11.Response(status_code=400, headers=headers), h11.Data(body), h11.EndOfMessage()):
                    self._transport.write(self.conn.send(event) or b"")
                self._close()
            except h11.LocalProtocolError:  # an answer is on its way already
                self._transport.abort()

        def _is_closing(self) -> bool:
            return self._thrown_away is not None or self._transport.is_closing()

        def _close(self) -> None:
            """Close at once if the client sends no more, else when it closes its side."""
            if self._is_closing():
                return
            if self._has_ended or self.conn.their_state is h11.MUST_CLOSE:
                self._transport.close()
                return
            if self._deadline is not None:
                self._set_deadline(min(LINGER, self._deadline.when() - asyncio.get_running_loop().time()))
            self._thrown_away = 0
            if self.cycle is not None and not self.cycle.response_complete:  # it is answered: its body is not needed
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            self._transport.resume_reading()
            try:
                self._transport.write_eof()
            except OSError:  # the client has gone
                self._transport.abort()

        def _is_idle(self) -> bool:
            """Whether no request is in progress, nor its answer on the way."""
            answered = self.cycle is None or self.cycle.response_complete
            return answered and not self._transport.get_write_buffer_size()

        def _is_answering(self) -> bool:
            """Whether a request has arrived as a whole and is not answered yet."""
            return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

        def _set_deadline(self, seconds: float) -> None:
            if self._thrown_away is not None:  # the last one is set
                return
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    return Connection
