"""From a name or a path to one labelled graph, with a record of what was done to it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ipal.datasets import builtin, catalog, features
from ipal.datasets.readers import RawGraph
from ipal.errors import DataError
from ipal.graph import Graph, checked_graph, content_hash, whole_labels

__all__ = ["Dataset", "load"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A labelled graph, checked, and what its record must say."""

    name: str
    graph: Graph
    y: NDArray[np.int64]
    split: tuple[int, ...] | None
    """Classes per task where the benchmark says so."""
    preprocessing: str
    remark: str
    """What a result on this graph must say about itself; empty where nothing."""
    beyond_task: bool
    """Whether the features of a node were made by looking at nodes of other tasks."""

    @cached_property
    def hash(self) -> str:
        return content_hash(self.graph, self.y)

    @property
    def num_classes(self) -> int:
        return len(np.unique(self.y))


def load(name: str, root: Path | None = None, *, undirected: bool = True) -> Dataset:
    """Read a graph by its name (see `ipal list datasets`), as `synthetic:nodes=…`, or from an .npz path."""
    folder = catalog.data_root(root)
    if name == "digits":
        return _checked(name, builtin.digits(), catalog.BUILT_IN["digits"], undirected)
    if name.partition(":")[0] == "synthetic":
        raw = builtin.synthetic(builtin.parse_synthetic(name))
        return _checked(name, raw, catalog.BUILT_IN["synthetic"], undirected)
    entry = catalog.find(name, folder)
    try:
        raw = entry.read(folder / entry.path)
    except FileNotFoundError as error:
        raise DataError(catalog.how_to_get(name, entry, folder)) from error
    # A file is known by its full path, so that a run finds it again from any folder.
    name = entry.path if Path(entry.path).is_absolute() else name
    return _checked(name, raw, entry, undirected)


def _checked(name: str, raw: RawGraph, entry: catalog.Entry, undirected: bool) -> Dataset:
    num_nodes = raw.y.size if raw.x is None else raw.x.shape[0]
    y = whole_labels(raw.y, num_nodes)
    preprocessing, beyond_task, x, remark = raw.preprocessing, entry.beyond_task, raw.x, entry.remark
    if x is None:
        skeleton = checked_graph(np.ones((num_nodes, 1), dtype=np.float32), raw.edges, undirected=True)
        x = features.structural_features(skeleton)
        preprocessing, beyond_task = features.REMARK, True
        remark = "; ".join(filter(None, [remark, features.REMARK]))
    return Dataset(
        name=name,
        graph=checked_graph(x, raw.edges, undirected=undirected),
        y=y,
        split=entry.split,
        preprocessing=preprocessing,
        remark=remark,
        beyond_task=beyond_task,
    )
