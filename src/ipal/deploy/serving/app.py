"""Routes, access, metrics. Every error is one sentence: {"error": …}."""

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.process_collector import ProcessCollector
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from ipal._version import __version__
from ipal.deploy.serving.bodies import JSON, NPZ, GraphBody, Limits
from ipal.deploy.serving.served import ExplainOptions, Served, overload
from ipal.errors import IpalError, StoreError
from ipal.system.arrays import MalformedError, TooLargeError

VERSION = "x-model-version"
ALWAYS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
AT_ONCE = 4  # bodies of the largest size
POLL = 1.0
"""Seconds between two looks at the model's file; after a reload that failed twice as many, and so on."""
LONGEST_PAUSE = 10.0
NOTHING = "There is nothing here: POST /predict or /explain, GET /memory, /health, /metrics, or read /docs."
PATHS = {"/docs", "/openapi.json", "/health", "/reload", "/predict", "/explain", "/memory", "/metrics"}
ABOUT = (
    "A model that predicts the classes of nodes; GET /memory says which. It keeps no graph: a request carries what is "
    "needed. A prediction depends on all nodes within `hops` of /memory, and on their degrees: send a whole graph; or "
    "the nodes in question with all nodes within `hops` + 1 and the edges among them; or those within `hops`, and in "
    "degree how many nodes point to each in the whole graph (see ipal.deploy.predict.neighbourhood)."
)

BEARER = HTTPBearer(auto_error=False)
log = logging.getLogger(__name__)


# ---------------------------------------------------------------------- answers, for /openapi.json

VERSION_FIELD = Field(description="The model that answered: the beginning of the SHA-256 digest of its file.")


class Error(BaseModel):
    error: str = Field(description="What is wrong, and what to do.")


class Predicted(BaseModel):
    """Predictions by node."""

    version: str = VERSION_FIELD
    classes: list[int | str] = Field(
        description="All classes the model knows, in the order in which they were learned."
    )
    nodes: list[int] = Field(description="The nodes that were predicted, as numbered in the request.")
    predicted: list[int | str | None] = Field(description="The most probable class of each node; null if rejected.")
    confidence: list[float] = Field(description="The largest probability of each node, to six decimals.")
    probabilities: list[list[float]] = Field(
        [], description="One list per node, in the order of classes: adds up to one also for a node of another class."
    )
    sets: list[list[int | str]] = Field(default=[], description="The classes of each node's set, where asked for.")


class Health(BaseModel):
    status: str
    version: str = VERSION_FIELD
    current: bool = Field(description="Whether the model's file still holds that model.")


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error} for status in (400, 401, 408, 409, 413, 415, 422, 503)
}
NPZ_FILE = {
    "type": "string",
    "format": "binary",
    "description": "An .npz file of plain arrays with the same names, as a graph file of 'ipal run'; without labels.",
}
CONTENT = {JSON: {"schema": GraphBody.model_json_schema()}, NPZ: {"schema": NPZ_FILE}}
WITH_A_BODY = {"requestBody": {"required": True, "content": CONTENT}}
"""FastAPI itself describes only one kind of body, and reads it without a limit."""


# ---------------------------------------------------------------------- what requests share


