"""Counts of confused classes, and what follows from them. Pure functions."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
"""Test nodes by true (row) and predicted class (column), in the order learned."""


class Mixing(NamedTuple):
    """How old classes and those of the newest task are taken for each other, in percent of the nodes of each."""

    old_as_new: float | None
    new_as_old: float | None
    old_among_themselves: float | None
    new_among_themselves: float | None


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


def mixing(counts: Counts, is_new: Sequence[bool]) -> Mixing:
    """Confusion of old classes with new ones."""
    group = list(map(int, is_new))
    old, new = grouped(counts, group, 2).sum(axis=1)
    wrong = grouped(counts - np.diag(counts.diagonal()), group, 2)
    return Mixing(
        percent(wrong[0, 1], old), percent(wrong[1, 0], new), percent(wrong[0, 0], old), percent(wrong[1, 1], new)
    )
