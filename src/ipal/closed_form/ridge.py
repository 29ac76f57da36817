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


def weights_without(weights: Tensor, mean: Tensor, c: int) -> Tensor:
    r"""Weights of the other classes, as if class c had never been learned, where all share one scatter within classes.

    .. math:: W' = \frac{C}{C - 1} \, W \, (I + D M^\top W)^{-1}, \quad D_{kk} = \frac{1}{C - 1}, \quad D_{cc} = -1

    without column c. A sum of C scatters becomes one of C - 1, and so does the ridge; what else changes has rank C.

    Source: Woodbury 1950, "Inverting Modified Matrices".
    """
    classes = weights.shape[1]
    d = torch.full((classes, 1), 1 / (classes - 1), dtype=weights.dtype, device=weights.device)
    d[c] = -1
    eye = torch.eye(classes, dtype=weights.dtype, device=weights.device)
    found = torch.linalg.solve(eye + d * (mean.T @ weights), weights, left=False) * (classes / (classes - 1))
    return torch.cat([found[:, :c], found[:, c + 1 :]], dim=1)
