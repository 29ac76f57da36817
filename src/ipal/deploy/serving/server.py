"""Listening on an address, and graceful shutdown."""

import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from ipal.deploy.serving.app import make_app
from ipal.deploy.serving.connections import connection_class
from ipal.deploy.serving.limits import Limits
from ipal.errors import ConfigError
from ipal.learners import Learner

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
KEEP_ALIVE = 5
"""Seconds until an idle connection is closed."""
SHORTEST_TOKEN = 16

log = logging.getLogger(__name__)


def is_local(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_access(host: str, token: str | None) -> None:
    """Require a token for an address that others can reach."""
    if token is None and not is_local(host):
        raise ConfigError(
            f"{host} can be reached from other machines: give a token with --token-file or IPAL_TOKEN, or serve on "
            "127.0.0.1."
        )
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise ConfigError(
            f"A token is at least {SHORTEST_TOKEN} plain characters long: 'openssl rand -hex 32' makes a good one."
        )


def listen(host: str, port: int) -> socket.socket:
    """A socket at an address; port 0 is any free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=1024)
    except socket.gaierror as error:
        raise ConfigError(
            f"There is no address '{host}': give --host an IP address or a name of this machine."
        ) from error
    except OSError as error:
        # asyncio also says where; here only why.
        why = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(
            f"Cannot listen on {host} port {port} ({why}): give another --port (0 is any free one) or --host."
        ) from error


class _Uvicorn(uvicorn.Server):
    """Calls back when it listens; does not raise the signal that ended it again."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tell()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def serve(
    learner: Learner,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits | None = None,
    threads: int = 1,
    directed: bool = False,
    started: Callable[[str], None] = print,
) -> None:
    """Serve until a signal, then finish the current requests. `started` gets the address; `directed` is a default."""
    limits = limits or Limits()
    check_access(host, token)
    with listen(host, port) as listener:
        # Without a token, pages of other sites in a browser on this machine must be kept out.
        hosts = None if token is not None else {*LOCAL_NAMES, _in_url(host)}
        app = make_app(learner, limits, token=token, hosts=hosts, threads=threads, directed=directed)
        answerer = app.state.server.answerer
        answerer.warm_up()
        address = f"http://{_in_url(host)}:{listener.getsockname()[1]}"
        try:
            http_server(app, lambda: started(address)).run([listener])
        finally:
            answerer.close()


def http_server(app: FastAPI, started: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """The HTTP server of an application of `make_app`; ends by `should_exit` or a signal."""
    server = app.state.server
    connection = connection_class(server.limits, server.metrics.malformed)
    if connection is None:
        log.warning(
            "uvicorn %s is not known to this version of ipal: slow clients are not cut off, and clients that close "
            "their side early get no answer. Install another version of uvicorn, or put a proxy in front.",
            uvicorn.__version__,
        )
    config = uvicorn.Config(
        app,
        http=connection or "auto",
        limit_concurrency=None if connection else server.limits.connections,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(3 * server.limits.seconds) + 1,
    )
    return _Uvicorn(config, started)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host.lower()
