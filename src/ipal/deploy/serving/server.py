"""Listening on an address, following the model's file, and graceful shutdown."""

import asyncio
import ipaddress
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from ipal.deploy.serving.answers import Facts
from ipal.deploy.serving.app import make_app
from ipal.deploy.serving.connections import connection_class
from ipal.deploy.serving.limits import Limits, Refusal
from ipal.errors import ConfigError
from ipal.system.cores import cores

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
KEEP_ALIVE = 5
"""Seconds until an idle connection is closed."""
SHORTEST_TOKEN = 16
POLL = 1.0
"""Seconds between two looks at a watched file, and before a reload that failed is tried again; then twice as many."""
LONGEST_PAUSE = 60.0
OTHER_FILES = 128
"""That a server has open besides connections, at most."""

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


def check_connections(number: int) -> None:
    """Let this process have so many open, or say that it cannot."""
    needed, (now, most) = number + OTHER_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        if now < needed:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"This system lets a process have {most} files and connections open, and --max-connections {number} needs "
            f"{needed}: give at most {most - OTHER_FILES}, or raise the limit with 'ulimit -n'."
        ) from error


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
    model: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits | None = None,
    threads: int | None = None,
    directed: bool | None = None,
    workers: int = 1,
    watch: bool = False,
    started: Callable[[str, Facts], None] = print,
    replaced: Callable[[str], None] = print,
) -> None:
    """Serve the model in a file until a signal, then finish the current requests.

    `started` gets the address and what is served; `directed` is a default; workers share the threads, by default
    one per core. SIGHUP takes what the file holds by then, and so does a change of the file where it is watched, again
    and again until that succeeds: `replaced` gets the version.
    """
    limits = limits or Limits()
    check_access(host, token)
    check_connections(limits.connections)
    with listen(host, port) as listener:
        # Without a token, pages of other sites in a browser on this machine must be kept out.
        hosts = None if token is not None else {*LOCAL_NAMES, _in_url(host)}
        each = max(1, (threads or cores()) // workers)
        app = make_app(model, limits, token=token, hosts=hosts, threads=each, directed=directed, workers=workers)
        server = app.state.server
        address = f"http://{_in_url(host)}:{listener.getsockname()[1]}"

        async def follow(asked: asyncio.Event) -> None:
            """Reload when told to, or when the watched file has changed and stays as it is, until that succeeds."""
            time, answerer = asyncio.get_running_loop().time, server.answerer
            looks, seen, due, pause = watch, answerer.on_disk(), 0.0, POLL
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(asked.wait(), POLL if looks else None)
                before, seen = seen, answerer.on_disk()
                if seen != before:
                    due, pause = 0.0, POLL
                if asked.is_set() or (seen == before and time() >= due and not answerer.is_current):
                    asked.clear()
                    try:
                        replaced((await server.reload())["version"])
                        looks = watch
                    except Refusal:  # which is logged
                        log.warning("It is tried again in %g seconds.", pause)
                        looks, due, pause = True, time() + pause, min(2 * pause, LONGEST_PAUSE)

        def ready() -> None:
            loop, asked = asyncio.get_running_loop(), asyncio.Event()
            server.following = loop.create_task(follow(asked))
            if threading.current_thread() is threading.main_thread():
                loop.add_signal_handler(signal.SIGHUP, asked.set)
            started(address, server.answerer.facts)

        try:
            http_server(app, ready).run([listener])
        finally:
            server.answerer.close()


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
