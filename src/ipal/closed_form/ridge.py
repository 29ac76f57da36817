"""Ridge regression from sums: the solve. Pure functions; of symmetric matrices only the lower half is read."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from ipal.errors import DataError
from ipal.nn.cholesky import mean_diagonal, shifted_cholesky

WORST_CONDITION = 1e12
"""Beyond it, a float64 solve returns mostly rounding."""
MOST_RIDGE = 1e6


class IllConditioned(UserWarning):
    """A system could not be solved with the ridge asked for."""


@dataclass(frozen=True, eq=False)
class Factor:
    """A + ridge as a product of triangles, ready to solve with."""

    lower: Tensor
    ridge: float
    """The ridge that was really used."""


def factorise(gram: Tensor, ridge: float) -> Factor:
    """Cholesky factor of A + ridge * I. A ridge too small to solve with is raised, with a warning."""
    used = ridge
    while True:
        lower, failed = shifted_cholesky(gram, used)
        pivots = lower.diagonal()
        # The squared ratio of the pivots is a lower bound of the condition number, and costs nothing.
        if not failed and float(pivots.max() / pivots.min()) < WORST_CONDITION**0.5:
            break
        used = max(used * 10, 1e-10 * float(mean_diagonal(gram)))
        if used > MOST_RIDGE * len(gram):
            raise DataError(
                f"No ridge makes these sums solvable (tried from {ridge:g} on): they are no sums over nodes, or the "
                "ridge is too large to be added to them."
            )
    if used != ridge:
        warnings.warn(
            f"A ridge of {ridge:g} is too small for these sums (ill-conditioned): {used:g} was used instead.",
            IllConditioned,
            stacklevel=2,
        )
    return Factor(lower, used)


def ridge_weights(factor: Factor, mean: Tensor) -> Tensor:
    r"""Weights of the classes, (width, classes).

    .. math:: W = (A + \lambda I)^{-1} M

    Source: Hoerl & Kennard 1970, "Ridge Regression: Biased Estimation for Nonorthogonal Problems", Eq. 2.1.
    """
    return torch.cholesky_solve(mean, factor.lower)
