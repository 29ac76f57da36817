"""Inputs and outputs of each route, for OpenAPI."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from ipal.deploy.serving.answers import Facts
from ipal.deploy.serving.bodies import JSON, NPZ
from ipal.deploy.serving.explanations import MOST
from ipal.deploy.serving.limits import Limits

Schema = dict[str, Any]

VERSION = Field(description="The model that answered: the beginning of the SHA-256 digest of its file.")


class Error(BaseModel):
    """An error response."""

    error: str = Field(description="What is wrong, and what to do.")


class Answer(BaseModel):
    """Predictions by node."""

    version: str = VERSION
    classes: list[int | str] = Field(
        description="All classes the model knows, in the order in which they were learned."
    )
    nodes: list[int] = Field(description="The nodes that were predicted, as numbered in the request.")
    predicted: list[int | str | None] = Field(description="The most probable class of each node; null if rejected.")
    confidence: list[float] = Field(description="The largest probability of each node, to six decimals.")
    probabilities: list[list[float]] = Field(
        default=[],
        description="One list per node, in the order of classes: a softmax over the known classes; adds up to one "
        "also for a node of another class. Left out if the request says so.",
    )
    sets: list[list[int | str]] = Field(default=[], description="The classes of each node's set, where asked for.")


class Explained(BaseModel):
    """What spoke for the class of a node (above zero), and what against it."""

    version: str = VERSION
    summary: str
    node: int
    predicted: int | str
    against: int | str | None = Field(description="The class that it is compared with.")
    scores: dict[str, float] = Field(description="Of every class.")
    margin: float = Field(description="The score of the predicted class less that of the other: what is divided.")
    rest: float = Field(description="What of it no feature contributed: offsets, and what is not linear.")
    by_hop: list[float] = Field(description="Contributions of the node itself, of nodes one edge away, two edges, …")
    by_node: list[dict[str, float]] = Field(description="The strongest nodes: node, hops, contribution.")
    by_feature: list[dict[str, str | float]] = Field(description="The strongest features: feature, contribution.")
    evidence: list[dict[str, str | float]] = Field(
        description="The strongest features of nodes, each with its contribution."
    )


class MemoryBody(BaseModel, extra="allow"):
    """Method, classes, inputs and memory of a model."""

    version: str = VERSION
    method: str
    classes: list[int | str]
    features: int = Field(description="Numbers that every node must come with.")
    feature_names: list[str] = Field(description="What they are, in this order; empty where the model was not told.")
    hops: int = Field(description="How far a prediction reaches.")
    hops_to_reject: int = Field(description="The same with reject.")
    directed: bool = Field(description="Whether edges lead one way where a request does not say.")
    bytes: int
    stores_exemplars: bool
    nodes_behind_class: dict[str, int]


class Health(BaseModel):
    status: str
    version: str = VERSION
    current: bool = Field(
        description="Whether the model's file still holds that model; false after a change that was not taken yet, or "
        "could not be."
    )


class Reloaded(BaseModel):
    """Which model is in use."""

    version: str = VERSION
    before: str = Field(description="The version that was in use before; the same where the file has not changed.")


def listed(names: Sequence[object], most: int = 20) -> str:
    """The first of some names, and how many more there are."""
    more = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {more} more" if more > 0 else "")


def about(facts: Facts) -> str:
    """A description of the model."""
    hops = facts["hops"]
    needed = (
        f"A prediction depends on all nodes within {hops} hops, and on their degrees: send a whole graph; or the "
        f"nodes in question with all nodes within {hops + 1} hops and the edges among them; or those within {hops} "
        "hops, and in degree how many nodes point to each in the whole graph (see ipal.deploy.predict.neighbourhood)."
    )
    return (
        f"A model of the method {facts['method']} that knows {len(facts['classes'])} classes of nodes with "
        f"{facts['features']} features each. It keeps no graph: a request carries what is needed. {needed}"
    )


# ---------------------------------------------------------------------- bodies

LARGEST = float(np.finfo(np.float32).max)
_NOTHING = {"type": "null"}
_FILE = {
    "type": "string",
    "format": "binary",
    "description": "An .npz file of plain arrays with the same names; sparse features are x_indices, x_indptr, "
    "x_values and x_shape. A graph file of 'ipal run' will do: its labels are not looked at.",
}


def _whole(least: int = 0, most: int = 2**63 - 1) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def _number(least: float = -LARGEST) -> Schema:
    return {"type": "number", "minimum": least, "maximum": LARGEST}


def _list(items: Schema, least: int = 0, most: int | None = None, **more: Any) -> Schema:
    return {"type": "array", "items": items, "minItems": least, **({} if most is None else {"maxItems": most}), **more}


def _if_wanted(kind: Schema, description: str) -> Schema:
    return {"anyOf": [kind, _NOTHING], "description": description}


def body(facts: Facts, limits: Limits, *, explains: bool = False) -> Schema:
    """The body of a request for this model, within these limits; of an explanation where it `explains`."""
    features, nodes = facts["features"], limits.nodes
    sparse = {
        "indices": _list(_whole(0, features - 1)),
        "indptr": _list(_whole(), 2, nodes + 1),
        "values": _list(_number()),
        "shape": _list(_whole(), 2, 2, prefixItems=[_whole(1, nodes), {"const": features}]),
    }
    share = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
    named = f": {listed(facts['feature_names'])}" if facts["feature_names"] else ""
    properties = {
        "x": {
            "anyOf": [_list(_list(_number(), features, features), 1, nodes), _object(sparse, *sparse)],
            "description": f"Features, {features} for each node{named}. One list per node; or a sparse CSR table: "
            "object of indices, indptr, values and shape.",
        },
        "edge_index": {
            **_list(_list(_whole(), 0, limits.edges), 2, 2),
            "description": "Where each edge begins, and where it ends; [[], []] for none. Whole numbers here and below "
            "are written without a point.",
        },
        "edge_weight": _if_wanted(
            _list(_number(0), 0, limits.edges), "The weight of each edge; all are one where it is missing."
        ),
        "nodes": _if_wanted(
            _list(_whole(), 1, nodes, uniqueItems=True), "The nodes in question; all where it is missing."
        ),
        "degree": _if_wanted(
            _list(_number(0), 1, nodes),
            "How many nodes point to each node in the whole graph (with edge_weight, the sum of the weights); as many "
            "as here where it is missing.",
        ),
        "directed": _if_wanted(
            {"type": "boolean"},
            "Whether edges lead one way only, or count both ways; as /memory says where it is missing.",
        ),
        "reject": _if_wanted(
            share,
            "Nodes that seem to be of no known class are rejected, so that about this share of known nodes is lost; "
            "the request holds all nodes within hops_to_reject of /memory.",
        ),
        "coverage": _if_wanted(share, "Sets of classes that hold a node's own this often."),
        "probabilities": _if_wanted(
            {"type": "boolean"}, "Whether the answer holds the probabilities of all classes; true where it is missing."
        ),
    }
    if explains:
        properties["nodes"] = {**_list(_whole(), 1, 1), "description": "The node in question."}
        of_predictions = {**_NOTHING, "description": "Of predictions only."}
        properties |= dict.fromkeys(("reject", "coverage", "probabilities"), of_predictions)
    has_weights = {"properties": {"edge_weight": {"type": "array"}}, "required": ["edge_weight"]}
    counts = {"properties": {"degree": {"anyOf": [_list(_whole(0, 2**31)), _NOTHING]}}}
    whole = {
        **_object(properties, "x", "edge_index", *["nodes"] * explains),
        "description": "A graph, and what is asked of it.",
        "if": has_weights,
        "else": counts,
    }
    kinds = {JSON: whole, NPZ: _FILE, "application/octet-stream": _FILE, "application/zip": _FILE}
    return {"required": True, "content": {kind: {"schema": part} for kind, part in kinds.items()}}


def _object(properties: Schema, *required: str) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


# ---------------------------------------------------------------------- routes

_REASONS = {
    400: "What was sent cannot be read: no JSON, no .npz file, no HTTP, or a Host that is not this machine.",
    401: "A token is needed, or the one that was sent is wrong.",
    408: "The body did not arrive in time.",
    409: "The model's file cannot be used: the model that was in use goes on.",
    413: "More was sent than the server takes.",
    415: "Content-Type says neither JSON nor .npz, or there is a Content-Encoding.",
    422: "What was sent can be read, but is no graph for this model.",
    503: "Overload: too much is going on, or the answer took too long. Retry-After says when to try again.",
}


def _route(summary: str, answer: Schema, *refused: int) -> Schema:
    """The options of a route that answers so, or refuses with one of these statuses or 503."""
    responses = {
        200: answer,
        **{status: {"model": Error, "description": _REASONS[status]} for status in (*refused, 503)},
    }
    responses[503]["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return {"summary": summary, "response_model": None, "responses": responses}


_OF_A_BODY = (400, 401, 408, 413, 415, 422)


def _parameter(name: str, kind: Schema, description: str) -> Schema:
    """An option in the address."""
    return {"name": name, "in": "query", "required": False, "schema": kind, "description": description}


PREDICT = _route("Predict nodes of a graph", {"model": Answer, "description": "Predictions."}, *_OF_A_BODY)
EXPLAIN = {
    **_route(
        "Explain the class of one node of a graph; ?against=CLASS compares it with that class, ?top=10 gives so many "
        "nodes, features and pieces of evidence",
        {"model": Explained, "description": "The explanation."},
        *_OF_A_BODY,
    ),
    "openapi_extra": {
        "parameters": [
            _parameter("against", {"type": "string"}, "The class to compare with; the next best where it is missing."),
            _parameter("top", _whole(1, MOST), "How many nodes, features and pieces of evidence; 10 unless said."),
        ],
    },
}
MEMORY = _route("What the model is, takes and keeps", {"model": MemoryBody, "description": "The model."}, 400, 401)
HEALTH = _route("Whether the server is up; needs no token", {"model": Health, "description": "It is."}, 400)
METRICS = _route(
    "Numbers for Prometheus",
    {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Counters, as text."},
    400,
    401,
)
RELOAD = _route(
    "Take what the model's file holds now, without losing a request; only where a token is set",
    {"model": Reloaded, "description": "It is in use."},
    400,
    401,
    409,
)
