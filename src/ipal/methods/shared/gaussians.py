"""A Gaussian with a full covariance for every class."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ipal.backend.checks import check_symmetric, require
from ipal.methods.base import Remembered
from ipal.methods.shared.prototypes import PrototypeMemory
from ipal.nn.cholesky import shifted_cholesky


@dataclass(frozen=True, eq=False)
class GaussianMemory:
    """A full Gaussian for every class, and the metric of the feature space."""

    prototypes: PrototypeMemory
    """per class: mean and variance of its embeddings, number of nodes behind them"""
    covariance: Tensor
    """per class: full covariance of its embeddings"""
    feature_matrix: Tensor
    """which directions of the embeddings the outputs depend on"""

    @classmethod
    def empty(cls, width: int, device: torch.device) -> "GaussianMemory":
        zeros = torch.zeros(width, width, device=device)
        return cls(PrototypeMemory.empty(width, device), zeros.new_zeros(0, width, width), zeros)

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        self.prototypes.check(classes, parameters, whole)
        require(len(self.covariance) == len(self.prototypes), "it has not one covariance for every class")
        check_symmetric(self.covariance, "covariance")
        if self.covariance.numel():
            slack = 1e-3 * float(self.covariance.diagonal(dim1=-2, dim2=-1).amax()) + 1e-12
            require(not shifted_cholesky(self.covariance, slack)[1], "'covariance' holds what is no covariance")

    def finite_parts(self) -> dict[str, Tensor]:
        """Means must be short enough to be squared, as in `PrototypeMemory`."""
        prototypes = {f"prototypes.{name}": part for name, part in self.prototypes.finite_parts().items()}
        return {**prototypes, "covariance": self.covariance, "feature_matrix": self.feature_matrix}

    @property
    def mean(self) -> Tensor:
        return self.prototypes.mean

    @property
    def count(self) -> Tensor:
        return self.prototypes.count

    def draw(self, classes: Tensor, roots: Tensor, k: int, generator: torch.Generator) -> Tensor:
        """`k` embeddings of each of some classes, whose covariances have these roots: (classes * k, width)."""
        mean = self.mean[classes]
        noise = torch.randn(len(mean), k, mean.shape[1], generator=generator, device=mean.device)
        return (mean[:, None] + noise @ roots.mT).flatten(0, 1)

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

    def with_products(self, kept: list[Remembered]) -> list[Remembered]:
        """What is kept of the classes, with the sums of products of their rows."""
        return [replace(one, second=partial(self.products, row)) for row, one in enumerate(kept)]

    def products(self, row: int) -> Tensor:
        """Sum of products of a class's rows, from mean and covariance."""
        mean = self.prototypes.mean[row]
        return int(self.prototypes.count[row]) * (self.covariance[row] + torch.outer(mean, mean))
