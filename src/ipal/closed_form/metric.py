"""Mahalanobis distances from sums: how far rows are from the classes that were learned.

The scatter within classes is inverted once, and each row is multiplied with it once. What holds for all classes
overall, or for some of them, follows from products with their means.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ipal.closed_form.ridge import factorise
from ipal.closed_form.sums import Normal
from ipal.nn.cholesky import mean_diagonal


@dataclass(frozen=True, eq=False)
class Mahalanobis:
    """The scatter within classes, inverted, and the class means."""

    middle: Tensor
    """Mean of the class means."""
    inverse: Tensor
    """(width, width), with the ridge; in single precision, as rows are."""
    apart: Tensor
    """Class means less the middle, (classes, width)."""
    inner: Tensor
    """Their products through the inverse, (classes, classes)."""
    more: Tensor
    """How much larger the ridge of the scatter overall is."""

    @classmethod
    def of(cls, normal: Normal, least: float, ridge: float) -> Self:
        """From the normal equations; the ridge is at least a share of the mean diagonal of the scatter."""
        means = normal.mean.T
        middle = means.mean(dim=0)
        apart = means - middle
        scatter = normal.gram - means.T @ means
        factor = factorise(scatter, max(ridge, least * float(mean_diagonal(scatter))))
        inverse = torch.cholesky_inverse(factor.lower)
        # Relative to its mean diagonal, the scatter overall has the same ridge.
        more = factor.ridge / mean_diagonal(scatter) * apart.square().sum() / len(middle)
        return cls(middle.float(), inverse.float(), apart.float(), apart @ inverse @ apart.T, more.float())

    def products(self, rows: Tensor) -> Tensor:
        """All that distances of rows follow from: squares, how they fall with the ridge, products with class means."""
        centred = rows - self.middle
        turned = centred @ self.inverse
        squares, falls = ((part * turned).sum(dim=1, keepdim=True) for part in (centred, turned))
        return torch.cat([squares, falls, turned @ self.apart.T], dim=1).double()

    def distances(self, products: Tensor, classes: Tensor | None = None) -> Tensor:
        """Squared distances to the mean of every class within classes and, last, overall to their middle."""
        squares, falls, crossed = torch.split(products, [1, 1, len(self.inner)], dim=1)
        some = torch.arange(len(self.inner)) if classes is None else classes
        inner, crossed = self.inner[some][:, some], crossed[:, some]
        apart = squares - 2 * crossed + inner.diagonal()
        return torch.cat([apart, overall(squares, crossed, inner) * with_more_ridge(squares, falls, self.more)], dim=1)


def overall(squares: Tensor, crossed: Tensor, inner: Tensor) -> Tensor:
    r"""Squared distances to the middle of some classes by the scatter of all their rows, from those within classes.

    .. math:: S = W + \sum_c (\mu_c - \mu_0) (\mu_c - \mu_0)^\top, \quad
        (x - \mu_0)^\top S^{-1} (x - \mu_0) = (x - \mu_0)^\top W^{-1} (x - \mu_0) - t^\top (I + K)^{-1} t

    Source: Lee et al. 2018, "A Simple Unified Framework for Detecting Out-of-Distribution Samples", Eq. 1, with every
    class counted the same; by the identity of Woodbury 1950, "Inverting Modified Matrices". t and K are products of the
    row and of class means with class means through W^-1, less the middle of these classes.
    """
    mean, middle = inner.mean(dim=0), inner.mean()
    t = crossed - crossed.mean(dim=1, keepdim=True) - mean + middle
    within = torch.eye(len(inner), dtype=inner.dtype, device=inner.device) + inner - mean - mean[:, None] + middle
    return squares - 2 * crossed.mean(dim=1, keepdim=True) + middle - (t @ within.inverse() * t).sum(1, keepdim=True)


def with_more_ridge(squares: Tensor, falls: Tensor, more: Tensor) -> Tensor:
    r"""How many times as large a squared distance is with a ridge that is larger by `more`, to first order.

    .. math:: \frac{d(\lambda + \delta)}{d(\lambda)} \approx
        \Big(1 + \delta \, \frac{|(W + \lambda I)^{-1} x|^2}{x^\top (W + \lambda I)^{-1} x}\Big)^{-1}

    Source: Baker & Graves-Morris 1996, "Padé Approximants", Sec. 1.1, of order [0/1]; exact along an eigenvector of W.
    """
    return 1 / (1 + more * falls / squares.clamp_min(torch.finfo(squares.dtype).tiny))
