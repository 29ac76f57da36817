"""Routes and access. Every error is one sentence: {"error": …}."""

import asyncio
import hmac
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ipal._version import __version__
from ipal.deploy.serving import schema
from ipal.deploy.serving.answerer import Answerer
from ipal.deploy.serving.answers import Answer, Reply, Settings
from ipal.deploy.serving.bodies import JSON, NPZ
from ipal.deploy.serving.explanations import Explainer
from ipal.deploy.serving.limits import Limits, MalformedError, OverloadError, Refusal, TooLargeError, UnexpectedError
from ipal.deploy.serving.metrics import CONTENT_TYPE_LATEST, GONE, Metrics
from ipal.deploy.serving.page import front_page, page
from ipal.errors import DataError, IpalError, StoreError

PATHS = frozenset({"/", "/predict", "/explain", "/memory", "/health", "/metrics", "/reload", "/docs", "/openapi.json"})
OPEN_TO_ALL = "/health"
KINDS = {JSON: JSON, NPZ: NPZ, "application/octet-stream": NPZ, "application/zip": NPZ}
VERSION = "x-model-version"
"""The header of every answer that names the model."""
ALWAYS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
NO_NETWORK = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}

log = logging.getLogger(__name__)


def refused(error: Exception) -> JSONResponse:
    """The response to an error."""
    if not isinstance(error, Refusal):
        status = 400 if isinstance(error, MalformedError) else 413 if isinstance(error, TooLargeError) else 422
        error = Refusal(status, str(error))
    return JSONResponse({"error": str(error)}, error.status, error.headers)


class Server:
    """A model, and what its requests share."""

    def __init__(self, model: Path, settings: Settings, workers: int = 1) -> None:
        self.limits = settings.limits
        self.metrics = Metrics(PATHS)
        self.answerer = Answerer(model, settings, workers, self.metrics.restarted)
        self.metrics.uses(self.answerer.version)
        self.metrics.follows(lambda: self.answerer.is_current)
        self._held = 0

    async def reload(self) -> dict[str, Any]:
        """Take what the model's file holds now; what is then in use."""
        before = self.answerer.version
        try:
            facts = await asyncio.wrap_future(self.answerer.reload())
        except StoreError as error:
            self.metrics.reloaded("failed")
            log.warning("%s", error)
            raise Refusal(409, str(error)) from error
        self.metrics.reloaded("done")
        self.metrics.uses(facts["version"])
        if facts["version"] != before:
            log.info("Model %s takes the place of %s.", facts["version"], before)
        return {"version": facts["version"], "before": before}

    async def predict(self, request: Request) -> Response:
        if request.query_params:
            raise DataError("A prediction takes no options in the address: say them in the body.")
        return await self._replied(request)

    async def explain(self, request: Request) -> Response:
        return await self._replied(request, Explainer.of(request.query_params))

    async def _replied(self, request: Request, reply: Answer | None = None) -> Response:
        kind = _kind(request)
        with self._room() as body:
            await self._receive(request, body)
            answer = await self._answer(request, body, kind, reply)
        if isinstance(answer, Exception):
            return refused(answer)
        self.metrics.predicted(answer.nodes, answer.rejected)
        return Response(answer.content, media_type=JSON, headers={VERSION: answer.version})

    @contextmanager
    def _room(self) -> Iterator[bytearray]:
        """A buffer for a body until it is answered."""
        body = bytearray()
        try:
            yield body
        finally:
            self._held -= len(body)
            with suppress(BufferError):  # a late prediction may still use it
                body.clear()

    async def _receive(self, request: Request, body: bytearray) -> None:
        """Read the whole body within the limits of size and time."""
        most = self.limits.bytes
        too_large = f"The body is larger than the {most} bytes that are taken (--max-bytes)."
        if _declared_length(request) > most:
            raise TooLargeError(too_large)
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > most:
                        raise TooLargeError(too_large)
                    if self._held + len(chunk) > self.limits.all_bytes:
                        raise OverloadError("Too many large requests are on their way: try again later.")
                    self._held += len(chunk)
                    body += chunk
        except TimeoutError as error:
            sentence = f"The body did not arrive within {self.limits.seconds:g} seconds (--timeout)."
            raise Refusal(408, sentence, {"connection": "close"}) from error

    async def _answer(self, request: Request, body: bytearray, kind: str, reply: Answer | None) -> Reply | Exception:
        """Wait for the answer until the timeout or until the client disconnects."""
        asked: asyncio.Future[Reply | Exception] = asyncio.wrap_future(self.answerer.ask(body, kind, reply))
        gone: asyncio.Future[Message] = asyncio.ensure_future(request.receive())
        both: set[asyncio.Future[Any]] = {asked, gone}
        try:
            await asyncio.wait(both, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            if gone.done():
                raise ClientDisconnect
            raise OverloadError(
                f"There was no answer within {self.limits.seconds:g} seconds (--timeout): send fewer nodes, or try "
                "again later.",
                self.limits.seconds,
            )
        finally:
            gone.cancel()
            asked.cancel()


def _declared_length(request: Request) -> int:
    text = request.headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        raise MalformedError("The header Content-Length is no number.")
    return int(text[:19])  # more digits are too many bytes anyway


def _kind(request: Request) -> str:
    """The content type of the body."""
    said = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if said not in KINDS:
        sentence = f"Send the graph as {JSON} or {NPZ}, and say so in the header Content-Type."
        raise Refusal(415, sentence)
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        sentence = "A body is taken as it is, without Content-Encoding: an .npz file may be packed in itself."
        raise Refusal(415, sentence)
    return KINDS[said]


class Guard:
    """Middleware: access, metrics, and errors as one sentence."""

    def __init__(self, app: ASGIApp, server: Server, token: str | None, hosts: Collection[str] | None) -> None:
        self._app, self._server = app, server
        self._token = None if token is None else f"Bearer {token}".encode()
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._server.metrics.watched(scope["path"]) as seen:

            async def sent(message: Message) -> None:
                if message["type"] == "http.response.start":
                    seen.status = str(message["status"])
                    headers = [*message.get("headers", []), *ALWAYS]
                    if VERSION.encode() not in dict(headers):
                        headers.append((VERSION.encode(), self._server.answerer.version.encode()))
                    message = {**message, "headers": headers}
                await send(message)

            try:
                self._check(scope)
                await self._app(scope, receive, sent)
            except ClientDisconnect:
                return
            except Refusal as error:
                await refused(error)(scope, receive, sent)
            except asyncio.CancelledError:  # shutdown after the grace period
                if seen.status == GONE:
                    await refused(OverloadError("The server is stopping."))(scope, receive, sent)
            except Exception:
                log.exception("Unexpected error")
                if seen.status == GONE:
                    await refused(UnexpectedError())(scope, receive, sent)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        if b"transfer-encoding" in headers and (b"content-length" in headers or scope["http_version"] == "1.0"):
            # Against request smuggling: a proxy may have used the other header.
            sentence = "The length of the body is said in two ways: send Content-Length or Transfer-Encoding, not both."
            raise Refusal(400, sentence, {"connection": "close"})
        # Against DNS rebinding by a page in a browser on this machine.
        if self._hosts is not None and b"host" in headers and _host_name(headers[b"host"]) not in self._hosts:
            raise Refusal(400, "The header Host names another machine than this server listens on.")
        if self._token is None or scope["path"] == OPEN_TO_ALL:
            return
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._token):
            sentence = "Say who you are: the header 'Authorization: Bearer TOKEN' is missing or wrong."
            raise Refusal(401, sentence, {"www-authenticate": "Bearer"})


