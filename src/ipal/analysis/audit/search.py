"""Searches a model's tensors for rows of the data: every row is compared, up to a scale, with all that can be read as
rows or columns of its length, also of sparse tables."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from ipal.data.graph import Features

SAME = 1e-5
"""Largest distance of two unit rows that count as equal: more than rounding, less than chance."""
ENOUGH_VALUES = 4
"""Rows with fewer nonzero values are found by chance."""
ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Found:
    """Which rows were found where."""

    looked_for: int
    too_plain: int
    """Rows with too few nonzero values, which are not searched for."""
    nodes: set[int]
    where: set[str]


def stored_rows(tensors: Mapping[str, Tensor], rows: Features) -> Found:
    """Find rows in the tensors."""
    values = np.diff(rows.indptr) if isinstance(rows, sp.csr_array) else np.count_nonzero(rows, axis=1)
    telling = np.flatnonzero(values >= ENOUGH_VALUES)
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    drawn = np.random.default_rng(0).standard_normal((rows.shape[1], 4))
    axes = drawn / np.linalg.norm(drawn, axis=0)
    shadows = cKDTree(_shadows(rows, axes)[telling])
    nodes, where = set[int](), set[str]()
    for name, table in _tables(arrays, rows.shape[1]) if len(telling) else ():
        theirs = _shadows(table, axes)
        there = np.flatnonzero(np.isfinite(theirs[:, 0]))  # not rows of zeros, which have no length
        for sign in (1, -1):
            near = shadows.query_ball_point(sign * theirs[there], SAME, p=np.inf)
            for place, some in zip(there.tolist(), near, strict=True):
                if some:
                    kept = sign * _unit(table, place)
                    here = {int(n) for n in telling[some] if np.linalg.norm(_unit(rows, n) - kept) <= SAME}
                    nodes |= here
                    where |= {name} if here else set()
    return Found(len(telling), rows.shape[0] - len(telling), nodes, where)


def _shadows(table: Features, axes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(rows, projections), of rows of length one: few rows that differ have the same."""
    shadows = np.zeros((table.shape[0], axes.shape[1]))
    for begin in range(0, table.shape[0], ROWS_AT_ONCE):
        some = table[begin : begin + ROWS_AT_ONCE].astype(np.float64)
        squares = some.multiply(some) if isinstance(some, sp.csr_array) else np.square(some)
        lengths = np.sqrt(np.asarray(squares.sum(axis=1))).reshape(-1, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            shadows[begin : begin + ROWS_AT_ONCE] = (some @ axes) / lengths
    return shadows


def _tables(arrays: Mapping[str, NDArray[Any]], width: int) -> Iterator[tuple[str, Features]]:
    """Everything that can be read as rows of this width."""
    for name, array in arrays.items():
        if array.size and array.size % width == 0:
            yield name, array.reshape(-1, width)
        if array.ndim == 2 and array.shape[0] == width:
            yield name, array.T
        group = name.removesuffix("_indptr")
        values, places = arrays.get(f"{group}_values"), arrays.get(f"{group}_indices")
        if group != name and values is not None and places is not None and places.max(initial=-1) < width:
            yield f"{group}_values", sp.csr_array((values, places, array), shape=(len(array) - 1, width))


def _unit(table: Features, place: int) -> NDArray[np.float64]:
    row = table[[place]].toarray()[0] if isinstance(table, sp.csr_array) else table[place]
    return np.asarray(row / np.linalg.norm(row.astype(np.float64)))
