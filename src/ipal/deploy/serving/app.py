"""Routes and access. Every error is one sentence: {"error": …}."""

import asyncio
import hmac
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ipal._version import __version__
from ipal.deploy.serving import schema
from ipal.deploy.serving.answers import Answerer, Reply
from ipal.deploy.serving.bodies import JSON, NPZ
from ipal.deploy.serving.limits import Limits, MalformedError, OverloadError, Refusal, TooLargeError, UnexpectedError
from ipal.deploy.serving.metrics import CONTENT_TYPE_LATEST, GONE, Metrics
from ipal.deploy.serving.page import page
from ipal.errors import IpalError
from ipal.learners import Learner
from ipal.learners.second_pass import whole_reach

PATHS = frozenset({"/predict", "/memory", "/health", "/metrics", "/docs", "/openapi.json"})
OPEN_TO_ALL = "/health"
KINDS = {JSON: JSON, NPZ: NPZ, "application/octet-stream": NPZ, "application/zip": NPZ}
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

    def __init__(self, learner: Learner, limits: Limits, threads: int = 1, directed: bool = False) -> None:
        self.limits = limits
        self.answerer = Answerer(learner, limits, threads, directed)
        self.metrics = Metrics(PATHS)
        self.facts = {**facts(learner), "directed": directed}
        self._held = 0

    async def predict(self, request: Request) -> Response:
        kind = _kind(request)
        with self._room() as body:
            await self._receive(request, body)
            answer = await self._answer(request, body, kind)
        if isinstance(answer, Exception):
            return refused(answer)
        self.metrics.predicted(answer.nodes, answer.rejected)
        return Response(answer.content, media_type=JSON)

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

    async def _answer(self, request: Request, body: bytearray, kind: str) -> Reply | Exception:
        """Wait for the answer until the timeout or until the client disconnects."""
        asked: asyncio.Future[Reply | Exception] = asyncio.wrap_future(self.answerer.ask(body, kind))
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


def facts(learner: Learner) -> dict[str, Any]:
    """Method, classes, inputs and memory of a model."""
    return {
        "method": learner.name,
        "classes": learner.classes_.tolist(),
        "features": learner.num_features_,
        "hops": whole_reach(learner),
        **learner.memory_report(),
    }


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

    def __init__(self, app: ASGIApp, metrics: Metrics, token: str | None, hosts: Collection[str] | None) -> None:
        self._app, self._metrics = app, metrics
        self._token = None if token is None else f"Bearer {token}".encode()
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._metrics.watched(scope["path"]) as seen:

            async def sent(message: Message) -> None:
                if message["type"] == "http.response.start":
                    seen.status = str(message["status"])
                    message = {**message, "headers": [*message.get("headers", []), *ALWAYS]}
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
    learner: Learner,
    limits: Limits | None = None,
    *,
    token: str | None = None,
    hosts: Collection[str] | None = None,
    threads: int = 1,
    directed: bool = False,
) -> FastAPI:
    """The application; close its `state.server` at the end.

    With a token, every route but /health requires it. `hosts` are the allowed Host headers, None for any. `directed` is
    the default for requests without that option.
    """
    server = Server(learner, limits or Limits(), threads, directed)
    app = FastAPI(
        title="Predictions over HTTP",
        description=schema.about(server.facts),
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.server = server
    app.add_middleware(Guard, metrics=server.metrics, token=token, hosts=hosts)

    @app.exception_handler(Refusal)
    @app.exception_handler(IpalError)
    async def not_taken(_: Request, error: Exception) -> Response:
        return refused(error)

    @app.exception_handler(HTTPException)
    async def not_here(_: Request, error: HTTPException) -> Response:
        sentence = {
            404: "There is nothing here: POST /predict, GET /memory, /health, /metrics, or read /docs.",
            405: "This path takes another method: POST for /predict, GET for all others.",
        }.get(error.status_code, error.detail)
        return refused(Refusal(error.status_code, sentence, error.headers))

    app.post("/predict", **schema.PREDICT)(server.predict)

    @app.get("/memory", **schema.MEMORY)
    async def memory() -> Response:
        return JSONResponse(server.facts)

    @app.get("/health", **schema.HEALTH)
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", **schema.METRICS)
    async def metrics() -> Response:
        return Response(server.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    described = page(app.openapi())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(described, headers=NO_NETWORK)

    return app