def _host_name(header: bytes) -> str:
    """The name in a Host header, without its port."""
    text = header.decode("latin-1").strip().lower()
    return text[: text.find("]") + 1] if text.startswith("[") else text.partition(":")[0]


def make_app(
    model: Path,
    limits: Limits | None = None,
    *,
    token: str | None = None,
    hosts: Collection[str] | None = None,
    threads: int = 1,
    directed: bool | None = None,
    workers: int = 1,
) -> FastAPI:
    """The application that serves the model in a file; close its `state.server.answerer` at the end.

    With a token, every route but /health requires it, and there is /reload. `hosts` are the allowed Host headers, None
    for any. `directed` is the default for requests without that option, None for how the model learned.
    """
    server = Server(model, Settings(limits or Limits(), threads, directed), workers)
    app = FastAPI(
        title="Predictions over HTTP", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.server = server
    app.add_middleware(Guard, server=server, token=token, hosts=hosts)

    @app.exception_handler(Refusal)
    @app.exception_handler(IpalError)
    async def not_taken(_: Request, error: Exception) -> Response:
        return refused(error)

    @app.exception_handler(HTTPException)
    async def not_here(_: Request, error: HTTPException) -> Response:
        sentence = {
            404: "There is nothing here: POST /predict or /explain, GET /memory, /health, /metrics, or read /docs.",
            405: "This path takes another method: POST for /predict, /explain and /reload, GET for all others.",
        }.get(error.status_code, error.detail)
        return refused(Refusal(error.status_code, sentence, error.headers))

    app.post("/predict", **schema.PREDICT)(server.predict)
    app.post("/explain", **schema.EXPLAIN)(server.explain)

    @app.get("/memory", **schema.MEMORY)
    async def memory() -> Response:
        return JSONResponse(server.answerer.facts)

    @app.get("/health", **schema.HEALTH)
    async def health() -> Response:
        about = {"version": server.answerer.version, "current": server.answerer.is_current}
        return JSONResponse({"status": "ok", **about})

    @app.get("/metrics", **schema.METRICS)
    async def metrics() -> Response:
        return Response(server.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    if token is not None:

        @app.post("/reload", **schema.RELOAD)
        async def reload() -> Response:
            return JSONResponse(await server.reload())

    @lru_cache(maxsize=1)
    def described(version: str) -> tuple[dict[str, Any], str]:
        facts = server.answerer.facts
        found = get_openapi(title=app.title, version=app.version, description=schema.about(facts), routes=app.routes)
        for path in ("/predict", "/explain"):
            found["paths"][path]["post"]["requestBody"] = schema.body(facts, server.limits, explains=path == "/explain")
        return found, page(found)

    app.openapi = lambda: described(server.answerer.version)[0]  # type: ignore[method-assign]

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(described(server.answerer.version)[1], headers=NO_NETWORK)

    @app.get("/", include_in_schema=False)
    async def front(request: Request) -> Response:
        text = front_page(server.answerer.facts, request.headers.get("host", ""), guarded=token is not None)
        return HTMLResponse(text, headers=NO_NETWORK)

    return app
