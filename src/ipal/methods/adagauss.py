"""AdaGauss: a Gaussian for every class that is adapted from task to task.

Rypesc et al. 2024 (NeurIPS), "Task-recency bias strikes back: Adapting covariances in Exemplar-Free Class Incremental
Learning", https://arxiv.org/abs/2409.18265. Differences from the paper: balanced cross-entropy, equal priors; the
adapter of the distillation is linear and solved in every step, not trained; the one after a task adds to
its input what two layers make of it. What is known of a class that returns is adapted, and pooled with its new nodes.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from ipal.config import Draws, Epochs, NonNegative, TrainConfig
from ipal.methods.base import Batch, Network, Space, TaskContext, Terms
from ipal.methods.classifier import Classifier, Competing, node_cross_entropy
from ipal.methods.shared.adapter import adapted, fitted_adapter
from ipal.methods.shared.gaussians import ClassGaussians, log_density, whitening
from ipal.methods.shared.projections import linear_map
from ipal.nn.cholesky import mean_diagonal

RIDGE = 1e-3
"""What is added to a diagonal, relative to its mean."""


def projected_distillation(f: Tensor, f_before: Tensor, A: Tensor) -> Tensor:
    r"""Mean squared distance of adapted embeddings to what the previous encoder gave.

    .. math:: L_{PKD} = E_x \, \|f_t(x) A - f_{t-1}(x)\|^2

    Source: Rypesc et al. 2024, the projected distillation; A maps new embeddings to old ones.
    """
    return (f @ A - f_before).square().sum(dim=1).mean()


def anti_collapse(z: Tensor, b: float) -> Tensor:
    r"""Minus the mean of the diagonal of the covariance's Cholesky factor, no entry counting more than `b`.

    .. math:: L_{AC} = -\tfrac1d \sum_i \min(a_i, b)

    Source: Rypesc et al. 2024, the anti-collapse loss. a is the diagonal of chol(cov(z) + s I), s a thousandth of the
    mean variance.
    """
    apart = (z - z.mean(dim=0)).double()
    covariance = apart.mT @ apart / len(z)
    least = RIDGE * mean_diagonal(covariance).detach() * torch.eye(z.shape[1]).to(covariance)
    lower, _ = torch.linalg.cholesky_ex(covariance + least)
    return torch.neg(lower.diagonal().clamp_max(b).mean()).to(z.dtype)


@dataclass(frozen=True, kw_only=True)
class AdaGauss(Classifier):
    """Gaussians that an adapter maps to the new embeddings; features are kept from collapsing."""

    competing: Competing = "current"
    """Classes whose outputs the cross-entropy of current nodes compares: all seen so far, or the current ones."""
    strength: NonNegative = 10.0
    """Weight of the distillation, the paper's lambda."""
    bound: NonNegative = 1.0
    """Most that an entry counts in the anti-collapse loss, the paper's beta."""
    shrinkage: Annotated[float, Field(ge=1e-4, le=1)] = 0.5
    """Share of the identity in the covariances."""
    samples: Draws = 2000
    """Embeddings drawn of each old class after a task."""
    adapter_steps: Epochs = 300
    """Steps in which the adapter is trained after a task."""

    name = "adagauss"
    title = "AdaGauss"
    default_train = TrainConfig(epochs=200)

    def init(self, space: Space) -> ClassGaussians:
        return ClassGaussians.empty(space.width, space.device)

    def prepare(self, memory: Any, context: TaskContext) -> TaskContext:
        return context.with_before()

    def loss(self, network: Network, memory: Any, batch: Batch, context: Any, rng: torch.Generator) -> Terms:
        f = network.encoder(batch.graph)
        terms = {
            "cross_entropy": node_cross_entropy(network.classifier(f), batch.positions, context, self.competing),
            "anti_collapse": anti_collapse(f, self.bound),
        }
        if context.before is not None:
            before = context.before_of(batch)
            A = linear_map(f.detach(), before, RIDGE)
            terms["distillation"] = self.strength * projected_distillation(f, before, A)
        return terms

    def end_task(self, network: Network, memory: Any, context: TaskContext, rng: torch.Generator) -> Any:
        f = context.embeddings(network)
        if context.before is not None:
            psi = fitted_adapter(context.before, f, self.adapter_steps, rng)
            memory = memory.mapped(lambda x: adapted(x, psi), self.samples, rng)
        return memory.learned(context, f)

    def classify(self, network: Any, memory: ClassGaussians, f: Tensor) -> Tensor:
        return log_density(f, memory.mean, *whitening(memory.covariance, self.shrinkage))

    def mean_logs(self, memory: ClassGaussians) -> Tensor:
        return self.classify(None, memory, memory.mean)
