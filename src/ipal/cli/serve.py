"""`ipal serve`: predictions over HTTP."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ipal.cli import render
from ipal.cli.app import RUNS, ModelName, Runs
from ipal.errors import ConfigError
from ipal.runs.run_folder import RunStore
from ipal.system.files import read_bounded

TOKEN = "IPAL_TOKEN"


def serve(
    name: ModelName,
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"File with the token that all requests but /health and /docs need; or set {TOKEN}."),
    ] = None,
    max_bytes: Annotated[str, typer.Option(help="Most bytes of a request body, also after decompression.")] = "64MB",
    max_nodes: Annotated[int, typer.Option(min=1, max=2**31, help="Most nodes of a request.")] = 20_000,
    max_edges: Annotated[int, typer.Option(min=0, max=2**40, help="Most edges of a request.")] = 1_000_000,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Seconds for receiving a body, and again for answering it.")
    ] = 30.0,
    queue: Annotated[int, typer.Option(min=0, max=10**6, help="Most requests in the queue.")] = 16,
    max_connections: Annotated[int, typer.Option(min=1, max=10**6, help="Most open connections.")] = 2048,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="CPU threads; workers share them.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=1024, help="Processes that answer, each with the model.")] = 1,
    runs: Runs = RUNS,
) -> None:
    """Serve predictions over HTTP until stopped. A request holds a graph as JSON or .npz; none is stored.

    POST /predict, /explain, GET /memory, /health, /metrics; /docs describes them. A new model in the file is taken
    within a second, or at POST /reload where there is a token, without losing a request. Needs the extra 'serve'.
    """
    path = RunStore(runs).model_file(name)
    token = _token(token_file)

    from ipal.system.optional import need_extra

    need_extra("serve", "fastapi", "uvicorn", "prometheus_client")
    from ipal.deploy.serving.bodies import Limits
    from ipal.deploy.serving.server import serve as serve_until_stopped
    from ipal.runs.memory_plan import parse_bytes

    limits = Limits(
        bytes=parse_bytes(max_bytes, "--max-bytes"),
        nodes=max_nodes,
        edges=max_edges,
        seconds=timeout,
        waiting=queue,
        connections=max_connections,
    )

    def started(address: str, facts: dict[str, Any]) -> None:
        render.say(f"Listening on {address}")
        what = f"{facts['method']} with {len(facts['classes'])} classes, version {facts['version']}"
        render.note(f"{what}; {address}/docs says what it takes. Ctrl-C stops.")

    serve_until_stopped(
        path,
        host=host,
        port=port,
        token=token,
        limits=limits,
        threads=threads,
        workers=workers,
        started=started,
    )
    render.note("Stopped; the requests being processed were answered.")


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN) or None
    try:
        return read_bounded(file, 4096).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The token file {file} cannot be read: give a file with one line of plain characters."
        ) from error
