"""Connections that dawdle are cut off: whoever sends or reads by drops would keep a place forever."""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ipal.serving.limits import Limits

NOT_HTTP = "This is no HTTP request that can be read."


def connection_class(limits: Limits, count_malformed: Callable[[], None]) -> type[H11Protocol]:
    """What uvicorn makes of every connection.

    A header has to arrive within `limits.seconds`. A body, its answer and the reading of the answer take three times as
    long at most: the application itself refuses a late body or answer, if the client still listens.
    """

    class Connection(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None
        _timed: object = None
        """The request that the deadline is for."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # Header and body of an answer are two writes. Without this the second waits 40 ms for the first to be
            # acknowledged; asyncio sees to it only where a socket says that it is one of TCP.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._set_deadline(limits.seconds)
            if len(self.connections) > limits.connections:
                transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            if self.cycle is not self._timed:
                self._timed = self.cycle
                self._set_deadline(3 * limits.seconds)

        def on_response_complete(self) -> None:
            # First: with it, the next request may begin.
            self._set_deadline(limits.seconds)
            super().on_response_complete()

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
                    self.transport.write(self.conn.send(event) or b"")
                self.transport.close()
            except h11.LocalProtocolError:  # an answer is on its way already
                self.transport.abort()

        def _set_deadline(self, seconds: float) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = self.loop.call_later(seconds, self._cut_off)

        def _cut_off(self, *_: Any) -> None:
            self.transport.abort()

    return Connection
