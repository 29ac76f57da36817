"""Requests and answers as pydantic models: they check what is sent, and describe it in /openapi.json."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ipal.deploy.serving.bodies import JSON, NPZ

KINDS = {JSON: JSON, NPZ: NPZ, "application/octet-stream": NPZ, "application/zip": NPZ}
"""Content types of a body that are taken, and what they mean."""

Numbers = Annotated[list[float], Field(fail_fast=True)]
WholeNumbers = Annotated[list[int], Field(fail_fast=True)]
Share = Annotated[float, Field(gt=0, lt=1)]
Label = int | str
VERSION = Field(description="The model that answered: the beginning of the SHA-256 digest of its file.")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


# ---------------------------------------------------------------------- requests


class Options(_Strict):
    """What is asked of a graph."""

    directed: bool | None = Field(
        None, description="Whether edges lead one way only, or count both ways; as /memory says where it is missing."
    )
    reject: Share | None = Field(
        None,
        description="Nodes that seem to be of no known class are rejected, so that about this share of known nodes is "
        "lost; the request holds all nodes within hops_to_reject of /memory.",
    )
    coverage: Share | None = Field(None, description="Sets of classes that hold a node's own this often.")
    probabilities: bool | None = Field(
        None, description="Whether the answer holds the probabilities of all classes; true where it is missing."
    )


class SparseFeatures(_Strict):
    """A CSR table."""

    indices: WholeNumbers
    indptr: WholeNumbers
    values: Numbers
    shape: tuple[int, int] = Field(description="Numbers of nodes and of features.")


class GraphBody(Options):
    """A graph, and what is asked of it. Whole numbers are written without a point."""

    x: Annotated[list[Numbers], Field(fail_fast=True)] | SparseFeatures | None = Field(
        None, description="Features, in the order of feature_names in /memory: one list per node, or sparse."
    )
    edge_index: tuple[WholeNumbers, WholeNumbers] = Field(
        description="Where each edge begins, and where it ends; [[], []] for none."
    )
    edge_weight: Numbers | None = Field(None, description="The weight of each edge; all are one where it is missing.")
    nodes: WholeNumbers | None = Field(None, description="The nodes in question; all where it is missing.")
    degree: Numbers | None = Field(
        None,
        description="How many nodes point to each node in the whole graph (with edge_weight, the sum of the weights); "
        "as many as here where it is missing.",
    )
    model_config = ConfigDict(
        json_schema_extra={
            "required": ["x", "edge_index"],
            "examples": [{"x": [[0.5, 1.0], [0.0, 2.0]], "edge_index": [[0], [1]], "nodes": [0]}],
        }
    )


class ExplainOptions(BaseModel):
    """What an explanation compares, and how long it is; after the question mark of the address."""

    model_config = ConfigDict(extra="forbid")

    against: str | None = Field(None, description="The class to compare with; the next best where it is missing.")
    top: int = Field(10, ge=1, le=1000, description="How many nodes, features and pieces of evidence.")


_NPZ_FILE = {
    "type": "string",
    "format": "binary",
    "description": "An .npz file of plain arrays with the same names; sparse features are x_indices, x_indptr, "
    "x_values and x_shape. A graph file of 'ipal run' will do: its labels are not looked at.",
}
REQUEST: dict[str, Any] = {
    "required": True,
    "content": {
        kind: {"schema": {"$ref": "#/components/schemas/GraphBody"} if means == JSON else _NPZ_FILE}
        for kind, means in KINDS.items()
    },
}
"""The body of a request, for OpenAPI: FastAPI itself describes only one kind."""


# ---------------------------------------------------------------------- answers


class Error(BaseModel):
    error: str = Field(description="What is wrong, and what to do.")


class Predicted(BaseModel):
    """Predictions by node."""

    version: str = VERSION
    classes: list[Label] = Field(description="All classes the model knows, in the order in which they were learned.")
    nodes: list[int] = Field(description="The nodes that were predicted, as numbered in the request.")
    predicted: list[Label | None] = Field(description="The most probable class of each node; null if rejected.")
    confidence: list[float] = Field(description="The largest probability of each node, to six decimals.")
    probabilities: list[list[float]] = Field(
        default=[],
        description="One list per node, in the order of classes: adds up to one also for a node of another class.",
    )
    sets: list[list[Label]] = Field(default=[], description="The classes of each node's set, where asked for.")


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


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How a route may refuse, for OpenAPI; every route may with 503."""
    return {status: {"model": Error} for status in (*statuses, 503)}


OF_A_BODY = (400, 401, 408, 413, 415, 422)
