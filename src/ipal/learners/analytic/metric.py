"""Mahalanobis distances from sums: how far a row is from the classes that were learned."""

import torch
from torch import Tensor

from ipal.learners.analytic.class_sums import Sums
from ipal.learners.analytic.lower_half import mirrored
from ipal.learners.analytic.ridge import factorise


def metrics(sums: Sums, ridge: float) -> tuple[Tensor, Tensor]:
    r"""Columns that turn rows so that squared lengths are Mahalanobis distances: within classes, and overall.

    .. math:: \Sigma_w = \frac{1}{C} (G - \textstyle\sum_c \mu_c \mu_c^\top), \quad
        \Sigma = \frac{1}{C} G - \mu_0 \mu_0^\top

    Source: Lee et al. 2018, "A Simple Unified Framework for Detecting Out-of-Distribution Samples", Eq. 1, with every
    class counted the same, and a ridge as in the solve.
    """
    gram, means = mirrored(sums.balanced_gram()), sums.mean
    overall = means.mean(dim=0, keepdim=True)
    within = gram - means.T @ means
    return _root(within / len(means), ridge), _root(gram / len(means) - overall.T @ overall, ridge)


def _root(covariance: Tensor, ridge: float) -> Tensor:
    """Of the inverse, in single precision."""
    lower = factorise(covariance, ridge).lower
    eye = torch.eye(len(lower), dtype=lower.dtype, device=lower.device)
    turned: Tensor = torch.linalg.solve_triangular(lower, eye, upper=False).T.float()
    return turned.contiguous()
