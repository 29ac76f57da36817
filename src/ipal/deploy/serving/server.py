"""Listening on an address, following the model's file, and graceful shutdown."""

import asyncio
import ipaddress
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path

import uvicorn
from fastapi import FastAPI, HTTPException

from ipal.deploy.serving.answers import Facts
from ipal.deploy.serving.app import Server, make_app
from ipal.deploy.serving.limits import Limits
from ipal.errors import ConfigError
from ipal.system.cores import cores

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
KEEP_ALIVE = 5
"""Seconds until an idle connection is closed after an answer."""
LARGEST_HEADER = 2**16
BACKLOG = 1024
SHORTEST_TOKEN = 16
POLL = 1.0
"""Seconds between two looks at a watched file, and before a reload that failed is tried again; then twice as many."""
LONGEST_PAUSE = 60.0
OTHER_FILES = 128
"""That a server has open besides connections, at most."""

log = logging.getLogger(__name__)


def check_access(host: str, token: str | None) -> None:
    """Require a token for an address that others can reach."""
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if token is None and not is_local:
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
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most not in (resource.RLIM_INFINITY, max(most, number + OTHER_FILES)):
        raise ConfigError(
            f"This system lets a process have {most} files open, too few for --max-connections {number}: give at most "
            f"{most - OTHER_FILES}, or raise the limit with 'ulimit -n'."
        )
    if now != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, number + OTHER_FILES), most))


def listen(host: str, port: int, seconds: float = 30.0) -> socket.socket:
    """A socket at an address; port 0 is any free one. A client may take so long to read."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address, family=family, backlog=BACKLOG)
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
    # Connections inherit both. Without the first, the body of an answer waits 40 ms for its header's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: the system cuts off a client that does not read its answers
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))
    return listener


def http_server(app: FastAPI) -> uvicorn.Server:
    """The HTTP server of an application of `make_app`; ends by `should_exit` or a signal."""
    limits = app.state.server.limits
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            loop="asyncio",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            limit_concurrency=limits.connections,
            h11_max_incomplete_event_size=LARGEST_HEADER,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=int(3 * limits.seconds) + 1,
        )
    )


async def follow(server: Server, asked: asyncio.Event, watch: bool, replaced: Callable[[str], None]) -> None:
    """Reload when told to, or when the watched file has changed; again and again until that succeeds."""
    time, answerer = asyncio.get_running_loop().time, server.answerer
    failed, seen, due, pause = False, answerer.on_disk(), 0.0, POLL
    while True:
        with suppress(TimeoutError):
            await asyncio.wait_for(asked.wait(), POLL if watch or failed else None)
        before, seen = seen, answerer.on_disk()
        if seen != before:
            due, pause = 0.0, POLL
        if asked.is_set() or (seen == before and time() >= due and not answerer.is_current):
            asked.clear()
            try:
                replaced((await server.reload())["version"])
                failed = False
            except HTTPException:  # which is logged
                log.warning("It is tried again in %g seconds.", pause)
                failed, due, pause = True, time() + pause, min(2 * pause, LONGEST_PAUSE)


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
    in_url = f"[{host}]" if ":" in host else host.lower()
    in_main_thread = threading.current_thread() is threading.main_thread()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        asked, server = asyncio.Event(), app.state.server
        following = asyncio.create_task(follow(server, asked, watch, replaced))
        if in_main_thread:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, asked.set)
        started(f"http://{in_url}:{listener.getsockname()[1]}", server.facts)
        yield
        following.cancel()

    with listen(host, port, limits.seconds) as listener:
        app = make_app(
            model,
            limits,
            token=token,
            # Without a token, pages of other sites in a browser on this machine must be kept out.
            hosts=None if token is not None else {*LOCAL_NAMES, in_url},
            threads=max(1, (threads or cores()) // workers),
            directed=directed,
            workers=workers,
            lifespan=lifespan,
        )
        try:
            with _ignored_signals() if in_main_thread else nullcontext():
                http_server(app).run([listener])
        finally:
            app.state.server.answerer.close()


@contextmanager
def _ignored_signals() -> Iterator[None]:
    """uvicorn handles them itself, and raises the one that ended it again."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
