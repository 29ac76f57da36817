"""From a name or a path to one labelled graph, with a record of what was done to it."""

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from ipal.data.csr import Neighbours
from ipal.data.dataset import Dataset, checked_facts
from ipal.data.datasets import catalog, folders
from ipal.data.datasets.builtin import STRUCTURAL, structural_features
from ipal.data.datasets.readers import RawGraph
from ipal.data.datasets.several import side_by_side
from ipal.data.graph import checked_graph
from ipal.data.labels import Labels, checked_ids, file_labels, labelled
from ipal.errors import ConfigError, DataError, IpalError, StoreError, shortened

__all__ = ["Dataset", "checked", "convert", "edge_homophily", "load", "load_to_predict", "look"]


def load(name: str, root: Path | None = None, *, undirected: bool = True) -> Dataset:
    """Read a graph by its name (see `ipal list datasets`), as `synthetic:nodes=…`, or from an .npz file or a folder.

    Parameters
    ----------
    name : str
        Name or path. Several, separated by commas, give one dataset with all graphs side by side.
    root : Path, optional
        The data root. Default: the environment variable `IPAL_DATA`, or `~/.cache/ipal`.
    undirected : bool, default=True
        Whether edges run both ways.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        If no node has a label.
    """
    dataset = load_to_predict(name, root, undirected=undirected)
    if not dataset.num_classes:
        raise DataError(f"No node of {dataset.name} has a label: add the array y (of a table, the column label).")
    return dataset


def load_to_predict(name: str, root: Path | None = None, *, undirected: bool = True) -> Dataset:
    """As `load`, also where no node has a label."""
    folder = catalog.data_root(root)
    every = [_one(name, folder, undirected) for name in catalog.names_in(name, folder)]
    return every[0] if len(every) == 1 else side_by_side(every)


def _one(name: str, folder: Path, undirected: bool) -> Dataset:
    entry = catalog.find(name, folder)
    if entry.make:
        return checked(name, _made(name, entry), entry, undirected=undirected)
    if folders.holds_graph(folder / entry.path):
        return folders.open_folder(folder / entry.path, entry.name, undirected=undirected)
    try:
        raw = entry.read(folder / entry.path)
    except FileNotFoundError as error:
        raise DataError(catalog.how_to_get(name, entry, folder)) from error
    return checked(entry.name, raw, entry, undirected=undirected)


def convert(name: str, path: Path, root: Path | None = None, *, undirected: bool = True) -> Dataset:
    """Write a graph as a folder that is mapped when it is used (see folders.py); returns it as read from there."""
    if path.exists():  # said before a large graph is made
        raise StoreError(f"{path} exists already: name another folder, or remove it first.")
    folders.write_folder(path, load(name, root, undirected=undirected))
    return folders.open_folder(path, str(path.resolve()), undirected=undirected)


def _made(name: str, entry: catalog.DatasetEntry) -> RawGraph:
    """A graph that is made in memory; an error in the code of a plugin is a sentence that names it."""
    assert entry.make is not None
    said = [part.partition("=") for part in name.partition(":")[2].split(",") if part]
    if wrong := [key for key, equals, _ in said if not equals]:
        raise ConfigError(f"'{wrong[0]}' in '{name}' is not NAME=VALUE, as in synthetic:nodes=5000,classes=10.")
    try:
        made = entry.make(**{**(entry.sizes or {}), **{key.strip(): value for key, _, value in said}})
    except (IpalError, MemoryError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {shortened(str(error))}"
        raise DataError(f"The dataset '{entry.name}' could not be made ({reason}).") from error
    if not isinstance(made, RawGraph):
        raise DataError(f"What makes the dataset '{entry.name}' gave a {type(made).__name__}: give a RawGraph.")
    return made


def checked(name: str, raw: RawGraph, entry: catalog.DatasetEntry | None = None, *, undirected: bool) -> Dataset:
    """A dataset from what a file or a value holds."""
    entry = entry or catalog.DatasetEntry(name, "")
    n = raw.y.size if raw.x is None else raw.x.shape[0]
    y, x, remarks = file_labels(raw.y, n), raw.x, [entry.remark]
    if x is None:
        one = np.ones((n, 1), dtype=np.float32)
        x = structural_features(checked_graph(one, raw.edges, undirected=True, weights=raw.edge_weight))
        remarks.append(STRUCTURAL)
    if lacking := int((~labelled(y)).sum()):
        remarks.append(f"{lacking} of {n} nodes have no label, and are in no task")
    return Dataset(
        name=name,
        graph=checked_graph(x, raw.edges, undirected=undirected, weights=raw.edge_weight, columns=raw.columns),
        y=y,
        split=entry.split,
        preprocessing=STRUCTURAL if raw.x is None else raw.preprocessing,
        remark="; ".join(filter(None, remarks)),
        ids=raw.ids if raw.ids is None else checked_ids(raw.ids, n),
        facts=checked_facts(vars(raw), n),
    )


def look(name: str, root: Path) -> dict[str, Any]:
    """All that was understood of one graph, its edges as they are given; labels may be missing."""
    facts = catalog.describe(name, root)
    if not facts["here"]:
        return facts
    dataset = load_to_predict(name, root, undirected=False)
    graph, there = dataset.graph, labelled(dataset.y)
    names, sizes = np.unique(dataset.y[there], return_counts=True)
    weights, x = graph.neighbours.weights, graph.x
    alone = np.diff(graph.neighbours.indptr) == 0
    alone[graph.neighbours.indices] = False
    return facts | {
        "nodes": graph.num_nodes,
        "ids": None if dataset.ids is None else dataset.ids[:3].tolist(),
        "edges": graph.num_edges,
        "both_ways": graph.symmetric,
        "edge_weights": None if weights is None else [float(weights.min()), float(weights.max())],
        "features": graph.num_features,
        "sparse": sp.issparse(x),
        "share_not_zero": float(np.count_nonzero(x.data if isinstance(x, sp.csr_array) else x) / np.prod(x.shape)),
        "columns": list(graph.columns),
        "classes": dict(zip(map(str, names.tolist()), sizes.tolist(), strict=True)),
        "labelled": int(there.sum()),
        "edge_homophily": edge_homophily(graph.neighbours, dataset.y),
        "isolated": int(alone.sum()),
        "of_every_node": list(dataset.facts),
        "remark": dataset.remark,
        "hash": dataset.hash if graph.symmetric or dataset.known_hash else load_to_predict(name, root).hash,
    }


def edge_homophily(neighbours: Neighbours, y: Labels) -> float | None:
    r"""The share of edges that join nodes of one class; None where no edge joins two nodes with a label.

    .. math:: h = \frac{|\{(i, j) \in E : y_i = y_j\}|}{|E|}

    Source: Zhu et al. 2020, "Beyond Homophily in Graph Neural Networks", Definition 1.
    """
    there, same, every = labelled(y), 0, 0
    for target, source in neighbours.edge_chunks():
        both = there[target] & there[source]
        every += int(both.sum())
        same += int((both & (y[target] == y[source])).sum())
    return same / every if every else None
