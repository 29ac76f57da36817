"""A Gaussian with a full covariance for every class."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ipal.backend.checks import check_symmetric, require
from ipal.methods.base import TaskContext
from ipal.methods.shared.prototypes import HasPrototypes, PrototypeMemory
from ipal.nn.cholesky import mean_diagonal, shifted_cholesky


def moments(f: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of rows; of one column `torch.cov` gives no matrix."""
    return f.mean(dim=0), torch.cov(f.T, correction=0).reshape(2 * f.shape[1:])


def whitening(covariance: Tensor, s: float) -> tuple[Tensor, Tensor]:
    r"""For every class a matrix after which distances are Mahalanobis distances, and the offset of its log-density.

    .. math:: A_c A_c^T = S_c^{-1}, \quad S_c = (1 - s) \Sigma_c + s v I

    Source: Rypesc et al. 2024, the classification by Gaussians. v is the mean variance of all classes, the offset
    -log det(S) / 2. NaN where S has no inverse.
    """
    eye = torch.eye(covariance.shape[-1]).to(covariance.double())
    v = mean_diagonal(covariance.double().mean(dim=0))
    lower, info = torch.linalg.cholesky_ex((1 - s) * covariance.double() + s * v * eye)
    lower = torch.where(info[:, None, None] > 0, torch.nan, lower)
    inverse = torch.linalg.solve_triangular(lower, eye.expand_as(lower), upper=False).mT
    return inverse.to(covariance), -lower.diagonal(dim1=-2, dim2=-1).log().sum(dim=1).to(covariance)


def log_density(f: Tensor, mu: Tensor, A: Tensor, offsets: Tensor) -> Tensor:
    r"""Logarithm of every class's density at embeddings, up to a constant: (nodes, classes).

    .. math:: -\tfrac12 \|(f - \mu_c) A_c\|^2 - \tfrac12 \log \det S_c

    Source: Rypesc et al. 2024, the Bayes classifier, with the same prior for every class; A and the offsets are those
    of `whitening`.
    """
    apart = [(f @ A_c - mu_c @ A_c).square().sum(dim=1) for mu_c, A_c in zip(mu, A, strict=True)]
    return offsets - 0.5 * torch.stack(apart, dim=1)


@dataclass(frozen=True, eq=False)
class ClassGaussians(HasPrototypes):
    """A full Gaussian for every class, in the order in which classes were learned."""

    covariance: Tensor
    """per class: full covariance of its embeddings"""

    @classmethod
    def empty(cls, width: int, device: torch.device, *more: Tensor) -> Self:
        return cls(PrototypeMemory.empty(width, device), torch.zeros(0, width, width, device=device), *more)

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        self.prototypes.check(classes, parameters, whole)
        require(len(self.covariance) == len(self.mean), "it has not one covariance for every class")
        check_symmetric(self.covariance, "covariance")
        if self.covariance.numel():
            slack = 1e-3 * float(self.covariance.diagonal(dim1=-2, dim2=-1).amax()) + 1e-12
            require(not shifted_cholesky(self.covariance, slack)[1], "'covariance' holds what is no covariance")

    def draw(self, classes: Tensor, roots: Tensor, k: int, generator: torch.Generator) -> Tensor:
        """`k` embeddings of each of some classes, whose covariances have these roots: (classes * k, width)."""
        mean = self.mean[classes]
        noise = torch.randn(len(mean), k, mean.shape[1], generator=generator, device=mean.device)
        return (mean[:, None] + noise @ roots.mT).flatten(0, 1)

    def learned(self, context: TaskContext, f: Tensor) -> Self:
        """With the current classes, from the embeddings of all training nodes; known ones are pooled as prototypes."""
        prototypes, covariances = self.prototypes, [*self.covariance]
        for row in context.current:
            own = f[context.labels == row]
            mean, covariance = moments(own)
            if int(row) < len(covariances):
                share = len(own) / (len(own) + int(prototypes.count[row]))
                apart = mean - prototypes.mean[row]
                between = share * (1 - share) * torch.outer(apart, apart)
                covariances[row] = torch.lerp(covariances[row], covariance, share) + between
            else:
                covariances.append(covariance)
            count, variance = torch.tensor([len(own)], device=f.device), own.var(dim=0, correction=0)[None]
            prototypes = prototypes.learned(row[None], mean[None], variance, count)
        return replace(self, prototypes=prototypes, covariance=torch.stack(covariances))

    def moved(self, mean: Tensor, covariance: Tensor) -> Self:
        """With other means and covariances of all classes; the numbers of nodes stay."""
        variance = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0).clone()
        return replace(self, prototypes=replace(self.prototypes, mean=mean, variance=variance), covariance=covariance)

    def mapped(self, by: Callable[[Tensor], Tensor], k: int, generator: torch.Generator) -> Self:
        """Of every class the Gaussian of `k` mapped samples; one class at a time."""
        found = []
        for row, covariance in enumerate(self.covariance):
            values, vectors = torch.linalg.eigh(covariance.double())  # the root may have zero directions
            root = ((vectors * values.clamp_min(0).sqrt()) @ vectors.mT).to(covariance)
            samples = self.draw(torch.tensor([row], device=root.device), root[None], k, generator)
            found.append(moments(by(samples)))
        return self.moved(*map(torch.stack, zip(*found, strict=True)))

    def products_of(self, row: int) -> Tensor:
        """Sum of products of a class's rows, from mean and covariance."""
        return int(self.count[row]) * (self.covariance[row] + torch.outer(self.mean[row], self.mean[row]))


@dataclass(frozen=True, eq=False)
class GaussianMemory(ClassGaussians):
    """A full Gaussian for every class, and the metric of the feature space."""

    feature_matrix: Tensor
    """which directions of the embeddings the outputs depend on"""
