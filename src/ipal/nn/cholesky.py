"""Cholesky factors of symmetric matrices, of which only the lower half is read."""

import torch
from torch import Tensor

from ipal.errors import NonFiniteError


def mean_diagonal(matrix: Tensor) -> Tensor:
    """The size of a matrix. One where it is zero but for rounding: denormal numbers may be flushed."""
    size = matrix.diagonal().mean()
    numbers = torch.finfo(matrix.dtype)
    return torch.where(size > numbers.tiny / numbers.eps, size, 1.0)


def shifted_cholesky(matrix: Tensor, shift: Tensor | float, what: str = "the sums over nodes") -> tuple[Tensor, bool]:
    """Cholesky factor of a symmetric matrix plus shift * I, and whether there is none."""
    shifted = matrix.tril()
    if not torch.isfinite(shifted.sum()):
        raise NonFiniteError(f"{what} are NaN, infinite or too large to be squared")
    shifted.diagonal(dim1=-2, dim2=-1).add_(shift)
    lower, info = torch.linalg.cholesky_ex(shifted)
    return lower, bool(info.any())
