"""DPCR: dual projection and classifier reconstruction.

He et al. 2025 (ICML), "Semantic Shift Estimation via Dual-Projection and Classifier Reconstruction for Exemplar-Free
Class-Incremental Learning", https://arxiv.org/abs/2503.05423. The encoder learns by LwF. What is kept of old classes
follows its drift by two projections, and the classifier is a ridge regression. Differences from the paper: balanced
cross-entropy; both ridges are relative to the matrices they are added to; and that of the first projection pulls to the
identity instead of zero. Where a class returns, what was known of it follows the drift and its new nodes are added.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ipal.backend.checks import require
from ipal.config import Positive, TrainConfig
from ipal.errors import DataError
from ipal.methods.base import Network, Space, TaskContext
from ipal.methods.lwf import LwF
from ipal.methods.shared.gaussians import ClassGaussians
from ipal.methods.shared.projections import class_projection, drifted_moments, dual_projection, linear_map
from ipal.nn.cholesky import mean_diagonal, shifted_cholesky


def reconstructed_classifier(G: Tensor, H: Tensor, g: float) -> Tensor:
    r"""Weights of the classes, (width, classes), in columns of length one.

    .. math:: W = (\sum_c G_c + g s I)^{-1} H, \quad H = [n_1 \mu_1^T, n_2 \mu_2^T, \dots]

    Source: He et al. 2025, the classifier reconstruction; sums of the current classes are X^T X and X^T Y. s is the
    mean of the diagonal of the sum.
    """
    lower, failed = shifted_cholesky(G.double(), g * mean_diagonal(G.double()))
    if failed:
        raise DataError(f"The sums over nodes have no inverse with dpcr.ridge={g:g}: set a larger one.")
    return F.normalize(torch.cholesky_solve(H.double(), lower), dim=0).to(G).contiguous()


@dataclass(frozen=True, eq=False)
class DPCRMemory(ClassGaussians):
    """A full Gaussian for every class, which has the class's Gram matrix, and the classifier."""

    weights: Tensor
    """weights of every class"""

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        super().check(classes, parameters, whole)
        require(self.weights.shape == self.mean.mT.shape, "it has not one column of weights for every class")


@dataclass(frozen=True, kw_only=True)
class DPCR(LwF):
    """Class statistics that follow the drift by a dual projection, and a classifier solved from them."""

    epsilon: Positive = 1e-2
    """Ridge of the task-wise projection, the paper's epsilon."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.9999
    """Share of a class's squares that its leading directions make up."""
    ridge: Positive = 1e-3
    """Ridge of the classifier, the paper's gamma."""

    name = "dpcr"
    title = "DPCR"
    default_train = TrainConfig(epochs=10)

    def init(self, space: Space) -> DPCRMemory:
        return DPCRMemory.empty(space.width, space.device, torch.zeros(space.width, 0, device=space.device))

    def end_task(self, network: Network, memory: Any, context: TaskContext, rng: torch.Generator) -> Any:
        f = context.embeddings(network)
        if context.before is not None:
            P = linear_map(context.before, f, self.epsilon)
            every = range(len(memory.mean))
            W = [dual_projection(P, class_projection(memory.products_of(c), self.share)) for c in every]
            moved = [drifted_moments(memory.mean[c], memory.covariance[c], W[c]) for c in every]
            memory = memory.moved(*map(torch.stack, zip(*moved, strict=True)))
        memory = memory.learned(context, f)
        G = torch.stack([memory.products_of(c) for c in range(len(memory.mean))]).sum(dim=0)
        weights = reconstructed_classifier(G, (memory.count[:, None] * memory.mean).mT, self.ridge)
        return replace(memory, weights=weights)

    def classify(self, network: Network, memory: DPCRMemory, f: Tensor) -> Tensor:
        return f @ memory.weights

    def mean_logs(self, memory: DPCRMemory) -> Tensor:
        return memory.mean @ memory.weights
