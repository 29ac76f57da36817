"""A graph as a folder of plain arrays that are mapped, not read: nothing is in memory until it is needed.

meta.json        format and version, hash of the content, what a record must say
indptr.npy       row starts, 64 bits: node i's in-neighbours are indices[indptr[i]:indptr[i + 1]]
indices.npy      in-neighbours, 32 bits, ascending in each row, no loops
edge_weight.npy  the weight of each of these edges, 32 bits; no file where all are one
y.npy            a whole number or a string a node; -1 or an empty one where it has no label
ids.npy          what each node is called, where that is not its number: strings or whole numbers
x.npy            features, nodes x features; or sparse as x_indptr.npy, x_indices.npy, x_values.npy
time.npy         when each node came, where that is known; so are domain.npy and split.npy (see FACTS)

Content is compared with its hash at the first use. What the system says of the files then (size, times, inode) is kept
in .verified.json: a large graph is read through again only where one of them differs.
"""

import json
import os
from contextlib import suppress
from os.path import isfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from ipal.data.csr import Neighbours, smallest
from ipal.data.dataset import FACTS, Dataset, checked_facts, content_hash
from ipal.data.graph import Features, Graph
from ipal.errors import DataError, StoreError
from ipal.system.arrays import mapped
from ipal.system.documents import Record, read_json
from ipal.system.files import aside, make_folder, write_atomically

META, VERIFIED = "meta.json", ".verified.json"
LABELS = ("<i8", "<U")
AGAIN = "write the folder again with 'ipal data --convert'"


class Meta(Record):
    """What meta.json holds."""

    format: Literal["ipal-graph"]
    version: Literal[1]
    num_features: int = Field(ge=1, lt=2**31)
    sparse: bool
    symmetric: bool
    """Whether every edge runs both ways."""
    hash: str
    split: list[int] | None
    preprocessing: str
    remark: str
    columns: list[str] = Field(default_factory=list)
    """What each feature is, where that is known."""


def holds_graph(path: Path) -> bool:
    return isfile(path / META)


