"""EFC: elastic feature consolidation.

Magistri et al. 2024 (ICLR), "Elastic Feature Consolidation for Cold Start Exemplar-Free Incremental Learning",
https://arxiv.org/abs/2402.03917. Differences from the paper: the mix of replayed and current features is weighted by
class, not drawn in proportion to the numbers of classes; the covariances' ridge is 0.1, which is stable on graphs.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ipal.config import Draws, NonNegative, Positive, TrainConfig
from ipal.errors import DataError
from ipal.methods.base import Batch, Network, Space, TaskContext, Terms, extended
from ipal.methods.classifier import HeadClassifier, balanced_cross_entropy, node_cross_entropy
from ipal.methods.shared.gaussians import GaussianMemory
from ipal.nn.cholesky import shifted_cholesky


def feature_matrix(W: Tensor, p: Tensor) -> Tensor:
    r"""Empirical feature matrix: how much the outputs feel each direction of the feature space.

    .. math:: E = E_x \big[ W^T (\mathrm{diag}(p) - p p^T) W \big]

    Source: Magistri et al. 2024. `W` (classes x width) is the head, `p` (nodes x classes) its softmax.
    """
    return W.T @ (torch.diag(p.mean(dim=0)) - p.T @ p / len(p)) @ W


def feature_consolidation(f: Tensor, f_before: Tensor, M: Tensor) -> Tensor:
    r"""Mean squared drift of features in the metric `M`.

    .. math:: E_x \big[ (f_t - f_{t-1})^T M (f_t - f_{t-1}) \big], \quad M = \lambda E_{t-1} + \eta I

    Source: Magistri et al. 2024, the regulariser.
    """
    drift = f - f_before
    return ((drift @ M) * drift).sum(dim=1).mean()


def drifted_means(mu: Tensor, f: Tensor, f_before: Tensor, E: Tensor, sigma: float) -> Tensor:
    r"""Old means moved with the nodes that are near them in the metric E.

    .. math:: \mu_c + \sum_i w_{ci} (f_i - f'_i), \quad w_{ci} \propto e^{s_{ci} / (2 \sigma^2)}

    Source: Magistri et al. 2024, prototype drift. s is minus the squared E-distance of f'_i to mu_c, scaled to 0..1.
    """
    s = -((f_before @ E * f_before).sum(dim=1)[None] - 2 * mu @ E @ f_before.T + (mu @ E * mu).sum(dim=1)[:, None])
    s = (s - s.min()) / (s.max() - s.min()).clamp_min(1e-12)
    w = (s / (2 * sigma**2)).softmax(dim=1)
    return mu + w @ (f - f_before)


@dataclass(frozen=True, eq=False, kw_only=True)
class EFCContext(TaskContext):
    """What the steps of a task need, and Cholesky factors of the old classes' covariances."""

    roots: Tensor


@dataclass(frozen=True, kw_only=True)
class EFC(HeadClassifier):
    """Elastic feature consolidation: drift is bounded where it matters, old classes are replayed from Gaussians."""

    strength: NonNegative = 10.0
    """Weight of the empirical feature matrix in the regulariser, the paper's lambda."""
    damping: NonNegative = 0.1
    """Weight of the identity in the regulariser, the paper's eta."""
    ridge: Positive = 0.1
    """Added to the diagonal of every covariance before it is drawn from."""
    sigma: Positive = 0.2
    """Width of the weights by which means follow the drift."""
    samples: Draws = 20
    """Features drawn for each old class at each step."""

    name = "efc"
    title = "EFC"
    default_train = TrainConfig(epochs=800)

    def init(self, space: Space) -> GaussianMemory:
        return GaussianMemory.empty(space.width, space.device, torch.zeros(2 * [space.width], device=space.device))

    def prepare(self, memory: GaussianMemory, context: TaskContext) -> EFCContext:
        roots, failed = shifted_cholesky(memory.covariance[context.old], self.ridge, "the covariances of old classes")
        if failed:
            raise DataError(f"A covariance has no square root with efc.ridge={self.ridge:g}: set a larger one.")
        return extended(EFCContext, context.with_before(), roots=roots)

    def loss(self, network: Network, memory: Any, batch: Batch, context: EFCContext, rng: torch.Generator) -> Terms:
        f, labels, head = network.encoder(batch.graph), context.labels[batch.positions], network.classifier
        logits = head(f)
        if context.before is None or not len(context.old):
            return {"cross_entropy": balanced_cross_entropy(logits, labels)}
        mixed = torch.cat([logits, head(memory.draw(context.old, context.roots, self.samples, rng))])
        every = torch.cat([labels, context.old.repeat_interleave(self.samples)])
        metric = self.strength * memory.feature_matrix + self.damping * torch.eye(f.shape[1], device=f.device)
        return {
            "cross_entropy": node_cross_entropy(logits, batch.positions, context, "current"),
            "replay": balanced_cross_entropy(mixed, every),
            "consolidation": feature_consolidation(f, context.before_of(batch), metric),
        }

    def end_task(self, network: Network, memory: Any, context: EFCContext, rng: torch.Generator) -> Any:
        f, old, head = context.embeddings(network), context.old, network.classifier
        if context.before is not None and len(old):
            moved = drifted_means(memory.mean[old], f, context.before, memory.feature_matrix, self.sigma)
            memory = replace(memory, prototypes=memory.prototypes.moved(old, moved))
        memory = replace(memory, feature_matrix=feature_matrix(head.weight, head(f).softmax(dim=1)))
        return memory.learned(context, f)
