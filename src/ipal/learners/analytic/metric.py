"""Mahalanobis distances from sums: how far a row is from the classes that were learned."""

import torch
from torch import Tensor

from ipal.learners.analytic.lower_half import mirrored
from ipal.learners.analytic.ridge import factorise


def metrics(gram: Tensor, means: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    r"""Columns T that turn rows so that squared lengths are Mahalanobis distances within classes, and columns P.

    From these, squared lengths of the turned rows times P are taken away for distances overall. Of the balanced G only
    the lower half is read.

    .. math:: \Sigma_w = \frac{1}{C} (G - \textstyle\sum_c \mu_c \mu_c^\top) + \lambda I, \quad
        \Sigma = \Sigma_w + \frac{1}{C} \textstyle\sum_c (\mu_c - \mu_0) (\mu_c - \mu_0)^\top, \quad
        \Sigma_w^{-1} = T T^\top, \quad \Sigma^{-1} = T (I - P P^\top) T^\top

    Source: Lee et al. 2018, "A Simple Unified Framework for Detecting Out-of-Distribution Samples", Eq. 1, with every
    class counted the same, and a ridge as in the solve. P is of one column a class, by the identity of Woodbury 1950,
    "Inverting Modified Matrices". T is inverted in single precision: its condition is the root of that of the matrix.
    """
    within = (mirrored(gram) - means.T @ means).div_(len(means))
    lower = factorise(within, ridge).lower
    eye = torch.eye(len(lower), dtype=torch.float32, device=lower.device)
    root: Tensor = torch.linalg.solve_triangular(lower.float(), eye, upper=False).T.contiguous()
    between = (means - means.mean(dim=0)) @ root.double() / len(means) ** 0.5
    inner = torch.linalg.cholesky(between @ between.T + torch.eye(len(means), dtype=lower.dtype, device=lower.device))
    pull: Tensor = torch.linalg.solve_triangular(inner, between, upper=False).T.float()
    return root, pull.contiguous()
