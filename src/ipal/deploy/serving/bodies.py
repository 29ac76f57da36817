"""Requests: written by clients, described as pydantic models, and parsed within limits.

JSON and .npz files have the same names, which are those of the graph files that `ipal run` reads.
"""

import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from ipal.data.datasets.readers import SPARSE, csr
from ipal.data.graph import Features, Graph, Nodes, checked_graph
from ipal.data.graph_data import GraphData
from ipal.errors import DataError, did_you_mean
from ipal.system.arrays import MalformedError, TooLargeError, npz_of, read_npz

JSON, NPZ = "application/json", "application/x-npz"
OF_GRAPH_FILES = ("y", "train", "forget")
"""Arrays of graph files that are ignored."""
OTHER_LISTS = 16
"""Most lists and objects in a valid JSON request, besides the rows of features."""
MOST_NEIGHBOURS = 2**31
ROUNDING = 1e-5
"""By this share, sums of weights may be too small."""
MOSTLY_ZERO = 16
"""Dense features with fewer than one nonzero in so many are converted to sparse ones, which is faster."""


@dataclass(frozen=True)
class Limits:
    """Limits of a server; a request beyond them is refused early."""

    bytes: int = 64 * 2**20
    """Most bytes of a request body, compressed and uncompressed."""
    nodes: int = 20_000
    edges: int = 1_000_000
    seconds: float = 30.0
    """Timeout for receiving a body, and again for answering it."""
    waiting: int = 16
    """Most requests in the queue."""
    connections: int = 2048
    """Most open connections; while there are more, every request is answered with 503."""


# ---------------------------------------------------------------------- written by clients


def npz_body(graph: Graph | GraphData, nodes: Iterable[int] | None = None, **options: Any) -> bytes:
    """The body of a request as an .npz file, to be sent as application/x-npz.

    Parameters
    ----------
    graph : Graph or GraphData
        A graph, or the part of one that `neighbourhood` gives.
    nodes : iterable of int, optional
        The nodes to predict. Default: all.
    **options
        `reject`, `coverage` and `probabilities`.

    Returns
    -------
    bytes
    """
    file = io.BytesIO()
    np.savez(file, **_parts(graph, nodes, options))
    return file.getvalue()


def json_body(graph: Graph | GraphData, nodes: Iterable[int] | None = None, **options: Any) -> bytes:
    """The body of a request as JSON, to be sent as application/json.

    Parameters
    ----------
    graph : Graph or GraphData
        A graph, or the part of one that `neighbourhood` gives.
    nodes : iterable of int, optional
        The nodes to predict. Default: all.
    **options
        `reject`, `coverage` and `probabilities`.

    Returns
    -------
    bytes
    """
    parts = _parts(graph, nodes, options).items()
    return to_json({name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in parts})


def _parts(graph: Graph | GraphData, nodes: Iterable[int] | None, options: dict[str, Any]) -> dict[str, Any]:
    graph = graph.graph if isinstance(graph, GraphData) else graph
    x = graph.x
    features = {"x": x}
    if not isinstance(x, np.ndarray):
        features = dict(zip(SPARSE, (x.data, x.indices, x.indptr, np.array(x.shape)), strict=True))
    parts = {
        "edge_index": graph.edges,
        "directed": not graph.symmetric,
        **options,
        **features,
        "edge_weight": graph.edge_weight,
        "degree": graph.neighbours.whole_degree,
        "nodes": None if nodes is None else np.asarray(list(nodes), dtype=np.int64),
    }
    return {name: part for name, part in parts.items() if part is not None}


# ---------------------------------------------------------------------- described


def _whole_numbers(values: list[int]) -> Any:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        raise ValueError("a whole number has more than 64 bits") from None


def _table(rows: list[list[float]]) -> Any:
    for place, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ValueError(f"row {place} of x has {len(row)} numbers, row 0 has {len(rows[0])}")
    with np.errstate(over="ignore"):  # overflows become infinite, which is refused
        return np.array(rows, dtype=np.float32).reshape(len(rows), -1 if rows else 0)


def _ends(both: tuple[Any, Any]) -> Any:
    if len(both[0]) != len(both[1]):
        raise ValueError("the two lists must be of the same length: where each edge begins, and where it ends")
    return np.stack(both)


Plain = Annotated[list[float], Field(fail_fast=True)]
Numbers = Annotated[Plain, AfterValidator(np.array)]
WholeNumbers = Annotated[list[int], Field(fail_fast=True), AfterValidator(_whole_numbers)]
Table = Annotated[list[Plain], Field(fail_fast=True), AfterValidator(_table)]
Share = Annotated[float, Field(gt=0, lt=1)]
ANY_NUMBERS = TypeAdapter(Plain, config={"strict": True, "allow_inf_nan": False})


