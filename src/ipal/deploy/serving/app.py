"""Routes and access. Every error is one sentence: {"error": …}."""

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ipal._version import __version__
from ipal.deploy.serving import schema
from ipal.deploy.serving.answers import Answerer, Facts, OverloadError, Reply, Settings
from ipal.deploy.serving.bodies import JSON, NPZ
from ipal.deploy.serving.limits import Limits
from ipal.deploy.serving.metrics import CONTENT_TYPE_LATEST, Metrics
from ipal.deploy.serving.schema import OF_A_BODY, REQUEST, ExplainOptions, refusals
from ipal.errors import StoreError

VERSION = "x-model-version"
"""The header of every answer that names the model."""
ALWAYS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
GONE = "gone"
"""Status, in the metrics, of a request whose client disconnected before the answer."""
SENTENCES = {
    "Not Found": "There is nothing here: POST /predict or /explain, GET /memory, /health, /metrics, or read /docs.",
    "Method Not Allowed": "This path takes another method: POST for /predict, /explain and /reload, else GET.",
}
PATHS = {"/", "/docs", "/openapi.json", "/health", "/reload", "/predict", "/explain", "/memory", "/metrics"}
ABOUT = (
    "A model that predicts the classes of nodes; GET /memory says which. It keeps no graph: a request carries what is "
    "needed. A prediction depends on all nodes within `hops` of /memory, and on their degrees: send a whole graph; or "
    "the nodes in question with all nodes within `hops` + 1 and the edges among them; or those within `hops`, and in "
    "degree how many nodes point to each in the whole graph (see ipal.deploy.predict.neighbourhood)."
)

log = logging.getLogger(__name__)


