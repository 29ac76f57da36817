"""Request bodies, parsed (see bodies.py): limits hold before room is made for what is sent."""

from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.data.datasets.readers import SPARSE, csr
from ipal.data.graph import Features, Graph, Nodes, checked_graph
from ipal.deploy.serving.bodies import JSON
from ipal.deploy.serving.limits import Limits, MalformedError, TooLargeError
from ipal.deploy.serving.tables import mostly_zeros
from ipal.errors import DataError, did_you_mean
from ipal.system.arrays import npz_of, read_npz

SCALARS = ("reject", "coverage", "directed", "probabilities")
OPTIONS = ("edge_weight", "nodes", "degree", *SCALARS)
SPARSE_KEYS = tuple(name.removeprefix("x_") for name in SPARSE)
OF_GRAPH_FILES = ("y", "train", "forget")
"""Arrays of graph files that are ignored."""
OBJECTS, QUOTES, OTHER_LISTS = 2, 64, 16
"""Most of these characters in a valid JSON request; of lists, one more per row of features."""
MOST_NEIGHBOURS = 2**31
ROUNDING = 1e-5
"""By this share, sums of weights may be too small."""
MOSTLY_ZERO = 16
"""Dense features with fewer than one nonzero in so many are converted to sparse ones, which is faster."""

Parts = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Question:
    """A parsed request."""

    graph: Graph
    nodes: Nodes | None
    """None for all."""
    reject: float | None
    """Share of known nodes that may be lost."""
    coverage: float | None
    probabilities: bool | None
    """Whether the response includes the probabilities of all classes; it does where None."""


def read_question(body: bytes | bytearray, kind: str, limits: Limits, directed: bool = False) -> Question:
    """Parse a body of content type JSON or NPZ; `directed` is the default."""
    parts = _json_parts(body, limits) if kind == JSON else _npz_parts(body, limits)
    x, edges, weights = _features(parts, limits), _edges(parts, limits), parts.get("edge_weight")
    said = _flag(parts, "directed")
    graph = checked_graph(x, edges, undirected=not (directed if said is None else said), weights=weights)
    return Question(
        graph=_with_degree(graph, parts["degree"], weights is not None) if "degree" in parts else graph,
        nodes=_listed(parts["nodes"], "nodes") if "nodes" in parts else None,
        reject=_share(parts, "reject"),
        coverage=_share(parts, "coverage"),
        probabilities=_flag(parts, "probabilities"),
    )


def _json_parts(body: bytes | bytearray, limits: Limits) -> Parts:
    # Counted before parsing makes an object of each.
    characters = np.frombuffer(body, dtype=np.uint8)
    lists, objects, quotes = (np.count_nonzero(characters == ord(sign)) for sign in '[{"')
    if lists > limits.nodes + OTHER_LISTS:
        raise TooLargeError(f"The body holds more lists than a graph of {limits.nodes} nodes (--max-nodes) takes.")
    if objects > OBJECTS or quotes > QUOTES:
        raise DataError(f"The body holds more than a graph: {_known()}.")
    table, rest = mostly_zeros(body, MOSTLY_ZERO) or (None, body)
    found = _decoded(rest, dict[str, msgspec.Raw])
    for name in found:
        if name not in ("x", "edge_index", *OPTIONS):
            raise DataError(f"'{name[:40]}' is not known.{did_you_mean(name[:40], ['x', 'edge_index', *OPTIONS])}")
    parts = {name: value for name, raw in found.items() if (value := _decoded(raw)) is not None}
    if table is not None and bytes(found.get("x", b"")) == b"null":  # it may be part of something else
        parts["x"] = table
    elif "x" in parts:
        parts |= _json_features(parts.pop("x"), limits)
    if "edge_index" in parts:
        ends = [_whole_numbers(end, "edge_index") for end in _list(parts["edge_index"], "edge_index")]
        if len(ends) != 2 or len(ends[0]) != len(ends[1]):
            raise DataError("edge_index must be two lists of the same length: where each edge begins, where it ends.")
        parts["edge_index"] = np.stack(ends)
    for name in {"nodes", "degree", "edge_weight"} & parts.keys():
        is_whole = name == "nodes" or "edge_weight" not in parts
        parts[name] = _whole_numbers(parts[name], name) if is_whole else _numbers(parts[name], name, np.float64)
    return parts


def _decoded(text: bytes | bytearray | msgspec.Raw, kind: Any = Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if "Expected `object`" in str(error):
            raise DataError(f"The body must be a JSON object with {_known()}.") from error
        raise MalformedError(f"The body is no JSON that can be read: {error}.") from error


def _json_features(x: Any, limits: Limits) -> Parts:
    if not isinstance(x, dict):
        return {"x": _table(x, limits)}
    if sorted(x) != sorted(SPARSE_KEYS):
        raise DataError(f"Sparse features x are an object with {', '.join(SPARSE_KEYS)}, no more and no less.")
    kinds = {name: _numbers if name == "values" else _whole_numbers for name in SPARSE_KEYS}
    return {f"x_{name}": read(x[name], f"x.{name}") for name, read in kinds.items()}


def _known() -> str:
    return f"x, edge_index and, if wanted, {', '.join(OPTIONS)}"


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"{name} must be a list.")
    return value


def _numbers(values: Any, name: str, kind: type[np.floating[Any]] = np.float32) -> NDArray[Any]:
    """A list of numbers. numpy itself would also accept strings and truth."""
    try:
        if set(map(type, _list(values, name))) <= {int, float}:
            return np.asarray(array(np.dtype(kind).char, values))
    except OverflowError:
        pass
    raise DataError(f"{name} must hold numbers of single precision only.")