class Server:
    """A model, and what its requests share; metrics' labels come from fixed sets, so that memory is bounded."""

    def __init__(self, served: Served, limits: Limits, token: str | None, hosts: Collection[str] | None) -> None:
        self.served, self.limits = served, limits
        self._token, self._hosts = token, hosts
        self._reloading = asyncio.Lock()
        self.held = 0
        """Bytes of bodies that are on their way, or wait for an answer."""
        self.registry = of = CollectorRegistry()
        ProcessCollector(registry=of)
        self._requests = Counter("ipal_requests", "Requests by path and status.", ("path", "status"), registry=of)
        self._seconds = Histogram("ipal_request_seconds", "From header to answer.", ("path",), registry=of)
        self._nodes = Counter("ipal_nodes_predicted", "Nodes that were predicted, rejected ones too.", registry=of)
        self._rejected = Counter("ipal_nodes_rejected", "Nodes said to be of none of the known classes.", registry=of)
        self._reloads = Counter("ipal_reloads", "Replacements of the model, done or failed.", ("outcome",), registry=of)
        current = Gauge("ipal_model_current", "1 while the model in use is what its file holds, else 0.", registry=of)
        current.set_function(lambda: served.is_current)
        self._model = Info("ipal_model", "Which model is in use.", registry=of)
        self._model.info({"version": self.version})

    @property
    def version(self) -> str:
        return self.served.loaded.version

    async def reload(self) -> dict[str, str]:
        """Take what the model's file holds now: the version in use, and the one before."""
        async with self._reloading:
            before = self.version
            try:
                await asyncio.to_thread(self.served.reload)
            except StoreError as error:
                self._reloads.labels("failed").inc()
                log.warning("%s", error)
                raise HTTPException(409, str(error)) from error
            self._reloads.labels("done").inc()
            self._model.info({"version": self.version})
            return {"version": self.version, "before": before}

    async def follow(self) -> None:
        """Reload when the model's file has changed; again and again until that succeeds."""
        pause = POLL
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            with suppress(HTTPException):  # which is logged
                if not self.served.is_current:
                    await self.reload()
                pause = POLL

    async def reply(self, request: Request, explain: ExplainOptions | None = None) -> Response:
        """The answer to the body of a request."""
        kind, body = _kind(request), bytearray()
        try:
            await self._receive(request, body)
            async with asyncio.timeout(self.limits.seconds):
                answer = await asyncio.wrap_future(self.served.ask(body, kind, explain))
        except TimeoutError as error:
            sentence = f"There was no answer within {self.limits.seconds:g} seconds (--timeout): send fewer nodes."
            raise overload(sentence) from error
        finally:
            self.held -= len(body)
            with suppress(BufferError):  # a late prediction may still use it
                body.clear()
        self._nodes.inc(answer.nodes)
        self._rejected.inc(answer.rejected)
        return Response(answer.content, headers={VERSION: answer.version}, media_type=JSON)

    async def _receive(self, request: Request, body: bytearray) -> None:
        """Read the whole body within the limits of size and time."""
        most = self.limits.bytes
        too_large = HTTPException(413, f"The body is larger than the {most} bytes that are taken (--max-bytes).")
        declared = request.headers.get("content-length", "0")
        if len(declared) > 18 or int(declared) > most:
            raise too_large
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > most:
                        raise too_large
                    if self.held + len(chunk) > AT_ONCE * most:
                        raise overload("Too many large requests are on their way: try again later.")
                    self.held += len(chunk)
                    body += chunk
        except TimeoutError as error:
            sentence = f"The body did not arrive within {self.limits.seconds:g} seconds (--timeout)."
            raise HTTPException(408, sentence, {"connection": "close"}) from error

    async def observed(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """Middleware: metrics, headers of every answer, and unexpected errors as one sentence."""
        path = request.url.path if request.url.path in PATHS else "other"
        begin, status = time.perf_counter(), "gone"  # where the client disconnects
        try:
            response = await call_next(request)
            status = str(response.status_code)
        except ClientDisconnect:
            response = Response()  # nobody reads it
        except Exception:
            log.exception("Unexpected error")
            response = JSONResponse({"error": "Internal server error: the server's log says more."}, 500)
            status = "500"
        self._seconds.labels(path).observe(time.perf_counter() - begin)
        self._requests.labels(path, status).inc()
        response.headers.update(ALWAYS)
        response.headers.setdefault(VERSION, self.version)
        return response

    async def check_host(self, request: Request) -> None:
        """The request is for this machine, and its length is said in one way."""
        headers = request.headers
        if "transfer-encoding" in headers and ("content-length" in headers or request.scope["http_version"] == "1.0"):
            # Against request smuggling: a proxy may have used the other header.
            sentence = "The length of the body is said in two ways: send Content-Length or Transfer-Encoding, not both."
            raise HTTPException(400, sentence, {"connection": "close"})
        # Against DNS rebinding by a page in a browser on this machine.
        host = headers.get("host", "localhost").strip().lower()
        name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
        if self._hosts is not None and name not in self._hosts:
            raise HTTPException(400, "The header Host names another machine than this server listens on.")

    async def check_token(self, given: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]) -> None:
        """The request carries the token."""
        said, token = given.credentials if given else "", self._token
        if not token or not hmac.compare_digest(said.encode(), token.encode()):
            sentence = "Missing or invalid bearer token: send the header 'Authorization: Bearer TOKEN'."
            raise HTTPException(401, sentence, {"www-authenticate": "Bearer"})