class Options(BaseModel):
    """What is asked of a graph."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    directed: bool | None = Field(None, description="Whether edges lead one way only; else as /memory says.")
    reject: Share | None = Field(
        None,
        description="Nodes of no known class are rejected, so that about this share of known nodes is lost; send all "
        "nodes within hops_to_reject of /memory.",
    )
    coverage: Share | None = Field(None, description="Sets of classes that hold a node's own this often.")
    probabilities: bool | None = Field(None, description="false leaves those of all classes out of the answer.")


class GraphBody(Options):
    """A graph, and what is asked of it. Whole numbers are written without a point."""

    x: Table | None = Field(
        None, description="Features, in the order of feature_names in /memory: one list per node; or else sparse."
    )
    x_indices: WholeNumbers | None = Field(None, description="Of sparse features, as CSR: the column of each value.")
    x_indptr: WholeNumbers | None = Field(None, description="Where the values of each node begin, and their number.")
    x_values: Numbers | None = None
    x_shape: WholeNumbers | None = Field(None, description="Numbers of nodes and of features.")
    edge_index: Annotated[tuple[WholeNumbers, WholeNumbers], AfterValidator(_ends)] = Field(
        description="Where each edge begins, and where it ends; [[], []] for none."
    )
    edge_weight: Numbers | None = Field(None, description="The weight of each edge; all are one where it is missing.")
    nodes: WholeNumbers | None = Field(None, description="The nodes in question; all where it is missing.")
    degree: Numbers | None = Field(
        None,
        description="How many nodes point to each in the whole graph, or the sum of their edge_weight; else as here.",
    )
    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["x"]}, {"required": list(SPARSE)}]})


# ---------------------------------------------------------------------- parsed


@dataclass(frozen=True, eq=False)
class Question:
    """A parsed request."""

    graph: Graph
    nodes: Nodes | None
    """None for all."""
    options: Options


def read_question(body: bytes | bytearray, kind: str, limits: Limits, directed: bool = False) -> Question:
    """Parse a body of content type JSON or NPZ; `directed` is what edges are where it does not say."""
    try:
        arrays, options = _json(body, limits) if kind == JSON else _npz(body, limits)
    except ValidationError as error:
        raise _refused(error) from None
    if "edge_index" not in arrays:
        raise DataError("edge_index is missing: [[], []] where there are no edges.")
    ends, weights, nodes = arrays["edge_index"], arrays.get("edge_weight"), arrays.get("nodes")
    if ends.ndim == 2 and ends.shape[1] > limits.edges:
        raise TooLargeError(f"The graph has {ends.shape[1]} edges; at most {limits.edges} are taken (--max-edges).")
    if nodes is not None and (nodes.ndim != 1 or nodes.dtype.kind not in "iu"):
        raise DataError("nodes must be a list of whole numbers.")
    undirected = not (directed if options.directed is None else options.directed)
    graph = checked_graph(_features(arrays, limits), ends, undirected=undirected, weights=weights)
    if "degree" in arrays:
        graph = _with_degree(graph, arrays["degree"], weights is not None)
    return Question(graph, None if nodes is None else nodes.astype(np.int64), options)


def _json(body: bytes | bytearray, limits: Limits) -> tuple[dict[str, Any], Options]:
    # Counted before parsing makes an object of each.
    if body.count(b"[") + body.count(b"{") > limits.nodes + OTHER_LISTS:
        raise TooLargeError(f"The body holds more lists than a graph of {limits.nodes} nodes (--max-nodes) takes.")
    table, rest = table_of_zeros(body) or (None, body)
    found = GraphBody.model_validate_json(rest)
    arrays = {name: value for name, value in found if isinstance(value, np.ndarray)}
    if table is not None and found.x is None and "x" in found.model_fields_set:
        arrays["x"] = table
    return arrays, found


def _npz(body: bytes | bytearray, limits: Limits) -> tuple[dict[str, Any], Options]:
    """The arrays of an .npz file; sizes are checked before anything is unpacked."""

    def is_wanted(name: str) -> bool:
        if name not in GraphBody.model_fields and name not in OF_GRAPH_FILES:
            raise DataError(f"The array '{name[:40]}' is not known.{did_you_mean(name[:40], GraphBody.model_fields)}")
        return name in GraphBody.model_fields

    def allow(unpacked: int) -> None:
        if unpacked > limits.bytes:
            raise TooLargeError(
                f"The arrays take {unpacked} bytes when unpacked; at most {limits.bytes} are taken (--max-bytes)."
            )

    unreadable = "The body is no readable .npz file: it is damaged, cut short or something else."
    arrays: dict[str, Any] = read_npz(npz_of(body), is_wanted, allow, unreadable)
    scalars = {name: arrays.pop(name).tolist() for name in Options.model_fields if name in arrays}
    return arrays, Options.model_validate(scalars)


def _refused(error: ValidationError) -> DataError:
    """What is wrong with a body, in a sentence."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    kind, message = first["type"], first["msg"].removeprefix("Value error, ")[:200]
    name = ".".join(map(str, first["loc"]))[:40]
    if kind == "json_invalid":
        return MalformedError(f"The body is no JSON that can be read: {message}.")
    if kind == "extra_forbidden":
        return DataError(f"'{name}' is not known.{did_you_mean(name, GraphBody.model_fields)}")
    return DataError(f"{name} is missing." if kind == "missing" else f"{name or 'The body'}: {message}.")