def _whole_numbers(values: Any, name: str) -> NDArray[np.int64]:
    if not set(map(type, _list(values, name))) <= {int}:  # bool is a subclass of int
        raise DataError(f"{name} must hold whole numbers only.")
    try:
        return np.asarray(array("q", values), dtype=np.int64)
    except OverflowError as error:
        raise DataError(f"{name} holds a number of more than 64 bits.") from error


def _table(rows: Any, limits: Limits) -> NDArray[np.float32]:
    """Dense features, row by row."""
    _check_nodes(len(_list(rows, "x")), limits)
    for place, row in enumerate(rows):
        if len(_list(row, f"Row {place} of x")) != len(rows[0]):
            raise DataError(f"Row {place} of x has {len(row)} numbers, row 0 has {len(rows[0])}.")
    found = np.empty((len(rows), len(rows[0]) if rows else 0), dtype=np.float32)
    for place, row in enumerate(rows):
        found[place] = _numbers(row, f"Row {place} of x")
    return found


def _npz_parts(body: bytes | bytearray, limits: Limits) -> Parts:
    """The arrays of an .npz file; sizes are checked before anything is unpacked."""
    wanted = ("x", "edge_index", *SPARSE, *OPTIONS)

    def is_wanted(name: str) -> bool:
        if name not in (*wanted, *OF_GRAPH_FILES):
            raise DataError(f"The array '{name[:40]}' is not known.{did_you_mean(name[:40], wanted)}")
        return name in wanted

    def allow(_: int, unpacked: int) -> None:
        if unpacked > limits.bytes:
            raise TooLargeError(
                f"The arrays take {unpacked} bytes when unpacked; at most {limits.bytes} are taken (--max-bytes)."
            )

    unreadable = "The body is no readable .npz file: it is damaged, cut short or something else."
    arrays = read_npz(npz_of(body), is_wanted, allow, unreadable)
    return {name: values.item() if name in SCALARS and values.ndim == 0 else values for name, values in arrays.items()}


def _features(parts: Parts, limits: Limits) -> Features:
    sparse = [name for name in SPARSE if name in parts]
    if "x" in parts and sparse:
        raise DataError("Features were sent twice: as x and as sparse ones.")
    if "x" in parts:
        x = parts["x"]
        if x.ndim == 2:
            _check_nodes(x.shape[0], limits)
        if isinstance(x, sp.csr_array):
            return x
        with np.errstate(over="ignore"):  # overflows become infinite, which is refused
            x = np.ascontiguousarray(x, dtype=np.float32)
        return sp.csr_array(x) if x.ndim == 2 and MOSTLY_ZERO * np.count_nonzero(x) < x.size else x
    if not sparse:
        raise DataError("x is missing: the features of every node, as a table or sparse.")
    if len(sparse) < len(SPARSE):
        raise DataError(f"Sparse features are made of {', '.join(SPARSE)}; sent were only {', '.join(sparse)}.")
    shape = parts["x_shape"]
    if shape.shape != (2,) or shape.dtype.kind not in "iu":
        raise DataError("The shape of sparse features is two whole numbers: nodes and features.")
    _check_nodes(int(shape[0]), limits)
    with np.errstate(over="ignore"):
        return csr([parts[name] for name in SPARSE], Path("The request")).astype(np.float32)


def _check_nodes(n: int, limits: Limits) -> None:
    if n > limits.nodes:
        raise TooLargeError(
            f"The graph has {n} nodes; at most {limits.nodes} are taken (--max-nodes): send the nodes in question with "
            "their neighbourhood, in several requests."
        )


def _edges(parts: Parts, limits: Limits) -> NDArray[np.generic]:
    if "edge_index" not in parts:
        raise DataError("edge_index is missing: [[], []] where there are no edges.")
    ends: NDArray[np.generic] = parts["edge_index"]
    if ends.ndim == 2 and ends.shape[1] > limits.edges:
        raise TooLargeError(f"The graph has {ends.shape[1]} edges; at most {limits.edges} are taken (--max-edges).")
    return ends


def _with_degree(graph: Graph, degree: NDArray[Any], weighted: bool) -> Graph:
    """`degree` counts edges; where they are `weighted`, it is the sum of their weights."""
    if not weighted or degree.dtype.kind != "f":
        degree = _listed(degree, "degree")
    if degree.shape != (graph.num_nodes,):
        raise DataError(f"degree holds {degree.size} numbers for {graph.num_nodes} nodes: one per node is needed.")
    here = graph.neighbours.degree
    if not (enough := degree >= here * (1 - ROUNDING if weighted else 1)).all():
        node = int(enough.argmin())
        raise DataError(
            f"degree says that {degree[node]} nodes point to node {node} in the whole graph, but {here[node]} do here."
        )
    if degree.max() > (np.finfo(np.float32).max if weighted else MOST_NEIGHBOURS):
        raise DataError("degree says that a node has more neighbours than any graph has.")
    return Graph.of(graph.x, replace(graph.neighbours, whole_degree=degree), symmetric=graph.symmetric)


def _listed(values: NDArray[Any], name: str) -> NDArray[np.int64]:
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise DataError(f"{name} must be a list of whole numbers.")
    return values.astype(np.int64)


def _share(parts: Parts, name: str) -> float | None:
    value = parts.get(name)
    if value is None:
        return None
    if not isinstance(value, float) or not 0 < value < 1:
        raise DataError(f"{name} must be a share, a number between 0 and 1.")
    return value


def _flag(parts: Parts, name: str) -> bool | None:
    value = parts.get(name)
    if value is not None and not isinstance(value, bool):
        raise DataError(f"{name} must be true or false.")
    return value
