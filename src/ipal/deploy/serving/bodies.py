"""Request bodies, written for clients: needs nothing of the extra `serve`.

JSON and .npz have the same names; only sparse features are `x: {indices, indptr, values, shape}` in JSON,
and four arrays `x_indices`, … in an .npz file, as in the graph files that `ipal run` reads.
"""

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from pydantic_core import to_json

from ipal.data.datasets.readers import SPARSE
from ipal.data.graph import Graph

JSON, NPZ = "application/json", "application/x-npz"


def npz_body(graph: Graph, nodes: Iterable[int] | None = None, **options: Any) -> bytes:
    """A request as an .npz file, to be sent as application/x-npz; `options` are reject, coverage and probabilities."""
    file = io.BytesIO()
    np.savez(file, **_parts(graph, nodes, options))
    return file.getvalue()


def json_body(graph: Graph, nodes: Iterable[int] | None = None, **options: Any) -> bytes:
    """The same as JSON, to be sent as application/json."""
    found = _parts(graph, nodes, options)
    parts = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in found.items()}
    if "x" not in parts:
        parts["x"] = {name.removeprefix("x_"): parts.pop(name) for name in SPARSE}
    return to_json(parts)


def _parts(graph: Graph, nodes: Iterable[int] | None, options: dict[str, Any]) -> dict[str, Any]:
    """What a request holds, with the names of an .npz file."""
    x = graph.x
    parts: dict[str, Any] = {"edge_index": graph.edges, "directed": not graph.symmetric, **options}
    if isinstance(x, np.ndarray):
        parts["x"] = x
    else:
        parts |= {"x_values": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": np.array(x.shape)}
    if (weights := graph.edge_weight) is not None:
        parts["edge_weight"] = weights
    if graph.neighbours.whole_degree is not None:
        parts["degree"] = graph.neighbours.whole_degree
    if nodes is not None:
        parts["nodes"] = np.asarray(list(nodes), dtype=np.int64)
    return parts
