"""Mahalanobis distances from sums: how far a row is from the classes that were learned."""

import torch
from torch import Tensor

from ipal.learners.analytic.lower_half import mirrored
from ipal.learners.analytic.ridge import factorise


def metrics(gram: Tensor, means: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    r"""Columns that turn rows so that squared lengths are Mahalanobis distances: within classes, and overall.

    .. math:: \Sigma_w = \frac{1}{C} (G - \textstyle\sum_c \mu_c \mu_c^\top), \quad
        \Sigma = \frac{1}{C} G - \mu_0 \mu_0^\top

    Source: Lee et al. 2018, "A Simple Unified Framework for Detecting Out-of-Distribution Samples", Eq. 1, with every
    class counted the same, and a ridge as in the solve. Of the balanced G only the lower half is read. Roots are
    inverted in single precision: their condition is the root of that of the matrix.
    """
    gram = mirrored(gram)
    overall = means.mean(dim=0, keepdim=True)
    within = gram - means.T @ means
    return _root(within / len(means), ridge), _root(gram / len(means) - overall.T @ overall, ridge)


def _root(covariance: Tensor, ridge: float) -> Tensor:
    """Of the inverse, in single precision."""
    lower = factorise(covariance, ridge).lower
    eye = torch.eye(len(lower), dtype=torch.float32, device=lower.device)
    turned: Tensor = torch.linalg.solve_triangular(lower.float(), eye, upper=False).T
    return turned.contiguous()