class Server:
    """A model, and what its requests share."""

    def __init__(self, model: Path, settings: Settings, workers: int = 1) -> None:
        self.limits = settings.limits
        self.metrics = Metrics()
        self.answerer = Answerer(model, settings, workers, self.metrics.restarts.inc)
        self.metrics.uses(self.version)
        self.metrics.current.set_function(lambda: self.answerer.is_current)
        self._reloading = asyncio.Lock()
        self._held = 0

    @property
    def version(self) -> str:
        return self.answerer.served.version

    @property
    def facts(self) -> Facts:
        return self.answerer.served.facts()

    async def reload(self) -> dict[str, str]:
        """Take what the model's file holds now; what is then in use, and what was before."""
        async with self._reloading:
            before = self.version
            try:
                await asyncio.to_thread(self.answerer.reload)
            except StoreError as error:
                self.metrics.reloads.labels("failed").inc()
                log.warning("%s", error)
                raise HTTPException(409, str(error)) from error
            self.metrics.reloads.labels("done").inc()
            self.metrics.uses(self.version)
            if self.version != before:
                log.info("Model %s takes the place of %s.", self.version, before)
            return {"version": self.version, "before": before}

    async def reply(self, request: Request, explain: ExplainOptions | None = None) -> Response:
        """The answer to the body of a request."""
        kind, body = _kind(request), bytearray()
        try:
            await self._receive(request, body)
            answer = await self._answer(request, body, kind, explain)
        except OverloadError as error:
            raise HTTPException(503, str(error)) from error
        finally:
            self._held -= len(body)
            with suppress(BufferError):  # a late prediction may still use it
                body.clear()
        self.metrics.nodes.inc(answer.nodes)
        self.metrics.rejected.inc(answer.rejected)
        return Response(answer.content, answer.status, {VERSION: answer.version}, JSON)

    async def _receive(self, request: Request, body: bytearray) -> None:
        """Read the whole body within the limits of size and time."""
        most = self.limits.bytes
        too_large = f"The body is larger than the {most} bytes that are taken (--max-bytes)."
        declared = request.headers.get("content-length", "0")
        if len(declared) > 18 or int(declared) > most:
            raise HTTPException(413, too_large)
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > most:
                        raise HTTPException(413, too_large)
                    if self._held + len(chunk) > self.limits.all_bytes:
                        raise OverloadError("Too many large requests are on their way: try again later.")
                    self._held += len(chunk)
                    body += chunk
        except TimeoutError as error:
            sentence = f"The body did not arrive within {self.limits.seconds:g} seconds (--timeout)."
            raise HTTPException(408, sentence, {"connection": "close"}) from error

    async def _answer(self, request: Request, body: bytearray, kind: str, explain: ExplainOptions | None) -> Reply:
        """Wait for the answer until the timeout or until the client disconnects."""
        asked: asyncio.Future[Reply] = asyncio.wrap_future(self.answerer.ask(body, kind, explain))
        gone: asyncio.Future[Message] = asyncio.ensure_future(request.receive())
        both: set[asyncio.Future[Any]] = {asked, gone}
        try:
            await asyncio.wait(both, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            if gone.done():
                raise ClientDisconnect
            raise OverloadError(
                f"There was no answer within {self.limits.seconds:g} seconds (--timeout): send fewer nodes."
            )
        finally:
            gone.cancel()
            asked.cancel()


def _kind(request: Request) -> str:
    """The content type of the body."""
    said = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if said not in schema.KINDS:
        raise HTTPException(415, f"Send the graph as {JSON} or {NPZ}, and say so in the header Content-Type.")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        sentence = "A body is taken as it is, without Content-Encoding: an .npz file may be packed in itself."
        raise HTTPException(415, sentence)
    return schema.KINDS[said]


# ---------------------------------------------------------------------- who may ask


def right_host(hosts: Collection[str] | None) -> Callable[[Request], Awaitable[None]]:
    """A dependency: the request is for this machine, and its length is said in one way."""

    async def check(request: Request) -> None:
        headers = request.headers
        if "transfer-encoding" in headers and ("content-length" in headers or request.scope["http_version"] == "1.0"):
            # Against request smuggling: a proxy may have used the other header.
            sentence = "The length of the body is said in two ways: send Content-Length or Transfer-Encoding, not both."
            raise HTTPException(400, sentence, {"connection": "close"})
        # Against DNS rebinding by a page in a browser on this machine.
        if hosts is not None and _name(headers.get("host", "localhost")) not in hosts:
            raise HTTPException(400, "The header Host names another machine than this server listens on.")

    return check


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    text = host.strip().lower()
    return text[: text.find("]") + 1] if text.startswith("[") else text.partition(":")[0]


def right_token(token: str) -> Callable[..., Awaitable[None]]:
    """A dependency: the request carries the token."""
    bearer = HTTPBearer(auto_error=False)

    async def check(given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        if given is None or not hmac.compare_digest(given.credentials.encode(), token.encode()):
            sentence = "Missing or invalid bearer token: send the header 'Authorization: Bearer TOKEN'."
            raise HTTPException(401, sentence, {"www-authenticate": "Bearer"})

    return check


# ---------------------------------------------------------------------- the application


class Watched:
    """Middleware: metrics, headers of every answer, and unexpected errors as one sentence."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app, self._server = app, server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics, begin, status = self._server.metrics, time.perf_counter(), GONE
        path = scope["path"] if scope["path"] in PATHS else "other"

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
                headers = [*message.get("headers", []), *ALWAYS]
                if VERSION.encode() not in dict(headers):
                    headers.append((VERSION.encode(), self._server.version.encode()))
                if status == "503" and b"retry-after" not in dict(headers):
                    headers.append((b"retry-after", b"1"))
                message = {**message, "headers": headers}
            await send(message)

        with metrics.in_flight.track_inprogress():
            try:
                await self._app(scope, receive, sent)
            except ClientDisconnect:
                pass
            except Exception:
                log.exception("Unexpected error")
                if status == GONE:
                    sentence = "Internal server error: the server's log says more."
                    await JSONResponse({"error": sentence}, 500)(scope, receive, sent)
            finally:
                metrics.seconds.labels(path).observe(time.perf_counter() - begin)
                metrics.requests.labels(path, status).inc()


async def refused(_: Request, error: Exception) -> Response:
    """An error as one sentence."""
    if isinstance(error, RequestValidationError):
        first, known = error.errors()[0], ", ".join(ExplainOptions.model_fields)
        sentence = f"The option '{str(first['loc'][-1])[:40]}' in the address: {first['msg']} (there are {known})."
        return JSONResponse({"error": sentence}, 422)
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"error": SENTENCES.get(error.detail, error.detail)}, error.status_code, error.headers)


def make_app(
    model: Path,
    limits: Limits | None = None,
    *,
    token: str | None = None,
    hosts: Collection[str] | None = None,
    threads: int = 1,
    directed: bool | None = None,
    workers: int = 1,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """The application that serves the model in a file; close its `state.server.answerer` at the end.

    With a token, every route but /health, /docs and /openapi.json requires it, and there is /reload. `hosts` are the
    allowed Host headers, None for any. `directed` is the default for requests without that option, None for how the
    model learned.
    """
    server = Server(model, Settings(limits or Limits(), threads, directed), workers)
    app = FastAPI(
        title="Predictions over HTTP",
        description=ABOUT,
        version=__version__,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(right_host(hosts))],
        exception_handlers={StarletteHTTPException: refused, RequestValidationError: refused},
        lifespan=lifespan,
    )
    app.state.server = server
    guarded = APIRouter(dependencies=[] if token is None else [Depends(right_token(token))])
    body: dict[str, Any] = {"responses": refusals(*OF_A_BODY), "openapi_extra": {"requestBody": REQUEST}}

    @guarded.post("/predict", response_model=schema.Predicted, summary="Predict nodes of a graph", **body)
    async def predict(request: Request) -> Response:
        if request.query_params:
            raise HTTPException(422, "A prediction takes no options in the address: say them in the body.")
        return await server.reply(request)

    @guarded.post("/explain", response_model=None, summary="Explain the class of one node", **body)
    async def explain(request: Request, options: Annotated[ExplainOptions, Query()]) -> Response:
        return await server.reply(request, options)

    @guarded.get("/memory", summary="What the model is, takes and keeps", responses=refusals(400, 401))
    async def memory() -> dict[str, Any]:
        return server.facts

    @guarded.get("/metrics", summary="Numbers for Prometheus", response_class=Response, responses=refusals(400, 401))
    async def metrics() -> Response:
        return Response(server.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    @app.get("/health", summary="Whether the server is up; needs no token", responses=refusals(400))
    async def health() -> schema.Health:
        return schema.Health(status="ok", version=server.version, current=server.answerer.is_current)

    @app.get("/", include_in_schema=False)
    async def front() -> Response:
        return RedirectResponse("/docs")

    if token is not None:
        about = "Take what the model's file holds now, without losing a request; only where a token is set"

        @guarded.post("/reload", summary=about, responses=refusals(400, 401, 409))
        async def reload() -> schema.Reloaded:
            return schema.Reloaded(**await server.reload())

    app.include_router(guarded)
    app.add_middleware(Watched, server=server)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = FastAPI.openapi(app)
            _, bodies = models_json_schema(
                [(schema.GraphBody, "validation")], ref_template="#/components/schemas/{model}"
            )
            found["components"]["schemas"] |= bodies["$defs"]
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]
    return app
