"""Nodes to be forgotten or corrected, and the graph that they were learned in: an .npz file with more arrays, or any
other graph, whose training nodes are those with a label.

    train    one True or False a node: the training nodes; all that have a label where it is missing
    forget   one True or False a node: those that are to go (or said by number: see `read_departures`)
    new_y    one label a node, as y: what they should have been learned as (see `read_correction`)
"""

from collections.abc import Sequence
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipal.data.datasets import load_to_predict
from ipal.data.datasets.builtin import STRUCTURAL
from ipal.data.datasets.readers import read_arrays
from ipal.data.graph_data import GraphData, node_numbers
from ipal.data.labels import file_labels, labelled
from ipal.errors import DataError


def read_taught(path: Path, *, undirected: bool = True) -> GraphData:
    """Read a graph, its training nodes, and those marked to be forgotten or corrected."""
    dataset = load_to_predict(f"{path}/" if path.is_dir() else str(path), undirected=undirected)
    if dataset.preprocessing == STRUCTURAL:
        raise DataError(
            f"{path} has no features (x): those that 'ipal run' makes up for such a graph depend on all of its nodes, "
            "so that nothing learned from them can be taken away exactly."
        )
    marks = read_arrays(path, ["train", "forget", "new_y"]) if path.suffix == ".npz" and isfile(path) else {}
    n = dataset.graph.num_nodes
    train, forget = (_mask(marks.get(name), name, n, path) for name in ("train", "forget"))
    train = labelled(dataset.y) if train is None else train
    if not train.any():
        raise DataError(f"No node of {path} has a label, or its array train marks none: nothing was learned from it.")
    new_y = file_labels(marks["new_y"], n) if "new_y" in marks else None
    return replace(GraphData.of(dataset), y=dataset.y, train_mask=train, forget_mask=forget, new_y=new_y)


def new_since(graph: GraphData, before: GraphData) -> GraphData:
    """A graph whose training nodes are none of an earlier one: by ids, or by numbers where neither has ids."""
    if (graph.ids is None) != (before.ids is None):
        raise DataError("Only one of these two graphs has ids of nodes: give them to both.")
    names, learned = (np.arange(one.num_nodes) if one.ids is None else one.ids for one in (graph, before))
    train = np.asarray(graph.train_mask) & ~np.isin(names, learned[np.asarray(before.train_mask)])
    return replace(graph, train_mask=train)


def read_departures(paths: Sequence[Path], which: str | None = None, *, undirected: bool = True) -> list[GraphData]:
    """Read graphs and who is to leave them: `which` are ids or numbers with commas."""
    graphs = [read_taught(path, undirected=undirected) for path in paths]
    if (which is None) == all(graph.forget_mask is None for graph in graphs):
        raise DataError(
            f"Say once which nodes of {paths[0]} are to go: with --which 3,17,25, or in an .npz file with an array "
            "forget, one True or False a node."
        )
    if which is not None:
        named = node_numbers(which.split(","), "--which", *((one.num_nodes, one.ids) for one in graphs))
        masks = [np.isin(np.arange(one.num_nodes), nodes) for one, nodes in zip(graphs, named, strict=True)]
        graphs = [replace(graph, forget_mask=mask) for graph, mask in zip(graphs, masks, strict=True)]
    if not any(graph.forget_mask is not None and graph.forget_mask.any() for graph in graphs):
        raise DataError("No node is marked to be forgotten: nothing is to be done.")
    return graphs


def read_correction(path: Path, *, undirected: bool = True) -> GraphData:
    """Read a graph, the labels that nodes were learned with, and the right ones."""
    graph = read_taught(path, undirected=undirected)
    if graph.new_y is None:
        raise DataError(f"{path} has no array new_y: add it, the right label of every node; y has those learned.")
    return graph


def _mask(values: NDArray[Any] | None, name: str, n: int, path: Path) -> NDArray[np.bool_] | None:
    if values is not None and (values.shape != (n,) or values.dtype != np.bool_):
        found = f"{values.dtype} of the shape {tuple(values.shape)}"
        raise DataError(
            f"The array {name} of {path} must hold one True or False for each of the {n} nodes; this one holds {found}."
        )
    return values