def write_folder(path: Path, dataset: Dataset) -> None:
    """Write a graph aside, then rename the folder: it appears whole or not at all."""
    graph, x, rows = dataset.graph, dataset.graph.x, dataset.graph.neighbours
    arrays: dict[str, Any] = {"indptr": rows.indptr, "indices": rows.indices, "edge_weight": rows.weights}
    arrays |= {"y": dataset.y, "ids": dataset.ids, **dataset.facts}
    if isinstance(x, sp.csr_array):
        arrays |= {"x_indptr": x.indptr.astype(np.int64), "x_indices": x.indices.astype(np.int32), "x_values": x.data}
    else:
        arrays["x"] = x
    meta = Meta(
        format="ipal-graph",
        version=1,
        num_features=graph.num_features,
        sparse=sp.issparse(x),
        symmetric=graph.symmetric,
        hash=content_hash(graph, dataset.y, dataset.facts),
        split=list(dataset.split) if dataset.split else None,
        preprocessing=dataset.preprocessing,
        remark=dataset.remark,
        columns=list(graph.columns),
    )
    make_folder(path.parent)
    with aside(path, folder=True) as temporary:
        for name, array in arrays.items():
            if array is None:
                continue
            with open(temporary / f"{name}.npy", "wb") as file:
                # Handed a file of the system, NumPy writes by itself, and loses the reason why it could not.
                np.save(SimpleNamespace(write=file.write), array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        write_atomically(temporary / META, meta.model_dump_json(indent=2) + "\n")
        os.rename(temporary, path)


def open_folder(path: Path, name: str, *, undirected: bool) -> Dataset:
    """Map a graph, with its structure checked; at its first use all of it is read once and compared with its hash."""
    stored = _open(path, name, undirected)
    found = _looks(path, stored.hash)
    with suppress(OSError, ValueError):
        if read_json(path / VERIFIED) == found:
            return stored
    try:
        actual = content_hash(stored.graph, stored.y, stored.facts)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    if actual != stored.hash:
        raise DataError(f"{path} was changed after it was written, as its content does not fit its hash: {AGAIN}.")
    if _looks(path, actual) == found:
        with suppress(StoreError):  # it may not be written there: the folder is verified at every use
            write_atomically(path / VERIFIED, json.dumps(found))
    # Mapped anew: what was read stays in this process's memory as long as it is mapped.
    del stored
    return _open(path, name, undirected)


def _looks(path: Path, content_hash: str) -> dict[str, Any]:
    """What a folder looks like now, and the hash that its content is to have."""
    files = {file.name: file.stat() for file in sorted([*path.glob("*.npy"), path / META])}
    states = {name: [at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_ino] for name, at in files.items()}
    return {"hash": content_hash, **states}


def _open(path: Path, name: str, undirected: bool) -> Dataset:
    try:
        meta = Meta.model_validate(read_json(path / META))
    except (OSError, ValueError, ValidationError) as error:
        raise DataError(f"{path / META} is damaged, or of another format: {AGAIN}.") from error
    if undirected and not meta.symmetric:
        raise DataError(
            f"{path} holds edges that run one way, or with another weight each way: write it again from its source "
            "without --directed, or take them as they are with --set protocol.edges=directed."
        )
    y = _mapped(path, "y", LABELS, None)
    n = len(y)
    columns = tuple(meta.columns)
    _fits(len(columns) in (0, meta.num_features), path / META)
    return Dataset(
        name=name,
        graph=Graph(_features(path, meta, n), _neighbours(path, n), symmetric=meta.symmetric, columns=columns),
        y=y,
        split=tuple(meta.split) if meta.split else None,
        preprocessing=meta.preprocessing,
        remark=meta.remark,
        known_hash=meta.hash,
        ids=_found(path, "ids", LABELS, n),
        facts=checked_facts({fact: _found(path, fact, "<i8", n) for fact in FACTS}, n),
    )


def _fits(is_so: Any, file: Path) -> None:
    if not is_so:
        raise DataError(f"{file} does not fit the other arrays of the folder: {AGAIN}.")


def _mapped(path: Path, name: str, types: str | tuple[str, ...], *shape: int | None) -> NDArray[Any]:
    """An array of one of these types and of this shape; None is any size."""
    file = path / f"{name}.npy"
    try:
        array = mapped(file, "fiU")
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is missing, damaged or cut short: {AGAIN}.") from error
    sizes = zip(array.shape, shape, strict=False)
    _fits(array.ndim == len(shape) and all(size in (None, found) for found, size in sizes), file)
    _fits(array.dtype.str.startswith(types), file)
    return array


def _found(path: Path, name: str, types: str | tuple[str, ...], n: int) -> NDArray[Any] | None:
    """An array of so many values, which may be missing."""
    return _mapped(path, name, types, n) if isfile(path / f"{name}.npy") else None


def _rows(path: Path, name: str, rows: int, entries: int) -> NDArray[np.int64]:
    """Where rows begin, with so many entries in all."""
    starts = _mapped(path, name, "<i8", rows + 1)
    _fits(starts[0] == 0 and starts[-1] == entries and (np.diff(starts) >= 0).all(), path / f"{name}.npy")
    return starts


def _neighbours(path: Path, n: int) -> Neighbours:
    """In range, ascending, no loops, weights positive: a chunk at a time."""
    indices = _mapped(path, "indices", "<i4", None)
    edges = len(indices)
    weights = _found(path, "edge_weight", "<f4", edges)
    neighbours = Neighbours(_rows(path, "indptr", n, edges), indices, weights=weights)
    for rows, entries in neighbours.edge_chunks():
        in_range = ((entries >= 0) & (entries < n) & (entries != rows)).all()
        _fits(in_range and ((np.diff(entries) > 0) | (np.diff(rows) > 0)).all(), path / "indices.npy")
    _fits(not edges or weights is None or (weights.min() > 0 and weights.max() < np.inf), path / "edge_weight.npy")
    return neighbours


def _features(path: Path, meta: Meta, n: int) -> Features:
    if not meta.sparse:
        return _mapped(path, "x", "<f4", n, meta.num_features)
    values = _mapped(path, "x_values", "<f4", None)
    columns = _mapped(path, "x_indices", "<i4", len(values))
    _fits(not len(columns) or (columns.min() >= 0 and columns.max() < meta.num_features), path / "x_indices.npy")
    starts = _rows(path, "x_indptr", n, len(values))
    return sp.csr_array((values, columns, smallest(np.asarray(starts))), shape=(n, meta.num_features))
