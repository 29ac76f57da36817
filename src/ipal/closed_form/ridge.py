"""Ridge regression from sums: the solve, and the ridge and the scale that are least wrong about rows left out.

When rows are learned, some of them are left out in turn, for every ridge at once: one eigendecomposition of a narrower
model, whose columns are some of the model's own. Their log-losses are kept as sums by task, class, ridge and scale. The
ridge and the scale with the least sum over classes are used. No validation node is looked at.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from ipal.backend.checks import require
from ipal.closed_form.sums import Normal, Rows, Sums
from ipal.errors import DataError, NonFiniteError
from ipal.nn.cholesky import shifted_cholesky


def factorise(gram: Tensor, ridge: float) -> Tensor:
    """Lower Cholesky factor of A + ridge * I."""
    lower, failed = shifted_cholesky(gram, ridge)
    if failed:
        raise DataError(f"With a ridge of {ridge:g} the sums cannot be solved: they are no sums over nodes.")
    return lower


def ridge_weights(lower: Tensor, mean: Tensor) -> Tensor:
    r"""Weights of the classes, (width, classes), by the factor of A + lambda.

    .. math:: W = (A + \lambda I)^{-1} M

    Source: Hoerl & Kennard 1970, "Ridge Regression: Biased Estimation for Nonorthogonal Problems", Eq. 2.1.
    """
    return torch.cholesky_solve(mean, lower)


RIDGES = tuple(float(f"{10 ** (power / 2):.2g}") for power in range(-10, 1))
"""With larger ones weights are little but class means."""
FIRST_RIDGE = 0.01
"""Until a row can be left out."""
SCALES = tuple(2 ** (power / 2) for power in range(-2, 15))
FIRST_SCALE = 8.0
NEAR = 1.01
"""A loss of so many times the least is as good."""
MOST_ROWS = 1024
"""That are left out of one batch."""


class Products(NamedTuple):
    """Products of rows and class means through (A + ridge)^-1: all that leaving a row out needs."""

    row_row: Tensor
    """(rows,): of each row with itself."""
    row_mean: Tensor
    """(rows, classes)"""
    mean_mean: Tensor
    """(classes, classes)"""


def left_out_scores(products: Products, labels: Tensor, normal: Normal) -> Tensor:
    r"""Scores of rows by the model that never saw the row, (rows, classes).

    .. math:: s_i = x_i^\top \big( A - f x_i x_i^\top + k \, (\mu'_c \mu_c'^\top - \mu_c \mu_c^\top) + \lambda I
        \big)^{-1} M', \quad \mu'_c = \frac{n \mu_c - x_i}{n - 1}

    for a row of class c, where M' has the class mean without the row. The weights f and k stay as they are. The change
    has rank two, so that one inverse of A serves all rows: A' = A + U B U^T with U = (x_i, mu_c).

    Source: Woodbury 1950, "Inverting Modified Matrices"; for k = 0 this is Allen 1974 (PRESS).
    """
    x_x, x_mean, inner = products
    n, k = (part[labels].to(x_x) for part in (normal.count, normal.mean_weight))
    a, b = n / (n - 1), -1 / (n - 1)  # mu' = a mu + b x
    change = torch.stack([k * b**2 - normal.row_weight, k * a * b, k * a * b, k * (a**2 - 1)], dim=1).view(-1, 2, 2)
    own = labels[:, None, None].expand(-1, 2, 1)
    x_own, own_own = x_mean.gather(1, labels[:, None])[:, 0], inner.diagonal()[labels]
    u_u = torch.stack([x_x, x_own, x_own, own_own], dim=1).view(-1, 2, 2)
    u_mean = torch.stack([x_mean, inner[labels]], dim=1)
    without = a[:, None, None] * u_mean.gather(2, own) + b[:, None, None] * u_u[:, :, :1]
    u_mean = u_mean.scatter(2, own, without)
    eye = torch.eye(2, dtype=x_x.dtype, device=x_x.device)
    correction = torch.linalg.solve(eye + change @ u_u, change @ u_mean)
    found: Tensor = u_mean[:, 0] - (u_u[:, :1] @ correction)[:, 0]
    return found


def products_by_ridge(rows: Tensor, normal: Normal, ridges: Sequence[float]) -> list[Products]:
    """For many ridges, by one eigendecomposition."""
    values, vectors = torch.linalg.eigh(normal.gram, UPLO="L")
    x, mean = rows @ vectors, vectors.T @ normal.mean
    inverses = [1 / (values.clamp_min(0) + ridge) for ridge in ridges]
    return [Products(x.square() @ one, (x * one) @ mean, (mean.T * one) @ mean) for one in inverses]


def products_by_factor(rows: Tensor, normal: Normal, lower: Tensor) -> Products:
    """For one ridge, by the Cholesky factor of A + ridge."""
    x = torch.linalg.solve_triangular(lower, rows.T, upper=False)
    mean = torch.linalg.solve_triangular(lower, normal.mean, upper=False)
    return Products(x.square().sum(dim=0), x.T @ mean, mean.T @ mean)


def log_losses(scores: Tensor, labels: Tensor, scales: Sequence[float]) -> Tensor:
    r"""Cross-entropy of softmax(scale * scores) for every scale, (scales, rows).

    .. math:: - \log \mathrm{softmax}(s \, z_i)_{y_i}

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", Sec. 4.2 (temperature scaling, s = 1 / T).
    """
    scaled = torch.tensor(scales, dtype=scores.dtype, device=scores.device)[:, None, None] * scores
    return -scaled.log_softmax(dim=-1).gather(2, labels.expand(len(scales), -1)[..., None])[..., 0]


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Sums of leave-one-out log-losses, a row for every task and class."""

    task: Tensor
    """(rows,): number of the task."""
    place: Tensor
    """(rows,): the class, in the learner's order."""
    loss: Tensor
    """(rows, ridges, scales)"""
    count: Tensor
    """(rows,): nodes that were left out."""

    @classmethod
    def empty(cls, ridges: int, device: torch.device) -> Self:
        loss = torch.zeros(0, ridges, len(SCALES), dtype=torch.float64, device=device)
        whole = torch.zeros(0, dtype=torch.int64, device=device)
        return cls(whole, whole, loss, whole)

    def check(self, classes: int, tasks: int) -> None:
        """Refuse rows that no model of so many classes and tasks has."""
        require(len({len(part) for part in (self.task, self.place, self.loss, self.count)}) == 1, "its losses differ")
        for name, part, most in (("task", self.task, tasks), ("place", self.place, classes)):
            require(((part >= 0) & (part < most)).all(), f"'left_out.{name}' holds other numbers")
        require((self.count > 0).all(), "'left_out.count' holds other numbers than of nodes")

    def plus(self, sums: Sums, rows: Rows, task: int, ridges: Sequence[float]) -> Self:
        """With some of the rows that were just added to the sums."""
        some = spaced(rows.labels, sums.count)
        if not len(some):
            return self
        labels, step, normal = rows.labels[some], sums.step, sums.normal(sums.step)
        left = torch.cat([piece[:, ::step] for piece, _ in rows.pieces(some)]) * step**0.5
        scores = [left_out_scores(one, labels, normal) for one in products_by_ridge(left, normal, ridges)]
        if not torch.stack(scores).isfinite().all():
            raise NonFiniteError("the leave-one-out scores of training nodes are NaN or infinite")
        losses = torch.stack([log_losses(one, labels, SCALES).T for one in scores], dim=1)
        places, at = torch.unique(labels, return_inverse=True)
        loss = losses.new_zeros(len(places), *losses.shape[1:]).index_add(0, at, losses)
        return self._and(torch.full_like(places, task), places, loss, torch.bincount(at))

    def best(self, ridges: Sequence[float]) -> tuple[float, float]:
        """The smallest ridge whose loss is about the least, and its best scale; every class counts the same.

        Losses are flat in large ridges, which leave little but class means.
        """
        if not len(self.place):
            return ridges[0] if len(ridges) == 1 else FIRST_RIDGE, FIRST_SCALE
        places, at = torch.unique(self.place, return_inverse=True)
        loss = self.loss.new_zeros(len(places), *self.loss.shape[1:]).index_add(0, at, self.loss)
        mean = (loss / torch.bincount(at, self.count)[:, None, None]).mean(dim=0)
        least = mean.amin(dim=1)
        ridge = int((least <= NEAR * least.min()).double().argmax())
        return ridges[ridge], interpolated(mean[ridge].tolist(), int(mean[ridge].argmin()))

    def before(self, task: int) -> Self:
        some = self.task < task
        return type(self)(self.task[some], self.place[some], self.loss[some], self.count[some])

    def moved(self, places: Tensor) -> Self:
        """Class i is now class `places[i]`."""
        return replace(self, place=places[self.place])

    def merged(self, other: Self, places: Tensor, tasks: int) -> Self:
        """With those of another model, whose classes are to be at these places, after so many tasks."""
        return self._and(other.task + tasks, places[other.place], other.loss, other.count)

    def _and(self, *more: Tensor) -> Self:
        mine = (self.task, self.place, self.loss, self.count)
        return type(self)(*(torch.cat(pair) for pair in zip(mine, more, strict=True)))


def spaced(labels: Tensor, count: Tensor) -> Tensor:
    """Some of the rows of every class, evenly spaced. The only row of a class cannot be left out."""
    classes = torch.unique(labels[count[labels] > 1]).tolist()
    each = max(1, MOST_ROWS // max(1, len(classes)))
    own = [torch.nonzero(labels == c).flatten() for c in classes]
    chosen = [mine[:: math.ceil(len(mine) / each)] for mine in own]
    return torch.cat(chosen)[:MOST_ROWS] if chosen else labels.new_zeros(0)


def interpolated(losses: Sequence[float], least: int) -> float:
    """The scale at the vertex of a parabola through the least loss and its neighbours, by the logarithm of scales."""
    power = math.log2(SCALES[least])
    if 0 < least < len(losses) - 1:
        before, here, after = losses[least - 1 : least + 2]
        bend = before - 2 * here + after
        power += 0.25 * (before - after) / bend if bend > 0 else 0.0
    return float(2**power)
