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


@dataclass(frozen=True, eq=False)
class Diagonal:
    """G + ridge in the coordinates of G's eigenvectors: a `Factor` that costs nothing, for any number of ridges."""

    values: Tensor

    def solve(self, right: Tensor) -> Tensor:
        return right / self.values[:, None]

    def half(self, columns: Tensor) -> Tensor:
        return columns / self.values.sqrt()[:, None]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues of G, and rows in the coordinates of its eigenvectors: one decomposition serves every ridge."""

    values: Tensor
    size: Tensor
    """The mean diagonal of G."""

    @classmethod
    def of_gram(cls, gram: Tensor) -> tuple["Spectrum", Tensor]:
        """Of G itself, and its eigenvectors as columns. Only its lower half is read."""
        _check_finite(gram.tril())
        values, vectors = torch.linalg.eigh(gram, UPLO="L")
        return cls(values, mean_diagonal(gram)), vectors

    @classmethod
    def of_rows(cls, rows: Tensor, others: Tensor | None = None) -> tuple["Spectrum", Tensor, Tensor]:
        r"""Of G = rows^T rows, with the coordinates of the rows, and of others (or of the rows again).

        .. math:: \Phi^\top \Phi = U S U^\top, \quad \Phi \Phi^\top = V S V^\top, \quad
            \Phi U = V S^{1/2}, \quad \Psi U = \Psi \Phi^\top V S^{-1/2}

        Source: Saunders et al. 1998, "Ridge Regression Learning Algorithm in Dual Variables", Sec. 2. The dual form, V,
        where rows are fewer than columns. Directions in which there are no rows are left out: no prediction goes there.
        """
        if len(rows) >= rows.shape[1]:
            found, vectors = cls.of_gram(rows.T @ rows)
            turned = rows @ vectors
            return found, turned, turned if others is None else others @ vectors
        products = rows @ rows.T
        _check_finite(products)
        values, vectors = torch.linalg.eigh(products)
        there = values > torch.finfo(values.dtype).eps * len(values) * values[-1]
        values, vectors = values[there], vectors[:, there]
        size = products.diagonal().sum() / rows.shape[1]
        turned = vectors * values.sqrt()
        of_others = turned if others is None else (others @ rows.T) @ (vectors / values.sqrt())
        return cls(values, torch.where(size > 0, size, 1.0)), turned, of_others

    def at(self, ridge: float) -> Diagonal:
        """The system with a relative ridge, for rows and Q in these coordinates."""
        floor = torch.finfo(self.values.dtype).eps * self.size
        return Diagonal((self.values + ridge * self.size).clamp_min(floor))


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
    _check_finite(shifted, what)
    shifted.diagonal(dim1=-2, dim2=-1).add_(shift)
    lower, info = torch.linalg.cholesky_ex(shifted)
    return lower, bool(info.any())


def _check_finite(matrix: Tensor, what: str = SUMS) -> None:
    if not torch.isfinite(matrix.sum()):
        raise NonFiniteError(f"{what} are NaN, infinite or too large to be squared")


def ridge_weights(factor: Factor | Diagonal, cross: Tensor) -> Tensor:
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