def _features(arrays: dict[str, Any], limits: Limits) -> Features:
    sparse = [name for name in SPARSE if name in arrays]
    if ("x" in arrays) == bool(sparse) or (sparse and len(sparse) < len(SPARSE)):
        sent = ", ".join(sparse + ["x"] * ("x" in arrays)) or "none of them"
        raise DataError(f"Features are either x, one list per node, or sparse: {', '.join(SPARSE)}; sent were {sent}.")
    shape = arrays["x_shape"] if sparse else np.array(arrays["x"].shape)
    if sparse and (shape.shape != (2,) or shape.dtype.kind not in "iu"):
        raise DataError("x_shape is two whole numbers: nodes and features.")
    is_table = len(shape) == 2
    if is_table and shape[0] > limits.nodes:
        raise TooLargeError(
            f"The graph has {shape[0]} nodes; at most {limits.nodes} are taken (--max-nodes): send the nodes in "
            "question with their neighbourhood, in several requests."
        )
    with np.errstate(over="ignore"):  # overflows become infinite, which is refused
        if sparse:
            return csr([arrays[name] for name in SPARSE], Path("The request")).astype(np.float32)
        x = arrays["x"]
        if isinstance(x, np.ndarray):
            x = np.ascontiguousarray(x, dtype=np.float32)
            x = sp.csr_array(x) if is_table and MOSTLY_ZERO * np.count_nonzero(x) < x.size else x
        return x


def _with_degree(graph: Graph, degree: NDArray[Any], weighted: bool) -> Graph:
    """`degree` counts edges; where they are `weighted`, it is the sum of their weights."""
    here, most = graph.neighbours.degree, np.finfo(np.float32).max if weighted else MOST_NEIGHBOURS
    if degree.shape != here.shape or not ((degree >= here * (1 - ROUNDING)) & (degree <= most)).all():
        raise DataError(
            f"degree must be {graph.num_nodes} numbers, none larger than in any graph: how many nodes point to each in "
            "the whole graph, at least as many as here."
        )
    if not weighted and not (degree == np.floor(degree)).all():
        raise DataError("degree must hold whole numbers where edges have no weights.")
    whole = degree if weighted else degree.astype(np.int64)
    return Graph(graph.x, replace(graph.neighbours, whole_degree=whole), symmetric=graph.symmetric)


# ---------------------------------------------------------------------- wide tables in JSON

OPENING = re.compile(rb'"x"\s*:\s*(\[\[)')
BETWEEN_ROWS = re.compile(rb"\] ?, ?\[")
ZERO = re.compile(rb"(?:^|, ?)(-?0(?:\.0{1,3})?)(, ?)")
"""A number that is zero, and the comma behind it."""


def table_of_zeros(body: bytes | bytearray) -> tuple[sp.csr_array, bytes] | None:
    """The table "x" of a JSON object where it is mostly zeros, and the object with null in its place; else None.

    No object is made of a zero: all must be written alike, and their places follow from the commas.
    """
    opening = OPENING.search(body)
    end = -1 if opening is None else body.find(b"]]", opening.end())
    if opening is None or end < 0:
        return None
    rows = BETWEEN_ROWS.split(bytes(body[opening.end() : end]))
    n, width, first = len(rows), rows[0].count(b",") + 1, ZERO.search(rows[0])
    if first is None or any(row.count(b",") + 1 != width for row in rows):
        return None
    zero, comma = first[1], first[2]
    text = comma.join(rows)
    characters = np.frombuffer(text, np.uint8)
    commas = np.flatnonzero(characters == ord(","))
    places = np.unique(np.searchsorted(commas, np.flatnonzero(characters > ord("0"))))
    if MOSTLY_ZERO * len(places) >= n * width:
        return None
    starts = np.where(places > 0, commas[places - 1] + len(comma), 0).tolist()
    stops = np.where(places < len(commas), commas[places.clip(max=len(commas) - 1)], len(text)).tolist()
    zeros = [text[i:j] for i, j in zip([0, *stops], [*starts, len(text)], strict=True)]
    if zero.join(zeros) + comma != (zero + comma) * (n * width):
        return None
    numbers = b",".join(text[i:j] for i, j in zip(starts, stops, strict=True))
    try:
        values = np.array(ANY_NUMBERS.validate_json(b"[" + numbers + b"]"), dtype=np.float64)
    except ValidationError:
        return None
    if len(values) != len(places):
        return None
    with np.errstate(over="ignore"):  # overflows become infinite, which is refused
        table = sp.csr_array((values.astype(np.float32), np.divmod(places, width)), shape=(n, width))
    return table, b"".join([body[: opening.start(1)], b"null", body[end + 2 :]])
