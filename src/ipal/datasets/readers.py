"""Raw files of graphs, read into plain arrays. Nothing here unpickles: a file that would need it is refused."""

import gzip
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.errors import DataError
from ipal.graph import Features


@dataclass(frozen=True, eq=False)
class RawGraph:
    """What a file holds, before any check: features may be missing."""

    edges: NDArray[Any]
    y: NDArray[Any]
    x: Features | None
    preprocessing: str


Reader = Callable[[Path], RawGraph]


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file, or one clear sentence."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise
    except ValueError as error:
        if "allow_pickle" in str(error) or "pickle" in str(error).lower():
            raise DataError(
                f"{path} holds pickled objects, which are never opened: save it again as plain arrays."
            ) from error
        raise DataError(f"{path} is damaged or cut short: fetch or save it again.") from error
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, AttributeError) as error:
        raise DataError(f"{path} is not a readable .npz file: it is damaged, cut short or no .npz.") from error


def need(arrays: dict[str, NDArray[Any]], names: list[str], path: Path) -> list[NDArray[Any]]:
    missing = [name for name in names if name not in arrays]
    if missing:
        raise DataError(f"{path} lacks the array(s) {', '.join(missing)}; it holds {', '.join(arrays)}.")
    return [arrays[name] for name in names]


def csr(parts: list[NDArray[Any]], path: Path) -> sp.csr_array:
    """A CSR matrix from its values, indices, row starts and shape, with its structure checked."""
    try:
        values, indices, indptr, shape = parts
        matrix = sp.csr_array((values, indices, indptr), shape=tuple(int(size) for size in shape))
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, IndexError) as error:
        raise DataError(f"{path} holds a sparse matrix whose parts do not fit together.") from error
    return matrix


def read_gnn_benchmark(path: Path) -> RawGraph:
    """The .npz format of the gnn-benchmark and graph2gauss data sets (Coauthor, Amazon, CitationFull).

    As in PyTorch Geometric's loader, features become 0/1: the files hold word counts.
    """
    arrays = read_arrays(path)
    adjacency = csr(need(arrays, ["adj_data", "adj_indices", "adj_indptr", "adj_shape"], path), path).tocoo()
    x = csr(need(arrays, ["attr_data", "attr_indices", "attr_indptr", "attr_shape"], path), path)
    x = x.astype(np.float32)
    x.data = (x.data > 0).astype(np.float32)
    x.eliminate_zeros()
    (y,) = need(arrays, ["labels"], path)
    return RawGraph(np.stack([adjacency.row, adjacency.col]), y, x, "features made 0/1, as the stock loader does")


def read_plain(path: Path) -> RawGraph:
    """Plain arrays: `edge_index`, `y`, and features as `x` or as `x_indices, x_indptr, x_values, x_shape`."""
    arrays = read_arrays(path)
    edges, y = need(arrays, ["edge_index", "y"], path)
    x: Features | None = None
    if "x" in arrays:
        if arrays["x"].dtype.kind not in "fiub":
            raise DataError(f"{path}: the features x hold {arrays['x'].dtype}, not numbers.")
        x = np.ascontiguousarray(arrays["x"], dtype=np.float32)
    elif "x_indices" in arrays:
        x = csr(need(arrays, ["x_values", "x_indices", "x_indptr", "x_shape"], path), path).astype(np.float32)
    return RawGraph(edges, y, x, "features as in the file" if x is not None else "")


def read_ogb(folder: Path) -> RawGraph:
    """The raw csv.gz files of an OGB node data set; its own cache is pickled and not touched."""
    edges = _read_csv(folder / "edge.csv.gz", np.int64).reshape(-1, 2).T
    x = _read_csv(folder / "node-feat.csv.gz", np.float32)
    y = _read_csv(folder / "node-label.csv.gz", np.int64).reshape(-1)
    return RawGraph(edges, y, np.atleast_2d(x), "features as in the file")


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
    x, y = need(read_arrays(folder / "reddit_data.npz"), ["feature", "label"], folder / "reddit_data.npz")
    row, col = need(read_arrays(folder / "reddit_graph.npz"), ["row", "col"], folder / "reddit_graph.npz")
    if len(y) != len(x):
        raise DataError(f"{folder}/reddit_data.npz has {len(y)} labels for {len(x)} nodes.")
    kept = np.flatnonzero(y != 40)
    position = np.full(len(y), -1, dtype=np.int64)
    position[kept] = np.arange(len(kept))
    edges = position[np.stack([row, col])]
    edges = edges[:, (edges >= 0).all(axis=0)]
    features = np.ascontiguousarray(x[kept], dtype=np.float32)
    return RawGraph(edges, y[kept], features, "features as in the file, 41st class dropped")
