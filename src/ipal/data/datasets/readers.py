"""Raw files of graphs, read into plain arrays. Nothing here unpickles: a file that would need it is refused."""

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.data.dataset import FACTS
from ipal.data.graph import Features, checked_edges
from ipal.data.labels import UNLABELLED, file_labels
from ipal.errors import CapacityError, DataError
from ipal.system import free_memory
from ipal.system.arrays import read_npz
from ipal.system.files import make_folder, open_plain, written_whole


@dataclass(frozen=True, eq=False)
class RawGraph:
    """What a file holds, before any check: features may be missing."""

    edges: NDArray[Any]
    """(2, edges), from row 0 to row 1."""
    y: NDArray[Any]
    """(nodes,): labels, whole numbers or strings."""
    x: Features | None
    """(nodes, features); None for features made from the edges."""
    preprocessing: str
    """What was done to the features."""
    time: NDArray[Any] | None = None
    """(nodes,): when each came, as years, days or seconds."""
    domain: NDArray[Any] | None = None
    """(nodes,): the graph or community of each, 0 or more."""
    split: NDArray[Any] | None = None
    """(nodes,): 0 training, 1 validation, 2 test, -1 not used."""
    edge_weight: NDArray[Any] | None = None
    """Of each column of `edges`."""
    ids: NDArray[Any] | None = None
    """What nodes are called, where that is not their number."""
    columns: tuple[str, ...] = ()
    """What each feature is, where that is known."""


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Those of the named arrays that an .npz file holds, or one clear sentence.

    Other arrays are not touched: the stock files also hold names of nodes and words, which are pickled.
    """
    unreadable = "it is not a readable .npz file: it is damaged, cut short or no .npz."
    instead = "keep features sparse, or convert it on a larger machine with 'ipal data --convert'"
    allow = partial(free_memory.need, what="it", instead=instead)
    try:
        with open_plain(path) as file:
            return read_npz(file, set(names).__contains__, allow, unreadable, kinds="fiubcU")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): give an .npz file or a graph folder.") from error
    except (DataError, CapacityError) as error:
        raise type(error)(f"{path}: {error}") from error


def need(arrays: dict[str, NDArray[Any]], names: Sequence[str], path: Path) -> list[NDArray[Any]]:
    missing = [name for name in names if name not in arrays]
    if missing:
        raise DataError(f"{path} lacks the array(s) {', '.join(missing)}: it holds {', '.join(arrays) or 'none'}.")
    return [arrays[name] for name in names]


def csr(parts: list[NDArray[Any]], path: Path) -> sp.csr_array:
    """A CSR matrix from its values, indices, row starts and shape, with its structure checked."""
    try:
        values, indices, indptr, shape = parts
        if values.dtype.kind not in "fiub" or indices.dtype.kind not in "iu" or indptr.dtype.kind not in "iu":
            raise TypeError("a sparse matrix is made of numbers at whole places")
        starts = indptr.astype(np.int64)
        # Before SciPy, which looks no further where the last start is zero, and reads beyond its memory then.
        if indptr.ndim != 1 or starts[0] != 0 or starts[-1] != len(indices) or (np.diff(starts) < 0).any():
            raise ValueError("rows that do not follow each other")
        if values.dtype == np.float16:  # SciPy knows no half precision
            values = values.astype(np.float32)
        matrix = sp.csr_array((values, indices, indptr), shape=tuple(int(size) for size in shape))
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise DataError(f"{path} holds a sparse matrix whose parts do not fit together.") from error
    matrix.sum_duplicates()  # one order, each place once: the same content has the same hash
    return matrix


def read_gnn_benchmark(path: Path) -> RawGraph:
    """The .npz format of the gnn-benchmark and graph2gauss data sets (Coauthor, Amazon, CitationFull).

    As in PyTorch Geometric's loader, features become 0/1: the files hold word counts.
    """
    names = [f"{matrix}_{part}" for matrix in ("adj", "attr") for part in ("data", "indices", "indptr", "shape")]
    *parts, y = need(read_arrays(path, [*names, "labels"]), [*names, "labels"], path)
    adjacency, x = csr(parts[:4], path).tocoo(), csr(parts[4:], path)
    if not np.isfinite(x.data).all():
        raise DataError(f"{path}: the features hold NaN or infinite values: replace them before use.")
    x.data = (x.data > 0).astype(np.float32)
    x.eliminate_zeros()
    return RawGraph(np.stack(adjacency.coords), y, x, "features made 0/1, as the stock loader does")


SPARSE = ("x_values", "x_indices", "x_indptr", "x_shape")
OF_PARTS = ("edge_weight", "ids", *FACTS)


def read_plain(path: Path) -> RawGraph:
    """Plain arrays: `edge_index`, `y`, features as `x` or as `SPARSE`, `edge_weight`, `ids`, and `FACTS`."""
    arrays = read_arrays(path, ["edge_index", "y", "x", *OF_PARTS, *SPARSE])
    x: Features | None = None
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        if "x" in arrays:
            if arrays["x"].dtype.kind not in "fiub":
                raise DataError(f"{path}: the features x hold {arrays['x'].dtype}, not numbers.")
            x = np.ascontiguousarray(arrays["x"], dtype=np.float32)
        elif not arrays.keys().isdisjoint(SPARSE):
            x = csr(need(arrays, SPARSE, path), path).astype(np.float32)
    if x is not None:
        arrays.setdefault("y", np.full(x.shape[0], UNLABELLED))
    edges, y = need(arrays, ["edge_index", "y"], path)
    known: dict[str, Any] = {name: arrays.get(name) for name in OF_PARTS}
    return RawGraph(edges, y, x, "features as in the file", **known)


def write_plain(path: Path, data: Any) -> None:
    """A Data of PyTorch Geometric, with features dense or sparse, as a plain file."""
    x = data.x.to_sparse_csr()
    parts = dict(zip(SPARSE, (x.values(), x.col_indices(), x.crow_indices(), x.shape), strict=True))
    arrays = {name: np.asarray(part) for name, part in {"edge_index": data.edge_index, "y": data.y, **parts}.items()}
    make_folder(path.parent)
    with written_whole(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read_citeseer(path: Path) -> RawGraph:
    """A plain file of CiteSeer, where nodes without features have no label in the source, and class 0 in the file."""
    raw = read_plain(path)
    if raw.x is None or raw.x.ndim != 2 or raw.y.shape != raw.x.shape[:1]:  # refused later
        return raw
    empty = np.asarray(abs(raw.x).sum(axis=1)).reshape(-1) == 0
    return replace(raw, y=np.where(empty, UNLABELLED, raw.y))


def read_ogb(folder: Path) -> RawGraph:
    """The raw csv.gz files of an OGB node data set; its own cache is pickled and not touched."""
    edges = _read_csv(folder / "edge.csv.gz", np.int64).T
    x = _read_csv(folder / "node-feat.csv.gz", np.float32)
    y = _read_csv(folder / "node-label.csv.gz", np.int64).reshape(-1)
    return RawGraph(edges, y, x, "features as in the file")


def _read_csv(path: Path, dtype: type) -> NDArray[Any]:
    try:
        with gzip.open(path, "rt") as file:
            return np.loadtxt(file, delimiter=",", dtype=dtype, ndmin=2)
    except FileNotFoundError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path} is damaged or no gzipped table of numbers: fetch it again.") from error


def read_reddit(folder: Path) -> RawGraph:
    """The two raw files of PyTorch Geometric's `Reddit`; the 41st class is dropped, as the benchmark does."""
    data, graph = folder / "reddit_data.npz", folder / "reddit_graph.npz"
    x, y = need(read_arrays(data, ["feature", "label"]), ["feature", "label"], data)
    row, col = need(read_arrays(graph, ["row", "col"]), ["row", "col"], graph)
    if x.ndim != 2 or x.dtype.kind not in "fiub" or row.shape != col.shape:
        raise DataError(f"The parts of {folder} do not fit together: fetch them again.")
    y = file_labels(y, len(x))
    ends = checked_edges(np.stack([row, col]), len(x))
    kept = np.flatnonzero(y != 40)
    position = np.full(len(y), -1, dtype=np.int32)
    position[kept] = np.arange(len(kept), dtype=np.int32)
    edges = position[ends]
    edges = edges[:, (edges >= 0).all(axis=0)]
    return RawGraph(edges, y[kept], x[kept].astype(np.float32), "features as in the file, 41st class dropped")
