"""Labels of nodes: whole numbers or strings, one a node, and what stands where a node has none."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipal.errors import DataError

Label = int | str
Labels = NDArray[Any]
"""Whole numbers of 64 bits, or strings."""

UNLABELLED, NO_NAME = -1, ""
"""In place of a label, among numbers and among strings."""


def labelled(y: Labels) -> NDArray[np.bool_]:
    """Which nodes have a label."""
    return np.asarray(y != (NO_NAME if y.dtype.kind == "U" else UNLABELLED))


def file_labels(y: NDArray[np.generic], n: int) -> Labels:
    """Labels in a file, one per node: whole numbers or strings, of which an empty one is no label."""
    if y.dtype.kind not in "US":
        return whole_labels(y, n)
    _check_one_a_node(y, n)
    try:
        text: Any = y if y.dtype.kind == "U" else np.char.decode(np.asarray(y, dtype=np.bytes_), "utf-8")
        return np.char.strip(text)
    except UnicodeDecodeError as error:
        raise DataError("The labels are bytes that are no text in UTF-8: make strings of them.") from error


def whole_labels(y: NDArray[np.generic], n: int) -> NDArray[np.int64]:
    """Labels as whole numbers, one per node."""
    _check_one_a_node(y, n)
    numbers = whole_numbers(y)
    if numbers is None:
        raise DataError("The labels are not whole numbers or strings: number the classes 0, 1, 2, …")
    check_labels(numbers)
    return numbers


def _check_one_a_node(y: NDArray[np.generic], n: int) -> None:
    if y.ndim != 1:
        raise DataError(f"The labels must be a list with one number per node; these have {y.ndim} dimension(s).")
    if len(y) != n:
        raise DataError(f"There are {len(y)} labels for {n} nodes: one per node is needed.")


def check_labels(y: NDArray[np.int64]) -> None:
    """Refuse negative labels in a file, but for the one that says that there is none."""
    if len(y) and y.min() < UNLABELLED:
        raise DataError(
            f"A label is {y.min()}: number the classes 0, 1, 2, …, and write {UNLABELLED} for a node without a label."
        )


def checked_ids(ids: NDArray[np.generic], n: int) -> Labels:
    """What nodes are called, in a file: n strings or whole numbers, all different."""
    named = file_labels(ids, n) if ids.ndim == 1 and ids.dtype.kind in "US" else whole_numbers(ids)
    if named is None or named.shape != (n,) or len(np.unique(named)) < n:
        raise DataError(f"'ids' must be {n} strings or whole numbers, one per node, all different.")
    return named


def whole_numbers(values: NDArray[np.generic]) -> NDArray[np.int64] | None:
    """As 64-bit whole numbers; None where they are not that, or too large."""
    if values.dtype.kind == "f":
        wide = values.astype(np.float64)
        exact = np.array_equal(wide, np.floor(wide)) and not (abs(wide) > 2**53).any()
    else:
        fits = values.dtype != np.uint64 or not values.size or values.max() <= np.uint64(np.iinfo(np.int64).max)
        exact = values.dtype.kind in "iub" and fits
    return values.astype(np.int64) if exact else None
