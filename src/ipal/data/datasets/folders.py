"""A graph as a folder of plain arrays that are mapped, not read: nothing is in memory until it is needed.

meta.json        format and version, hash of the content, what a record must say
indptr.npy       row starts, 64 bits: node i's in-neighbours are indices[indptr[i]:indptr[i + 1]]
indices.npy      in-neighbours, 32 bits, ascending in each row, no loops
edge_weight.npy  the weight of each of these edges, 32 bits; no file where all are one
y.npy            a whole number or a string a node; -1 or an empty one where it has no label
ids.npy          what each node is called, where that is not its number: strings or whole numbers
x.npy            features, nodes x features; or sparse as x_indptr.npy, x_indices.npy, x_values.npy
time.npy         when each node came, where that is known; domain.npy and split.npy likewise (see NodeFacts)
"""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from ipal.data.csr import Neighbours, smallest
from ipal.data.dataset import Dataset
from ipal.data.datasets import verified
from ipal.data.datasets.readers import FACTS
from ipal.data.graph import Features, Graph, checked_facts, content_hash
from ipal.data.labels import Labels, check_labels
from ipal.data.node_facts import NodeFacts
from ipal.errors import DataError, StoreError, shortened
from ipal.system.arrays import mapped
from ipal.system.documents import Record, read_json
from ipal.system.files import aside, is_file, make_folder, write_atomically

META = "meta.json"
HOW = "'ipal data --convert' writes one"
FORMAT, VERSION = "ipal-graph", 1


class Meta(Record):
    """What stands in meta.json."""

    format: str
    version: int
    num_features: int = Field(ge=1, lt=2**31)
    sparse: bool
    symmetric: bool
    """Whether every edge runs both ways."""
    hash: str
    split: list[int] | None
    preprocessing: str
    remark: str
    beyond_task: bool
    columns: list[str] = Field(default_factory=list)
    """What each feature is, where that is known."""


def holds_graph(path: Path) -> bool:
    return is_file(path / META)


