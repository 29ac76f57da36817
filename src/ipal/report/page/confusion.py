"""Counts of confused classes, and what follows from them. Pure functions."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
"""Test nodes by true (row) and predicted class (column), in the order learned."""


def counted(rows: Iterable[tuple[int, int, int]], classes: int) -> Counts:
    """From true class, predicted class and number of nodes."""
    counts = np.zeros((classes, classes), np.int64)
    for true, predicted, nodes in rows:
        counts[true, predicted] += nodes
    return counts


def percent(part: float, whole: float) -> float | None:
    return float(100 * part / whole) if whole else None


def shares(counts: Counts) -> list[list[float | None]]:
    """In percent of each row; None in a row without a node. On the diagonal is the recall of a class."""
    return [[percent(value, row.sum()) for value in row] for row in counts]


def grouped(counts: Counts, group: Sequence[int], groups: int) -> Counts:
    """Nodes by true and predicted group of classes, where `group` is that of each class."""
    member = np.eye(groups, dtype=np.int64)[list(group)]
    return np.asarray(member.T @ counts @ member)


def mixing(counts: Counts, is_new: Sequence[bool]) -> tuple[float | None, ...]:
    """Percent of old nodes taken for new classes, new for old, old for other old, and new for other new ones."""
    group = list(map(int, is_new))
    old, new = grouped(counts, group, 2).sum(axis=1)
    wrong = grouped(counts - np.diag(counts.diagonal()), group, 2)
    parts = ((wrong[0, 1], old), (wrong[1, 0], new), (wrong[0, 0], old), (wrong[1, 1], new))
    return tuple(percent(part, whole) for part, whole in parts)
