"""Nodes that are to be forgotten, and the graph that they were learned in: a plain .npz file with two more arrays.

    forget   one True or False a node: those that are to go (or said by number: see `read_departure`)
    train    one True or False a node: those that taught; all where it is missing

Plain arrays only; what the model makes of them is the learner's affair.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipal.data.datasets.node_ids import node_numbers
from ipal.data.datasets.readers import read_arrays, read_plain
from ipal.data.graph import Edges, Features, checked_graph
from ipal.errors import DataError


@dataclass(frozen=True, eq=False)
class DepartureFile:
    """What the file says. Its parts are named as in PyTorch Geometric's `Data`, so that it can stand for one."""

    x: Features
    edge_index: Edges
    y: NDArray[Any]
    """Whole numbers or strings, as the model knows its classes."""
    train_mask: NDArray[np.bool_]
    forget_mask: NDArray[np.bool_]
    edge_weight: NDArray[np.float32] | None
    """Of each column of `edge_index`; None where all are one."""


def read_departure(path: Path, which: str | None = None, *, undirected: bool = True) -> DepartureFile:
    """Read a graph and who is to leave it: `which` are numbers with commas, or a file with one number a line."""
    try:
        raw = read_plain(path)
        marks = read_arrays(path, ["forget", "train"])
    except FileNotFoundError as error:
        raise DataError(f"The graph file {path} does not exist.") from error
    if raw.x is None:
        raise DataError(
            f"{path} has no features (x): those that 'ipal run' makes up for such a graph depend on all of its nodes, "
            "so that none of them can be forgotten exactly."
        )
    graph = checked_graph(raw.x, raw.edges, undirected=undirected, weights=raw.edge_weight)
    n = graph.num_nodes
    if which is not None and "forget" in marks:
        raise DataError(f"{path} has an array forget, and --which was given: say only once which nodes are to go.")
    if which is not None:
        forget = np.zeros(n, dtype=np.bool_)
        forget[node_numbers(which, n, "--which")] = True
    elif "forget" in marks:
        forget = _mask(marks["forget"], "forget", n, path)
    else:
        raise DataError(f"{path} has no array forget: add it (one True or False a node), or give --which 3,17,25.")
    if not forget.any():
        raise DataError("No node is marked to be forgotten: nothing is to be done.")
    train = _mask(marks["train"], "train", n, path) if "train" in marks else np.ones(n, dtype=np.bool_)
    if not train.any():
        raise DataError(f"The array train of {path} marks no node: nothing was learned from this graph.")
    return DepartureFile(graph.x, graph.edges, raw.y, train, forget, graph.edge_weight)


def _mask(values: NDArray[Any], name: str, n: int, path: Path) -> NDArray[np.bool_]:
    if values.shape != (n,) or values.dtype != np.bool_:
        found = f"{values.dtype} of the shape {tuple(values.shape)}"
        raise DataError(
            f"The array {name} of {path} must hold one True or False for each of the {n} nodes; this one holds {found}."
        )
    return values
