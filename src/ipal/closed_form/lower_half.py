"""Symmetric matrices of which the lower half is kept: panels of columns, each from its diagonal block downwards."""

from collections.abc import Iterator

import torch
from torch import Tensor

PANEL = 256
"""Columns of one panel."""


def numbers(width: int) -> int:
    """How many numbers the panels of a matrix have."""
    return sum((width - begin) * min(PANEL, width - begin) for begin in range(0, width, PANEL))


def panels(half: Tensor, width: int) -> Iterator[tuple[int, Tensor]]:
    """The first column of every panel, and the panel: a view, (rows from that column on, columns)."""
    offset = 0
    for begin in range(0, width, PANEL):
        rows, columns = width - begin, min(PANEL, width - begin)
        yield begin, half[offset : offset + rows * columns].view(rows, columns)
        offset += rows * columns


def add_products(half: Tensor, rows: Tensor) -> None:
    """Add the products of columns of `rows`, in place.

    Products are computed in the precision of the rows, and added in that of the matrix.
    """
    for begin, panel in panels(half, rows.shape[1]):
        left, right = rows[:, begin:].T, rows[:, begin : begin + PANEL]
        if rows.dtype == half.dtype:
            panel.addmm_(left, right)
        else:
            panel.add_(left @ right)


def square(half: Tensor, width: int, step: int = 1) -> Tensor:
    """The matrix of every `step`-th row and column, of which only the lower half is meant."""
    wanted = torch.arange(0, width, step, device=half.device)
    found = half.new_zeros(len(wanted), len(wanted))
    for begin, panel in panels(half, width):
        first, end = (-(-edge // step) for edge in (begin, begin + panel.shape[1]))
        some = panel if step == 1 else panel[wanted[first:] - begin][:, wanted[first:end] - begin]
        found[first:, first:end] = some
    return found


def mirrored(lower: Tensor) -> Tensor:
    """The symmetric matrix of which the lower half is known."""
    return lower.tril() + lower.tril(-1).T
