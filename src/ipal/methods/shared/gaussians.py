"""A Gaussian with a full covariance for every class."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ipal.backend.checks import check_symmetric, require
from ipal.methods.shared.prototypes import PrototypeMemory


@dataclass(frozen=True, eq=False)
class GaussianMemory:
    """A full Gaussian for every class, and the metric of the feature space."""

    prototypes: PrototypeMemory
    """per class: mean and variance of its embeddings, number of nodes behind them"""
    covariance: Tensor
    """per class: full covariance of its embeddings"""
    feature_matrix: Tensor
    """which directions of the embeddings the outputs depend on"""

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        self.prototypes.check(classes, parameters, whole)
        require(len(self.covariance) == len(self.prototypes), "it has not one covariance for every class")
        check_symmetric(self.covariance, "covariance")

    def learned(self, row: Tensor, f: Tensor) -> "GaussianMemory":
        """With a class; one that was known is pooled with what is known of it, as prototypes are."""
        mean, known = f.mean(dim=0), int(row) < len(self.prototypes)
        covariance = torch.cov(f.T, correction=0).reshape(2 * f.shape[1:])  # of one column it gives no matrix
        if known:
            share = len(f) / (len(f) + int(self.prototypes.count[row]))
            apart = mean - self.prototypes.mean[row[0]]
            between = share * (1 - share) * torch.outer(apart, apart)
            covariance = torch.lerp(self.covariance[row[0]], covariance, share) + between
            every = self.covariance.index_copy(0, row, covariance[None])
        else:
            every = torch.cat([self.covariance, covariance[None]])
        count, variance = torch.tensor([len(f)], device=f.device), f.var(dim=0, correction=0)[None]
        return replace(self, prototypes=self.prototypes.learned(row, mean[None], variance, count), covariance=every)

    def products(self, row: int) -> Tensor:
        """Sum of products of a class's rows, from mean and covariance."""
        mean = self.prototypes.mean[row]
        return int(self.prototypes.count[row]) * (self.covariance[row] + torch.outer(mean, mean))
