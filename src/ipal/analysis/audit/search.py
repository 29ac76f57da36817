"""Searches a model's tensors for rows of the data, in ways that scale to large states.

Every row is compared with all rows and columns of equal length, also of sparse tables, up to a scale. Some rows are
searched for at every offset of every tensor.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from torch import Tensor

from ipal.data.graph import Features

SAME = 1e-5
"""Largest distance of two unit rows that count as equal: more than rounding, less than chance."""
ENOUGH_VALUES = 4
"""Rows with fewer nonzero values are found by chance."""
VALUES_AT_ONCE = 2**16
"""Values per block, few enough to stay in the cache during the search."""
ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class Found:
    """Which rows were found where."""

    looked_for: int
    too_plain: int
    """Rows with too few nonzero values, which are not searched for."""
    everywhere: int
    """Number of rows searched for at every offset of every tensor."""
    nodes: set[int]
    where: set[str]


def stored_rows(
    tensors: Mapping[str, Tensor],
    rows: Features,
    everywhere: int,
    derived: Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> Found:
    """Find rows in the tensors, `everywhere` of them at every offset.

    `derived` are tables that follow from the tensors, as a full matrix of which half is stored.
    """
    values = np.diff(rows.indptr) if isinstance(rows, sp.csr_array) else np.count_nonzero(rows, axis=1)
    telling = np.flatnonzero(values >= ENOUGH_VALUES)
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    known = _Directions(rows, telling, seed)
    more = {name: tensor.detach().cpu().numpy() for name, tensor in (derived or {}).items()}
    found = [(name, known.found_in(table)) for name, table in _tables(arrays | more, rows.shape[1])]
    sample = np.random.default_rng(seed).permutation(telling)[:everywhere].tolist()
    sought = {node: _dense(rows, node) for node in sample}
    found += [(name, _standing_in(sought, array.reshape(-1))) for name, array in arrays.items()]
    nodes = set[int]().union(*(here for _, here in found))
    where = {name for name, here in found if here}
    return Found(len(telling), rows.shape[0] - len(telling), len(sample), nodes, where)


class _Directions:
    """Unit rows, indexed by a few random projections."""

    def __init__(self, rows: Features, chosen: NDArray[np.int64], seed: int) -> None:
        drawn = np.random.default_rng(seed).standard_normal((rows.shape[1], 4))
        self._axes = drawn / np.linalg.norm(drawn, axis=0)
        self._rows = rows
        shadow = self._shadow(rows)[chosen]
        order = np.argsort(shadow[:, 0])
        self._nodes, self._shadows = chosen[order], shadow[order]

    def found_in(self, table: Features) -> set[int]:
        """Which of the rows are, up to a scale, rows of the table."""
        shadows = self._shadow(table)
        found: set[int] = set()
        for sign in (1, -1):
            first = sign * shadows[:, 0]
            begins = np.searchsorted(self._shadows[:, 0], first - SAME)
            ends = np.searchsorted(self._shadows[:, 0], first + SAME, side="right")
            for place in np.flatnonzero(ends > begins).tolist():
                near = slice(begins[place], ends[place])
                alike = np.abs(self._shadows[near] - sign * shadows[place]).max(axis=1) <= SAME
                candidates = [node for node in self._nodes[near][alike].tolist() if node not in found]
                if candidates:
                    kept = sign * _unit(_dense(table, place))
                    found |= {n for n in candidates if np.linalg.norm(_unit(_dense(self._rows, n)) - kept) <= SAME}
        return found

    def _shadow(self, table: Features) -> NDArray[np.float64]:
        """(rows, projections), of rows of length one; one of zeros has none and is found nowhere."""
        shadows = np.zeros((table.shape[0], self._axes.shape[1]))
        for begin in range(0, table.shape[0], ROWS_AT_ONCE):
            some = table[begin : begin + ROWS_AT_ONCE].astype(np.float64)
            squares = some.multiply(some) if isinstance(some, sp.csr_array) else np.square(some)
            lengths = np.sqrt(np.asarray(squares.sum(axis=1))).reshape(-1, 1)
            with np.errstate(divide="ignore", invalid="ignore"):
                shadows[begin : begin + ROWS_AT_ONCE] = (some @ self._axes) / lengths
        return shadows


def _tables(arrays: Mapping[str, NDArray[Any]], width: int) -> Iterator[tuple[str, Features]]:
    """Everything that can be read as rows of this width."""
    for name, array in arrays.items():
        if array.ndim and array.shape[-1] == width:
            yield name, array.reshape(-1, width)
        if array.ndim == 2 and array.shape[0] == width:
            yield name, array.T
        group = name.removesuffix("_indptr")
        values, places = arrays.get(f"{group}_values"), arrays.get(f"{group}_indices")
        if group != name and values is not None and places is not None and places.max(initial=-1) < width:
            yield f"{group}_values", sp.csr_array((values, places, array), shape=(len(array) - 1, width))


def _standing_in(sought: Mapping[int, NDArray[np.float64]], values: NDArray[Any]) -> set[int]:
    """Which rows occur at any offset of a vector."""
    by_size = {node: np.argsort(-np.abs(row))[:64] for node, row in sought.items()}  # the largest are the rarest
    found: set[int] = set()
    for begin in range(0, len(values), VALUES_AT_ONCE):
        for node, row in sought.items():
            slack = SAME * np.abs(row).max()
            end = min(begin + VALUES_AT_ONCE, len(values) - len(row) + 1)  # of the places where it may begin
            places = np.arange(begin, end) if end > begin else np.zeros(0, dtype=np.int64)
            for column in by_size[node]:
                if len(places) == 0:
                    break
                some = values[begin + column : end + column] if len(places) == end - begin else values[places + column]
                places = places[(some >= row[column] - slack) & (some <= row[column] + slack)]
            if any(np.abs(values[place : place + len(row)] - row).max() <= slack for place in places):
                found.add(node)
    return found


def _dense(table: Features, place: int) -> NDArray[np.float64]:
    row = table[[place]].toarray()[0] if isinstance(table, sp.csr_array) else table[place]
    return np.asarray(row, dtype=np.float64)


def _unit(row: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(row / np.linalg.norm(row))