def _kind(request: Request) -> str:
    """The content type of the body."""
    said = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if said not in (JSON, NPZ):
        raise HTTPException(415, f"Send the graph as {JSON} or {NPZ}, and say so in the header Content-Type.")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        sentence = "A body is taken as it is, without Content-Encoding: an .npz file may be packed in itself."
        raise HTTPException(415, sentence)
    return said


# ---------------------------------------------------------------------- the application


async def refused(_: Request, error: Exception) -> Response:
    """An error as one sentence."""
    if isinstance(error, IpalError):
        status = 400 if isinstance(error, MalformedError) else 413 if isinstance(error, TooLargeError) else 422
        return JSONResponse({"error": str(error)}, status)
    if isinstance(error, RequestValidationError):
        first, known = error.errors()[0], ", ".join(ExplainOptions.model_fields)
        sentence = f"The option '{str(first['loc'][-1])[:40]}' in the address: {first['msg']} (there are {known})."
        return JSONResponse({"error": sentence}, 422)
    assert isinstance(error, StarletteHTTPException)
    said = NOTHING if error.status_code in (404, 405) else error.detail
    return JSONResponse({"error": said}, error.status_code, error.headers)


@asynccontextmanager
async def following(app: FastAPI) -> AsyncIterator[None]:
    """While the application runs, it follows the model's file."""
    task = asyncio.create_task(app.state.server.follow())
    yield
    task.cancel()


def make_app(
    model: Path, limits: Limits, *, token: str | None = None, hosts: Collection[str] | None = None, threads: int = 1
) -> FastAPI:
    """The application that serves the model in a file; close its `state.server.served` at the end.

    With a token, every route but /health, /docs and /openapi.json requires it, and there is /reload. `hosts` are the
    allowed Host headers, None for any.
    """
    server = Server(Served(model, limits, threads), limits, token, hosts)
    app = FastAPI(
        title="Predictions over HTTP",
        description=ABOUT,
        version=__version__,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(server.check_host)],
        exception_handlers=dict.fromkeys((StarletteHTTPException, RequestValidationError, IpalError), refused),
        lifespan=following,
    )
    app.state.server = server
    app.middleware("http")(server.observed)
    guarded = APIRouter(dependencies=[] if token is None else [Depends(server.check_token)], responses=REFUSALS)

    @guarded.post("/predict", response_model=Predicted, summary="Predict nodes of a graph", openapi_extra=WITH_A_BODY)
    async def predict(request: Request) -> Response:
        if request.query_params:
            raise HTTPException(422, "A prediction takes no options in the address: say them in the body.")
        return await server.reply(request)

    @guarded.post("/explain", response_model=None, summary="Explain the class of one node", openapi_extra=WITH_A_BODY)
    async def explain(request: Request, options: Annotated[ExplainOptions, Query()]) -> Response:
        return await server.reply(request, options)

    @guarded.get("/memory", summary="What the model is, takes and keeps")
    async def memory() -> dict[str, Any]:
        return server.served.loaded.facts

    @guarded.get("/metrics", summary="Numbers for Prometheus", response_class=Response)
    async def metrics() -> Response:
        return Response(generate_latest(server.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    @app.get("/health", summary="Whether the server is up; needs no token")
    async def health() -> Health:
        return Health(status="ok", version=server.version, current=server.served.is_current)

    if token is not None:

        @guarded.post("/reload", summary="Take what the model's file holds now; only where a token is set")
        async def reload() -> dict[str, str]:
            return await server.reload()

    app.include_router(guarded)
    return app
