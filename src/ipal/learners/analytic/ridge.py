"""Ridge regression from sums: the solve, what leaving one row out would have given, and calibration. Pure functions.

Throughout, G is the weighted sum of phi phi^T over rows, Q the weighted sum of phi y^T, and w a row's weight.
"""

import math
import warnings
from dataclasses import dataclass

import scipy.optimize
import torch
from torch import Tensor

from ipal.errors import DataError, NonFiniteError

WORST_CONDITION = 1e12
"""Beyond it, a float64 solve returns mostly rounding."""


MOST_RIDGE = 10.0
"""Times the width: no eigenvalue of a sum of products is more than width times its mean diagonal."""
SUMS = "the sums over nodes"


class IllConditioned(UserWarning):
    """A system could not be solved with the ridge asked for."""


@dataclass(frozen=True, eq=False)
class Factor:
    """G + ridge as a product of triangles, ready to solve with."""

    lower: Tensor
    ridge: float
    """The relative ridge that was really used."""

    def solve(self, right: Tensor) -> Tensor:
        return torch.cholesky_solve(right, self.lower)

    def half(self, columns: Tensor) -> Tensor:
        """L^-1 applied to columns: inner products of the results are products through the inverse."""
        solved: Tensor = torch.linalg.solve_triangular(self.lower, columns, upper=False)
        return solved


def factorise(gram: Tensor, ridge: float) -> Factor:
    """Cholesky of G + ridge * mean(diag G) * I. A ridge too small to solve with is raised, with a warning.

    Only the lower half of G is read.
    """
    size = mean_diagonal(gram)
    used = ridge
    while True:
        lower, failed = shifted_cholesky(gram, used * size)
        pivots = lower.diagonal()
        # The squared ratio of the pivots is a lower bound of the condition number, and costs nothing.
        if not failed and float(pivots.max() / pivots.min()) < WORST_CONDITION**0.5:
            break
        used = max(used * 10, 1e-10)
        if used > MOST_RIDGE * len(gram):
            raise DataError(
                f"No ridge makes these sums solvable (tried from {ridge:g} on): they are no sums over nodes, or the "
                "ridge is too large to be added to them."
            )
    if used != ridge:
        warnings.warn(
            f"A relative ridge of {ridge:g} is too small for these sums (ill-conditioned): {used:g} was used instead.",
            IllConditioned,
            stacklevel=2,
        )
    return Factor(lower, used)


def mean_diagonal(matrix: Tensor) -> Tensor:
    """What a ridge is measured in. One where a matrix is zero but for rounding: denormal numbers may be flushed."""
    size = matrix.diagonal().mean()
    numbers = torch.finfo(matrix.dtype)
    return torch.where(size > numbers.tiny / numbers.eps, size, 1.0)


def shifted_cholesky(matrix: Tensor, shift: Tensor | float, what: str = SUMS) -> tuple[Tensor, bool]:
    """Cholesky factor of a symmetric matrix plus shift * I, and whether there is none. Only the lower half is read."""
    shifted = matrix.tril()
    if not torch.isfinite(shifted.sum()):
        raise NonFiniteError(f"{what} are NaN, infinite or too large to be squared")
    shifted.diagonal(dim1=-2, dim2=-1).add_(shift)
    lower, info = torch.linalg.cholesky_ex(shifted)
    return lower, bool(info.any())


def ridge_weights(factor: Factor, cross: Tensor) -> Tensor:
    r"""Weights of the classes, (width, classes).

    .. math:: W = (G + \lambda I)^{-1} Q

    Source: Hoerl & Kennard 1970, "Ridge Regression: Biased Estimation for Nonorthogonal Problems", Eq. 2.1.
    """
    return factor.solve(cross)


def leverage(half_rows: Tensor, half_others: Tensor, weights: Tensor) -> Tensor:
    r"""How far each row's own target pulls a prediction: at the row itself, or at another view of the same node.

    .. math:: h_i = w_i \, \phi_i^\top (G + \lambda I)^{-1} \psi_i

    Source: Hoaglin & Welsch 1978, "The Hat Matrix in Regression and ANOVA", Sec. 2, the diagonal of the hat matrix;
    here for weighted rows. Rows and others come as columns through `Factor.half`.
    """
    return weights * (half_rows * half_others).sum(dim=0)


def left_out_residual(targets: Tensor, predicted: Tensor, own: Tensor) -> Tensor:
    r"""Error of each row under the model that never saw this row, without refitting.

    .. math:: e_i = \frac{y_i - W^\top \phi_i}{1 - h_i}

    Source: Allen 1974, "The Relationship between Variable Selection and Data Augmentation and a Method for
    Prediction" (PRESS), for weighted rows. Weights of the other rows stay as they are.
    """
    return (targets - predicted) / (1 - own).clamp_min(1e-9)[:, None]


def left_out_prediction(predicted: Tensor, pull: Tensor, residual: Tensor) -> Tensor:
    r"""Prediction at another view psi of each node, by the model that never saw the node's row phi.

    .. math:: W_{-i}^\top \psi_i = W^\top \psi_i - w_i (\phi_i^\top (G + \lambda I)^{-1} \psi_i) \, e_i

    Source: Bartlett 1951, "An Inverse Matrix Adjustment Arising in Discriminant Analysis", the rank-one update behind
    PRESS, read at psi; `pull` is `leverage(phi, psi)`. With psi = phi it is y - e.
    """
    return predicted - pull[:, None] * residual


def log_loss(scores: Tensor, labels: Tensor, weights: Tensor, scale: float) -> float:
    """Weighted mean cross-entropy of softmax(scale * scores)."""
    losses = torch.nn.functional.cross_entropy(scale * scores, labels, reduction="none")
    return float((losses * weights).sum() / weights.sum())


def best_scale(scores: Tensor, labels: Tensor, weights: Tensor) -> float:
    r"""The factor (an inverse temperature) that makes softmax(scale * scores) best calibrated.

    .. math:: s = \arg\min_s \sum_i w_i \, (- \log \mathrm{softmax}(s \, z_i)_{y_i})

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", Sec. 4.2 (temperature scaling, s = 1 / T).
    """
    found = scipy.optimize.minimize_scalar(
        lambda power: log_loss(scores, labels, weights, math.exp(power)),
        bounds=(math.log(0.1), math.log(1000)),
        method="bounded",
        options={"xatol": 1e-3},
    )
    if not math.isfinite(found.fun):
        raise NonFiniteError("the scores of training nodes are NaN or infinite")
    return math.exp(found.x)
