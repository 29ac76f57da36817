"""Request bodies, parsed (see bodies.py): limits hold before room is made for what is sent."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from ipal.data.datasets.readers import SPARSE, csr
from ipal.data.graph import Features, Graph, Nodes, checked_graph
from ipal.deploy.serving.bodies import JSON
from ipal.deploy.serving.limits import Limits
from ipal.deploy.serving.schema import GraphBody, Numbers, Options, SparseFeatures
from ipal.errors import DataError, did_you_mean
from ipal.system.arrays import MalformedError, TooLargeError, npz_of, read_npz

OF_GRAPH_FILES = ("y", "train", "forget")
"""Arrays of graph files that are ignored."""
OTHER_LISTS = 16
"""Most lists and objects in a valid JSON request, besides the rows of features."""
MOST_NEIGHBOURS = 2**31
ROUNDING = 1e-5
"""By this share, sums of weights may be too small."""
MOSTLY_ZERO = 16
"""Dense features with fewer than one nonzero in so many are converted to sparse ones, which is faster."""
TABLE = re.compile(rb'"x"\s*:\s*\[\[')
ZERO = re.compile(rb"[\[ ](-?0(?:\.0{1,3})?, ?)")
"""A zero and the comma behind it."""
LONGEST = 32
"""Characters of a number."""
OF_ELEMENTS = ~np.isin(np.arange(256), list(b", "))
ANY_NUMBERS = TypeAdapter(Numbers, config={"strict": True, "allow_inf_nan": False})
KINDS = dict.fromkeys(("edge_index", "nodes", "x_indices", "x_indptr", "x_shape"), np.int64) | dict.fromkeys(
    ("degree", "edge_weight", "x_values"), np.float64
)
WITH_ARRAYS = {"x", "edge_index", *SPARSE, *GraphBody.model_fields}


@dataclass(frozen=True, eq=False)
class Question:
    """A parsed request."""

    graph: Graph
    nodes: Nodes | None
    """None for all."""
    options: Options


def read_question(body: bytes | bytearray, kind: str, limits: Limits, directed: bool = False) -> Question:
    """Parse a body of content type JSON or NPZ; `directed` is the default."""
    arrays, options = _json(body, limits) if kind == JSON else _npz(body, limits)
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


# ---------------------------------------------------------------------- JSON

Parts = tuple[dict[str, Any], Options]
"""Arrays by their names in an .npz file, and the rest."""


def _json(body: bytes | bytearray, limits: Limits) -> Parts:
    # Counted before parsing makes an object of each.
    characters = np.frombuffer(body, dtype=np.uint8)
    if sum(np.count_nonzero(characters == ord(sign)) for sign in "[{") > limits.nodes + OTHER_LISTS:
        raise TooLargeError(f"The body holds more lists than a graph of {limits.nodes} nodes (--max-nodes) takes.")
    table, rest = _table_of_zeros(body) or (None, body)
    try:
        found = GraphBody.model_validate_json(rest)
        if table is not None and (found.x is not None or "x" not in found.model_fields_set):
            table, found = None, GraphBody.model_validate_json(body)  # it was part of something else
    except ValidationError as error:
        raise _refused(error) from None
    if len(found.edge_index[0]) != len(found.edge_index[1]):
        raise DataError("edge_index must be two lists of the same length: where each edge begins, where it ends.")
    given: dict[str, Any] = {name: getattr(found, name) for name in ("edge_index", "nodes", "degree", "edge_weight")}
    if isinstance(found.x, SparseFeatures):
        given |= {name: getattr(found.x, name.removeprefix("x_")) for name in SPARSE}
    try:
        arrays = {name: np.array(part, dtype=KINDS[name]) for name, part in given.items() if part is not None}
    except OverflowError:
        raise DataError("The body holds a whole number of more than 64 bits.") from None
    if isinstance(found.x, list):
        table = _table(found.x)
    return arrays if table is None else {"x": table, **arrays}, found


def _table_of_zeros(body: bytes | bytearray) -> tuple[sp.csr_array, bytes] | None:
    """The table "x" of a JSON object where it is mostly zeros, and the object with null instead; else None.

    No object is made of a zero: all other numbers are parsed as one list, and the text between them must be zeros that
    are written as the first one. The place of a number follows from the length of that text.
    """
    opening = TABLE.search(body)
    first = ZERO.search(body, opening.end() - 1, opening.end() + 4096) if opening else None
    if opening is None or first is None:
        return None
    begin, zero, comma = opening.end() - 1, first[1], first[1][first[1].index(b",") :]
    closing = np.flatnonzero(np.frombuffer(body, np.uint8)[begin:] == ord("]"))
    last = np.flatnonzero(np.diff(closing) == 1)
    if not len(last):
        return None
    closing, end = closing[: last[0] + 1], begin + int(closing[last[0]]) + 1
    text, rest = bytes(body[begin:end]) + comma, b"".join([body[: begin - 1], b"null", body[end + 1 :]])
    starts, stops = _tokens(text, len(comma))
    gaps = b"".join([text[i:j] for i, j in zip(stops.tolist(), [*starts[1:].tolist(), len(text)], strict=True)])
    length = (len(gaps) // len(zero) + len(starts)) // len(closing)
    zeros_before = (starts - np.concatenate([[0], np.cumsum(stops - starts)[:-1]])) // len(zero)
    places = zeros_before + np.arange(len(starts))
    row_ends = places[np.searchsorted(starts, closing, "right") - 1] + 1
    if (
        rest.count(b'"x"') != 1
        or b"\\" in rest  # an escaped x is an x
        or MOSTLY_ZERO * len(starts) >= length * len(closing)
        or gaps != zero * (len(gaps) // len(zero))
        or (row_ends != length * np.arange(1, len(closing) + 1)).any()
    ):
        return None
    numbers = b"".join([text[i:j] for i, j in zip(starts.tolist(), stops.tolist(), strict=True)])
    try:
        rows_as_one = numbers.removesuffix(comma).replace(b"]" + comma + b"[", comma)
        values = np.array(ANY_NUMBERS.validate_json(rows_as_one), dtype=np.float64)
    except ValidationError:
        return None
    indptr = np.searchsorted(places, length * np.arange(len(closing) + 1))
    with np.errstate(over="ignore"):  # overflows become infinite, which is refused
        table = sp.csr_array((values.astype(np.float32), places % length, indptr), shape=(len(closing), length))
    table.eliminate_zeros()
    return table, rest


def _tokens(text: bytes, comma: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where a list's elements begin and end, but for those of zeros and points alone; a comma is so many characters."""
    characters = np.frombuffer(text, np.uint8)
    marks = np.flatnonzero(characters > ord("0"))  # digits but 0, letters, brackets
    starts = marks[np.diff(marks, prepend=-2) > 1]
    stops = starts.copy()
    for _ in range(LONGEST):
        before, behind = OF_ELEMENTS[characters[starts - 1]], OF_ELEMENTS[characters[stops]]
        if not before.any() and not behind.any():
            break
        starts -= before
        stops += behind
    return np.unique(starts), np.unique(stops) + comma


