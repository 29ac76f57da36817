"""Nodes to be forgotten or corrected, and the graph that they were learned in: an .npz file with more arrays, or tables
of nodes and edges, whose nodes with a label taught.

    train    one True or False a node: those that taught; all that have a label where it is missing
    forget   one True or False a node: those that are to go (or said by number: see `read_departures`)
    new_y    one label a node, as y: what they should have been learned as (see `read_correction`)

Plain arrays only; what the model makes of them is the learner's affair.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipal.data.datasets.catalog import find
from ipal.data.datasets.node_ids import node_numbers_in
from ipal.data.datasets.readers import read_arrays, read_plain
from ipal.data.graph import checked_graph
from ipal.data.graph_data import GraphData
from ipal.data.labels import checked_ids, file_labels, labelled
from ipal.data.names import is_table
from ipal.errors import DataError


def read_departures(paths: Sequence[Path], which: str | None = None, *, undirected: bool = True) -> list[GraphData]:
    """Read graphs and who is to leave them: `which` are ids or numbers with commas, or a file with one a line."""
    read = [_read(path, "forget", undirected) for path in paths]
    marked = [path for path, (_, marks) in zip(paths, read, strict=True) if "forget" in marks]
    if which is not None and marked:
        raise DataError(f"{marked[0]} has an array forget, and --which was given: say only once which nodes are to go.")
    if which is None and not marked:
        how = "give" if _in_tables(paths[0]) else "add it (one True or False a node), or give"
        raise DataError(f"{paths[0]} has no array forget, which says who is to go: {how} --which 3,17,25.")
    named = None if which is None else node_numbers_in(which, [(one.num_nodes, one.ids) for one, _ in read], "--which")
    found = []
    for number, (path, (taught, marks)) in enumerate(zip(paths, read, strict=True)):
        forget = np.zeros(taught.num_nodes, dtype=np.bool_)
        if named is not None:
            forget[named[number]] = True
        elif "forget" in marks:
            forget = _mask(marks["forget"], "forget", taught.num_nodes, path)
        found.append(replace(taught, forget_mask=forget))
    if not any(one.forget_mask.any() for one in found if one.forget_mask is not None):
        raise DataError("No node is marked to be forgotten: nothing is to be done.")
    return found


def read_correction(path: Path, *, undirected: bool = True) -> GraphData:
    """Read a graph, the labels that nodes were learned with, and the right ones."""
    taught, marks = _read(path, "new_y", undirected)
    if "new_y" not in marks:
        raise DataError(f"{path} has no array new_y: add it, the right label of every node; y has those learned.")
    return replace(taught, new_y=file_labels(marks["new_y"], taught.num_nodes))


def read_taught(path: Path, *, undirected: bool = True) -> GraphData:
    """Read a graph, labels, and the nodes that they are meant for."""
    return _read(path, "train", undirected)[0]


def _in_tables(path: Path) -> bool:
    return is_table(str(path)) or path.is_dir()


def _read(path: Path, more: str, undirected: bool) -> tuple[GraphData, dict[str, NDArray[Any]]]:
    """A graph and who taught in it; and one more array."""
    try:
        entry = find(f"{path}/" if path.is_dir() else str(path), Path()) if _in_tables(path) else None
        raw = entry.read(Path(entry.path)) if entry else read_plain(path)
        marks = {} if entry else read_arrays(path, list({more, "train"}))
    except FileNotFoundError as error:
        raise DataError(f"The graph file {path} does not exist.") from error
    if raw.x is None:
        raise DataError(
            f"{path} has no features (x): those that 'ipal run' makes up for such a graph depend on all of its nodes, "
            "so that nothing that they taught can be taken away exactly."
        )
    graph = checked_graph(raw.x, raw.edges, undirected=undirected, weights=raw.edge_weight, columns=raw.columns)
    n = graph.num_nodes
    y = file_labels(raw.y, n)
    train = _mask(marks["train"], "train", n, path) if "train" in marks else labelled(y)
    if not train.any():
        why = f"The array train of {path} marks no node" if "train" in marks else f"No node of {path} has a label"
        raise DataError(f"{why}: nothing was learned from this graph.")
    taught = GraphData(
        x=graph.x,
        edge_index=graph.edges,
        edge_weight=graph.edge_weight,
        y=y,
        train_mask=train,
        ids=None if raw.ids is None else checked_ids(raw.ids, n),
        columns=graph.columns,
    )
    return taught, marks


def _mask(values: NDArray[Any], name: str, n: int, path: Path) -> NDArray[np.bool_]:
    if values.shape != (n,) or values.dtype != np.bool_:
        found = f"{values.dtype} of the shape {tuple(values.shape)}"
        raise DataError(
            f"The array {name} of {path} must hold one True or False for each of the {n} nodes; this one holds {found}."
        )
    return values
