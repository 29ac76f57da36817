"""From a name or a path to one labelled graph, with a record of what was done to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from ipal.data.dataset import Dataset
from ipal.data.datasets import catalog, folders
from ipal.data.datasets.builtin import STRUCTURAL, structural_features
from ipal.data.datasets.readers import FACTS, RawGraph
from ipal.data.datasets.several import side_by_side
from ipal.data.datasets.synthetic import parse_size
from ipal.data.graph import checked_facts, checked_graph
from ipal.data.labels import checked_ids, file_labels, labelled
from ipal.errors import DataError, IpalError, StoreError, shortened

__all__ = ["Dataset", "checked", "convert", "load", "load_to_predict"]


def load(name: str, root: Path | None = None, *, undirected: bool = True) -> Dataset:
    """Read a graph by its name (see `ipal list datasets`), as `synthetic:nodes=…`, or from an .npz file or a folder.

    Several names, separated by commas, give one dataset with all graphs side by side.
    """
    dataset = load_to_predict(name, root, undirected=undirected)
    if not dataset.num_classes:
        raise DataError(f"No node of {dataset.name} has a label: add the array y (of a table, the column label).")
    return dataset


def load_to_predict(name: str, root: Path | None = None, *, undirected: bool = True) -> Dataset:
    """As `load`, also where no node has a label."""
    folder = catalog.data_root(root)
    names = catalog.names_in(name, folder)
    if len(names) == 1:
        return _one(name, folder, undirected)
    every = [_one(name, folder, undirected) for name in names]
    known = [dataset.name for dataset in every]
    if catalog.names_in(",".join(known), folder) != known:
        raise DataError(f"A path among {', '.join(known)} has a comma: rename it, as commas separate graphs.")
    return side_by_side(every)


def _one(name: str, folder: Path, undirected: bool) -> Dataset:
    if (made := catalog.made_in_memory(name)) is not None:
        with _naming_the_package(made.name):
            raw = _made(name, made)
        return checked(name, raw, made, undirected=undirected)
    entry = catalog.find(name, folder)
    # A file is known by its full path, so that a run finds it again from any folder.
    known = entry.name if Path(entry.path).is_absolute() else name
    if folders.holds_graph(folder / entry.path):
        return folders.open_folder(folder / entry.path, known, undirected=undirected)
    try:
        raw = entry.read(folder / entry.path)
    except FileNotFoundError as error:
        raise DataError(catalog.how_to_get(name, entry, folder)) from error
    return checked(known, raw, entry, undirected=undirected)


def convert(name: str, path: Path, root: Path | None = None, *, undirected: bool = True) -> Dataset:
    """Write a graph as a folder that is mapped when it is used (see folders.py); returns it as read from there."""
    if path.exists():  # said before a large graph is made
        raise StoreError(f"{path} exists already: name another folder, or remove it first.")
    folders.write_folder(path, load(name, root, undirected=undirected))
    return folders.open_folder(path, str(path.resolve()), undirected=undirected, verify=False)


@contextmanager
def _naming_the_package(name: str) -> Iterator[None]:
    """An error in the code of another package is a sentence that names it."""
    try:
        yield
    except IpalError:
        raise
    except Exception as error:
        package = catalog.CATALOG.package(name)
        if package is None:
            raise
        reason = f"{type(error).__name__}: {shortened(str(error))}"
        raise DataError(f"The dataset '{name}' of {package} could not be made ({reason}).") from error


def _made(name: str, entry: catalog.DatasetEntry) -> RawGraph:
    """A graph that is made in memory."""
    assert entry.make is not None
    made = entry.make(*([parse_size(name, entry.sizes)] if entry.sizes else ()))
    if isinstance(made, RawGraph):
        return made
    if any(getattr(made, part, None) is None for part in ("edge_index", "y", "x")):
        raise DataError(
            f"What makes the dataset '{entry.name}' gave a {type(made).__name__}: give a Data of torch_geometric.data "
            "with edge_index, y and x."
        )
    x = made.x if issparse(made.x) else np.asarray(made.x)
    given = {name: getattr(made, name, None) for name in ("edge_weight", *FACTS)}
    known: dict[str, Any] = {name: np.asarray(values) for name, values in given.items() if values is not None}
    return RawGraph(np.asarray(made.edge_index), np.asarray(made.y), x, "none", **(_masked(made) | known))


def _masked(made: Any) -> dict[str, NDArray[Any]]:
    """The split that train_mask, val_mask and test_mask say together, where all are there."""
    masks = [np.asarray(getattr(made, f"{part}_mask", None)) for part in ("train", "val", "test")]
    if any(mask.dtype != np.bool_ or mask.shape != masks[0].shape or mask.ndim != 1 for mask in masks):
        return {}
    return {"split": np.select(masks[::-1], [2, 1, 0], -1)}


def checked(name: str, raw: RawGraph, entry: catalog.DatasetEntry | None = None, *, undirected: bool) -> Dataset:
    """A dataset from what a file or a value holds."""
    entry = entry or catalog.DatasetEntry(name, "")
    num_nodes = raw.y.size if raw.x is None else raw.x.shape[0]
    y = file_labels(raw.y, num_nodes)
    preprocessing, beyond_task, x, remark = raw.preprocessing, entry.beyond_task, raw.x, entry.remark
    if x is None:
        one = np.ones((num_nodes, 1), dtype=np.float32)
        skeleton = checked_graph(one, raw.edges, undirected=True, weights=raw.edge_weight)
        x = structural_features(skeleton)
        preprocessing, beyond_task = STRUCTURAL, True
        remark = "; ".join(filter(None, [remark, STRUCTURAL]))
    if lacking := int((~labelled(y)).sum()):
        remark = "; ".join(filter(None, [remark, f"{lacking} of {num_nodes} nodes have no label, and are in no task"]))
    return Dataset(
        name=name,
        graph=checked_graph(x, raw.edges, undirected=undirected, weights=raw.edge_weight, columns=raw.columns),
        y=y,
        split=entry.split,
        preprocessing=preprocessing,
        remark=remark,
        beyond_task=beyond_task,
        ids=raw.ids if raw.ids is None else checked_ids(raw.ids, num_nodes),
        **vars(checked_facts(num_nodes, time=raw.time, domain=raw.domain, split=raw.split)),
    )