def _table(rows: list[list[float]]) -> NDArray[np.float32]:
    """Dense features."""
    for place, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise DataError(f"Row {place} of x has {len(row)} numbers, row 0 has {len(rows[0])}.")
    with np.errstate(over="ignore"):  # overflows become infinite, which is refused
        return np.array(rows, dtype=np.float32).reshape(len(rows), -1 if rows else 0)


def _refused(error: ValidationError) -> DataError:
    """What is wrong with a body, in a sentence."""
    first = max(
        error.errors(include_url=False, include_context=False, include_input=False), key=lambda e: len(e["loc"])
    )
    known = {*GraphBody.model_fields, *SparseFeatures.model_fields}
    name = ".".join(str(part) for part in first["loc"] if isinstance(part, int) or part in known)
    if first["type"] == "json_invalid":
        return MalformedError(f"The body is no JSON that can be read: {first['msg'][:200]}.")
    if first["type"] == "extra_forbidden":
        unknown = str(first["loc"][-1])[:40]
        return DataError(f"'{unknown}' is not known.{did_you_mean(unknown, sorted(known))}")
    if first["type"] == "missing":
        return DataError(f"{name} is missing.")
    return DataError(f"{name or 'The body must be a JSON object'}: {first['msg']}.")


# ---------------------------------------------------------------------- .npz


