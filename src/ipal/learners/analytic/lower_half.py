"""Symmetric matrices of which only the lower half is computed, or kept: row by row, in half the numbers."""

import torch
from torch import Tensor

BLOCK = 512
"""Columns of one piece of a Gram matrix: pieces above the diagonal are not computed."""


def add_gram(gram: Tensor, rows: Tensor, factor: float = 1.0) -> None:
    """Add the products of columns of `rows`, times a factor, to a matrix in place: its lower half, by blocks.

    Products are computed in the precision of the rows, and added in that of the matrix.
    """
    for begin in range(0, rows.shape[1], BLOCK):
        left, right, sums = rows[:, begin:].T, rows[:, begin : begin + BLOCK], gram[begin:, begin : begin + BLOCK]
        if rows.dtype == gram.dtype:
            sums.addmm_(left, right, alpha=factor)
        else:
            sums.add_(left @ right, alpha=factor)


def mirrored(lower: Tensor) -> Tensor:
    """The symmetric matrix of which the lower half is known."""
    return lower.tril() + lower.tril(-1).T


def packed(lower: Tensor) -> Tensor:
    """The lower half row by row: half the numbers. Without an index of every number, which would take twice as much."""
    half = _half(lower)
    return torch.tensor(lower.numpy()[half.numpy()]) if lower.device.type == "cpu" else lower[half]  # NumPy is faster


def unpacked(numbers: Tensor, width: int) -> Tensor:
    """The matrix of which `packed` gave the lower half; zero above it."""
    lower = torch.zeros(width, width, dtype=numbers.dtype, device=numbers.device)
    return lower.masked_scatter_(_half(lower), numbers)


def _half(matrix: Tensor) -> Tensor:
    """True on the diagonal and below it."""
    return torch.ones_like(matrix, dtype=torch.bool).tril_()


def is_positive(matrix: Tensor, slack: float) -> bool:
    """Whether a symmetric matrix is positive semi-definite but for rounding."""
    shifted = matrix.clone()
    shifted.diagonal().add_(max(slack, torch.finfo(matrix.dtype).tiny))
    return int(torch.linalg.cholesky_ex(shifted).info) == 0