def write_folder(path: Path, dataset: Dataset) -> None:
    """Write a graph aside, then rename the folder: it appears whole or not at all."""
    if path.exists():
        raise StoreError(f"{path} exists already: name another folder, or remove it first.")
    graph, x = dataset.graph, dataset.graph.x
    is_sparse = isinstance(x, sp.csr_array)
    arrays: dict[str, NDArray[Any]] = {"indptr": graph.indptr, "indices": graph.indices, "y": dataset.y}
    arrays |= {} if graph.neighbours.weights is None else {"edge_weight": graph.neighbours.weights}
    arrays |= {} if dataset.ids is None else {"ids": dataset.ids}
    arrays |= dataset.known
    if isinstance(x, sp.csr_array):
        arrays |= {"x_indptr": x.indptr.astype(np.int64), "x_indices": x.indices.astype(np.int32), "x_values": x.data}
    else:
        arrays["x"] = x
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "num_features": graph.num_features,
        "sparse": is_sparse,
        "symmetric": graph.symmetric,
        "hash": content_hash(graph, dataset.y, dataset),
        "split": list(dataset.split) if dataset.split else None,
        "preprocessing": dataset.preprocessing,
        "remark": dataset.remark,
        "beyond_task": dataset.beyond_task,
        **({"columns": graph.columns} if graph.columns else {}),
    }
    make_folder(path.parent)
    with aside(path, folder=True) as temporary:
        for name, array in arrays.items():
            with open(temporary / f"{name}.npy", "wb") as file:
                # Handed a file of the system, NumPy writes by itself, and loses the reason why it could not.
                np.save(SimpleNamespace(write=file.write), array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        write_atomically(temporary / META, json.dumps(meta, indent=2, ensure_ascii=False) + "\n")
        os.rename(temporary, path)


def open_folder(path: Path, name: str, *, undirected: bool, verify: bool = True) -> Dataset:
    """Map a graph, with its structure checked; at its first use all of it is read once and compared with its hash."""
    stored = _open(path, name, undirected)
    if not verify:
        return stored
    began, found = time.time(), verified.stamps(path, stored.hash)
    if verified.is_known(path, found):
        return stored
    try:
        actual = content_hash(stored.graph, stored.y, stored)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    if actual != stored.hash:
        raise DataError(
            f"{path} was changed after it was written: its content no longer fits its hash; write it again with "
            "'ipal data --convert'."
        )
    # Mapped anew: what was read stays in this process's memory as long as it is mapped.
    del stored
    stored = _open(path, name, undirected)
    if verified.stamps(path, stored.hash) == found:
        verified.remember(path, found, began)
    return stored


def _open(path: Path, name: str, undirected: bool) -> Dataset:
    meta = _read_meta(path)
    if undirected and not meta.symmetric:
        raise DataError(
            f"{path} holds edges that run one way, or with another weight each way: write it again from its source "
            "without --directed, or take them as they are with --set protocol.edges=directed."
        )
    y = _named(path, "y")
    if y.dtype.kind == "i":
        check_labels(y)
    n = len(y)
    weighted = is_file(path / "edge_weight.npy")
    neighbours = Neighbours(
        _mapped(path, "indptr", np.int64, 1),
        _mapped(path, "indices", np.int32, 1),
        weights=_mapped(path, "edge_weight", np.float32, 1) if weighted else None,
    )
    _check_starts(path, "indptr", neighbours.indptr, n, len(neighbours.indices))
    _check_neighbours(path, neighbours)
    columns = tuple(meta.columns)
    if columns and len(columns) != meta.num_features:
        raise DataError(f"{path / META} names {len(columns)} columns, but there are {meta.num_features} features.")
    ids = _named(path, "ids") if is_file(path / "ids.npy") else None
    if ids is not None and len(ids) != n:
        raise DataError(f"{path / 'ids'}.npy does not fit the other arrays: {n} nodes.")
    return Dataset(
        name=name,
        graph=Graph.of(_features(path, meta, n), neighbours, symmetric=meta.symmetric, columns=columns),
        y=y,
        split=tuple(meta.split) if meta.split else None,
        preprocessing=meta.preprocessing,
        remark=meta.remark,
        beyond_task=meta.beyond_task,
        known_hash=meta.hash,
        ids=ids,
        **vars(_facts(path, n)),
    )


def _read_meta(path: Path) -> Meta:
    damaged = f"{path / META} is damaged: write the folder again with 'ipal data --convert'."
    try:
        found = read_json(path / META)
    except (OSError, ValueError) as error:
        raise DataError(damaged) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataError(damaged if not isinstance(found, dict) else f"{path} is no graph folder: {HOW}.")
    if found.get("version") not in (None, VERSION):
        raise DataError(
            f"{path} is written in version {shortened(found['version'])} of the format; this program reads version "
            f"{VERSION}: write the folder again with 'ipal data --convert'."
        )
    try:
        return Meta.model_validate(found)
    except ValidationError as error:
        raise DataError(damaged) from error


def _named(path: Path, name: str) -> Labels:
    """One whole number or one string a node."""
    return _mapped(path, name, np.int64, 1, or_strings=True)


def _mapped(path: Path, name: str, kind: type, dimensions: int, *, or_strings: bool = False) -> NDArray[Any]:
    file = path / f"{name}.npy"
    try:
        array = mapped(file, "fiubU")
    except FileNotFoundError as error:
        raise DataError(f"{path} lacks {name}.npy: write the folder again with 'ipal data --convert'.") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is damaged or cut short: write the folder again.") from error
    if not (array.dtype == kind or (or_strings and array.dtype.kind == "U")) or array.ndim != dimensions:
        raise DataError(
            f"{file} must hold {np.dtype(kind)} in {dimensions} dimension(s); this one holds {array.dtype} in "
            f"{array.ndim}."
        )
    return array


def _check_starts(path: Path, name: str, starts: NDArray[Any], rows: int, entries: int) -> None:
    if len(starts) != rows + 1 or starts[0] != 0 or starts[-1] != entries or (np.diff(starts) < 0).any():
        raise DataError(f"{path / name}.npy does not fit the other arrays: {rows} rows, {entries} entries.")


def _check_neighbours(path: Path, neighbours: Neighbours) -> None:
    """In range, ascending, no loops, weights positive: a chunk at a time."""
    n, weights = neighbours.num_nodes, neighbours.weights
    if weights is not None and len(weights) != neighbours.num_edges:
        raise DataError(f"{path / 'edge_weight'}.npy does not fit the other arrays: {neighbours.num_edges} edges.")
    for begin, end in neighbours.chunks():
        rows = neighbours.targets(begin, end)
        entries = np.asarray(neighbours.indices[neighbours.indptr[begin] : neighbours.indptr[end]])
        if not len(entries):
            continue
        if entries.min() < 0 or entries.max() >= n:
            wrong = entries.min() if entries.min() < 0 else entries.max()
            raise DataError(f"An edge of {path} points to node {wrong}, but the nodes are 0 to {n - 1}.")
        if ((np.diff(entries) <= 0) & (np.diff(rows) == 0)).any() or (entries == rows).any():
            raise DataError(
                f"{path / 'indices'}.npy must list each node's neighbours once, ascending, without the node itself: "
                "write the folder again with 'ipal data --convert'."
            )
        if weights is not None and not ((values := neighbours.values(begin, end)) > 0).all() & (values < np.inf).all():
            raise DataError(
                f"{path / 'edge_weight'}.npy must hold finite, positive numbers: write the folder again with "
                "'ipal data --convert'."
            )


def _facts(path: Path, n: int) -> NodeFacts:
    there = [name for name in FACTS if is_file(path / f"{name}.npy")]
    arrays = {name: _mapped(path, name, np.int64, 1) for name in there}
    try:
        return checked_facts(n, **arrays)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _features(path: Path, meta: Meta, n: int) -> Features:
    if not meta.sparse:
        x = _mapped(path, "x", np.float32, 2)
        if x.shape != (n, meta.num_features):
            raise DataError(f"{path / 'x'}.npy has the shape {x.shape}; {(n, meta.num_features)} is needed.")
        return x
    starts = _mapped(path, "x_indptr", np.int64, 1)
    columns, values = _mapped(path, "x_indices", np.int32, 1), _mapped(path, "x_values", np.float32, 1)
    _check_starts(path, "x_indptr", starts, n, len(values))
    if len(columns) != len(values) or (len(columns) and (columns.min() < 0 or columns.max() >= meta.num_features)):
        raise DataError(f"{path / 'x_indices'}.npy does not fit the other arrays: {meta.num_features} columns.")
    return sp.csr_array((values, columns, smallest(np.asarray(starts))), shape=(n, meta.num_features))