def _npz(body: bytes | bytearray, limits: Limits) -> Parts:
    """The arrays of an .npz file; sizes are checked before anything is unpacked."""

    def is_wanted(name: str) -> bool:
        if name not in WITH_ARRAYS and name not in OF_GRAPH_FILES:
            raise DataError(f"The array '{name[:40]}' is not known.{did_you_mean(name[:40], sorted(WITH_ARRAYS))}")
        return name in WITH_ARRAYS

    def allow(unpacked: int) -> None:
        if unpacked > limits.bytes:
            raise TooLargeError(
                f"The arrays take {unpacked} bytes when unpacked; at most {limits.bytes} are taken (--max-bytes)."
            )

    unreadable = "The body is no readable .npz file: it is damaged, cut short or something else."
    arrays: dict[str, Any] = read_npz(npz_of(body), is_wanted, allow, unreadable)
    scalars = {name: arrays.pop(name).tolist() for name in Options.model_fields if name in arrays}
    try:
        return arrays, Options.model_validate(scalars)
    except ValidationError as error:
        raise _refused(error) from None


# ---------------------------------------------------------------------- both


def _features(arrays: dict[str, Any], limits: Limits) -> Features:
    sparse = [name for name in SPARSE if name in arrays]
    if "x" in arrays and sparse:
        raise DataError("Features were sent twice: as x and as sparse ones.")
    if "x" in arrays:
        x = arrays["x"]
        if x.ndim == 2:
            _check_nodes(x.shape[0], limits)
        if isinstance(x, np.ndarray):
            with np.errstate(over="ignore"):
                x = np.ascontiguousarray(x, dtype=np.float32)
            x = sp.csr_array(x) if x.ndim == 2 and MOSTLY_ZERO * np.count_nonzero(x) < x.size else x
        return x
    if not sparse:
        raise DataError("x is missing: the features of every node, as a table or sparse.")
    if len(sparse) < len(SPARSE):
        raise DataError(f"Sparse features are made of {', '.join(SPARSE)}; sent were only {', '.join(sparse)}.")
    shape = arrays["x_shape"]
    if shape.shape != (2,) or shape.dtype.kind not in "iu":
        raise DataError("The shape of sparse features is two whole numbers: nodes and features.")
    _check_nodes(int(shape[0]), limits)
    with np.errstate(over="ignore"):
        return csr([arrays[name] for name in SPARSE], Path("The request")).astype(np.float32)


def _check_nodes(n: int, limits: Limits) -> None:
    if n > limits.nodes:
        raise TooLargeError(
            f"The graph has {n} nodes; at most {limits.nodes} are taken (--max-nodes): send the nodes in question with "
            "their neighbourhood, in several requests."
        )


def _with_degree(graph: Graph, degree: NDArray[Any], weighted: bool) -> Graph:
    """`degree` counts edges; where they are `weighted`, it is the sum of their weights."""
    if degree.shape != (graph.num_nodes,):
        raise DataError(f"degree holds {degree.size} numbers for {graph.num_nodes} nodes: one per node is needed.")
    if not weighted and not (degree == np.floor(degree)).all():
        raise DataError("degree must hold whole numbers where edges have no weights.")
    here = graph.neighbours.degree
    if not (enough := degree >= here * (1 - ROUNDING if weighted else 1)).all():
        node = int(enough.argmin())
        raise DataError(
            f"degree says that {degree[node]:g} nodes point to node {node} in the whole graph, but {here[node]} do "
            "here."
        )
    if degree.max() > (np.finfo(np.float32).max if weighted else MOST_NEIGHBOURS):
        raise DataError("degree says that a node has more neighbours than any graph has.")
    whole = degree if weighted else degree.astype(np.int64)
    return Graph.of(graph.x, replace(graph.neighbours, whole_degree=whole), symmetric=graph.symmetric)
