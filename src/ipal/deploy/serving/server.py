"""Listening on an address, and the processes that answer: uvicorn's own."""

import ipaddress
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from ipal.deploy.serving.app import make_app
from ipal.deploy.serving.bodies import Limits
from ipal.errors import ConfigError
from ipal.system.cores import cores

BACKLOG = 1024
SHORTEST_TOKEN = 16
OTHER_FILES = 128
"""That a server has open besides connections, at most."""


def check_access(host: str, token: str | None) -> None:
    """Require a token for an address that others can reach."""
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if token is None and not is_local:
        raise ConfigError(f"{host} can be reached by others: give a token with --token-file, or serve on 127.0.0.1.")
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise ConfigError(
            f"A token is at least {SHORTEST_TOKEN} plain characters long: 'openssl rand -hex 32' makes a good one."
        )


def check_connections(number: int) -> None:
    """Let this process have so many open, or say that it cannot."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = number + OTHER_FILES
    if most != resource.RLIM_INFINITY and needed > most:
        raise ConfigError(
            f"This system lets a process have {most} files open, too few for --max-connections {number}: give at most "
            f"{most - OTHER_FILES}, or raise the limit with 'ulimit -n'."
        )
    if now != resource.RLIM_INFINITY and now < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))


def listen(host: str, port: int, seconds: float = 30.0) -> socket.socket:
    """A socket at an address; port 0 is any free one. A client may take so long to read."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ConfigError(f"Cannot listen on {host} port {port} ({why}): give another --port or --host.") from error
    # Connections inherit both. Without the first, the body of an answer waits 40 ms for its header's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: the system cuts off a client that does not read its answers
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))
    return listener


def http_config(app: Any, limits: Limits, workers: int = 1) -> uvicorn.Config:
    """How uvicorn serves an application, or what makes one in each of several processes."""
    return uvicorn.Config(
        app,
        factory=workers > 1,
        workers=workers,
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
        h11_max_incomplete_event_size=2**16,
        timeout_worker_healthcheck=60,  # seconds that a process has to load what it needs
        timeout_graceful_shutdown=int(3 * limits.seconds) + 1,
    )


def serve(
    model: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits,
    threads: int | None = None,
    workers: int = 1,
    started: Callable[[str, dict[str, Any]], None] = print,
) -> None:
    """Serve the model in a file until a signal, then finish the current requests.

    `started` gets the address and what is served; workers are processes that share the threads, by default one per
    core. Each follows the model's file.
    """
    check_access(host, token)
    check_connections(limits.connections)
    in_url = f"[{host}]" if ":" in host else host.lower()
    # Without a token, pages of other sites in a browser on this machine must be kept out.
    hosts = None if token is not None else {"localhost", "127.0.0.1", "[::1]", in_url}
    each = max(1, (threads or cores()) // workers)
    factory = partial(make_app, model, limits, token=token, hosts=hosts, threads=each)
    with listen(host, port, limits.seconds) as listener:
        app = factory()  # here in any case: a model that cannot be loaded is said at once
        served = app.state.server.served
        try:
            if workers > 1:
                run = Multiprocess(http_config(factory, limits, workers), [listener]).run
            else:
                server = uvicorn.Server(http_config(app, limits))
                run = partial(server.run, [listener])
                if threading.current_thread() is threading.main_thread():
                    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises the one that ended it again
                        signal.signal(number, server.handle_exit)
            started(f"http://{in_url}:{listener.getsockname()[1]}", served.loaded.facts)
            run()
        finally:
            served.close()
