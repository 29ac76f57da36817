"""POLO: non-exemplar class-incremental learning via prototype reinforcement, correction and augmentation.

Wang et al. 2023 (ACM Multimedia), "Non-Exemplar Class-Incremental Learning via Adaptive Old Class Reconstruction".
Prototypes weigh low-density nodes and follow the drift of nearby nodes and prototypes. Balanced cross-entropy.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ipal.config import NonNegative, TrainConfig
from ipal.methods.base import Batch, Network, Space, TaskContext, Terms
from ipal.methods.classifier import Classifier, node_cross_entropy
from ipal.methods.shared.prototypes import PrototypeMemory
from ipal.nn import losses
from ipal.nn.head import Head


def density_prototype(f: Tensor) -> tuple[Tensor, Tensor]:
    r"""Prototype and radius of one class, in which nodes far from the others weigh more.

    .. math:: w_i \propto e^{10 d_i}, \quad \mu = \sum_i w_i f_i, \quad
        r = \Big( \tfrac1D \sum_k \sum_i w_i (f_{ik} - \mu_k)^2 \Big)^{1/2}

    Source: Wang et al. 2023, density-based prototype reinforcement; d_i is the mean distance of node i (unit rows).
    """
    unit = losses.unit(f)
    d = torch.cat([torch.cdist(chunk, unit).sum(dim=1) for chunk in torch.split(unit, 4096)]) / max(1, len(f) - 1)
    w = (10 * d).softmax(dim=0)
    mu = w @ f
    return mu, (w @ (f - mu).square()).mean().sqrt()


def corrected_prototypes(mu: Tensor, f: Tensor, f_before: Tensor, rho: float) -> Tensor:
    r"""Old prototypes moved with the nodes near them, and a little with their neighbours among prototypes.

    .. math:: \mu_c + \rho (\delta_c + 0.1 \sum_k W_{ck} \delta_k), \quad
        \delta_c = \sum_i w_{ci} (f_i - f'_i), \; w_{ci} \propto e^{-10 \|\hat f'_i - \hat \mu_c\|^2}

    Source: Wang et al. 2023, topology correction; f' are the features before the task, hats are of unit length,
    W_ck = exp(-20 |mu^_c - mu^_k|) with zero diagonal, the ten largest of a row, rows divided by their sum.
    """
    directions = losses.unit(mu)
    w = (-10 * torch.cdist(directions, losses.unit(f_before)).square()).softmax(dim=1)
    delta = w @ (f - f_before)
    # As a softmax: between prototypes at right angles the exponentials themselves are below 1e-12.
    nearness = (-20 * torch.cdist(directions, directions)).fill_diagonal_(-torch.inf)
    nearest = nearness.topk(min(10, len(mu) - 1), dim=1)
    W = torch.zeros_like(nearness).scatter(1, nearest.indices, nearest.values.softmax(dim=1))
    return mu + rho * (delta + 0.1 * W @ delta)


def pseudo_features(mu: Tensor, radius: Tensor, f: Tensor, noise: Tensor) -> Tensor:
    r"""Features in place of old classes' nodes, that keep away from the current node nearest to their prototype.

    .. math:: \mu_c + (1 - \cos(d, e)) e \;\text{ if confirmed and } \cos(d, e) > 0, \text{ else } \mu_c + e;
        \quad e = 2 r_c \epsilon, \; d = f_{i(c)} - \mu_c

    Source: Wang et al. 2023, adaptive augmentation. i(c) is the cosine-nearest current node; it is confirmed where
    c is also the prototype nearest to it. `noise` is epsilon.
    """
    similarity = losses.cosine(mu, f)
    nearest = similarity.argmax(dim=1)
    confirmed = similarity.argmax(dim=0)[nearest] == torch.arange(len(mu), device=mu.device)
    e = 2 * radius[:, None] * noise
    towards = F.cosine_similarity(f[nearest] - mu, e, dim=1)
    return mu + torch.where(confirmed & (towards > 0), 1 - towards, 1.0)[:, None] * e


@dataclass(frozen=True, kw_only=True)
class POLO(Classifier):
    """Prototypes reinforced by density, corrected by topology, replayed by adaptive augmentation."""

    replay_strength: NonNegative = 10.0
    """Weight of the cross-entropy on pseudo features."""
    kappa: NonNegative = 3.0
    """Weight of the feature distillation."""
    rho: NonNegative = 1.0
    """Strength of the topology correction."""

    name = "polo"
    title = "POLO"
    default_train = TrainConfig(epochs=200)

    def init(self, space: Space) -> PrototypeMemory:
        return PrototypeMemory.empty(space.width, space.device)

    def head(self, width: int) -> Head:
        return Head(width, temperature=0.1)

    def prepare(self, memory: Any, context: TaskContext) -> TaskContext:
        return context.with_before()

    def loss(self, network: Network, memory: Any, batch: Batch, context: Any, rng: torch.Generator) -> Terms:
        f, head, old = network.encoder(batch.graph), network.classifier, context.old
        terms = {"cross_entropy": node_cross_entropy(head(f), batch.positions, context, self.competing)}
        if context.before is not None and len(old):
            mu, radius = memory.mean[old], memory.variance[old].mean(dim=1).sqrt()
            noise = torch.randn(mu.shape, generator=rng, device=mu.device)
            pseudo = pseudo_features(mu, radius, f.detach(), noise)
            terms["replay"] = self.replay_strength * F.cross_entropy(head(pseudo), old)
            terms["distillation"] = self.kappa * losses.feature_distillation(f, context.before_of(batch))
        return terms

    def end_task(self, network: Network, memory: Any, context: TaskContext, rng: torch.Generator) -> Any:
        f = context.embeddings(network)
        if context.before is not None and len(context.old):
            moved = corrected_prototypes(memory.mean[context.old], f, context.before, self.rho)
            memory = memory.moved(context.old, moved)
        own = [f[context.labels == label] for label in context.current]
        mean, radius = (torch.stack(parts) for parts in zip(*map(density_prototype, own), strict=True))
        count = torch.tensor([*map(len, own)], device=f.device)
        return memory.learned(context.current, mean, radius.square()[:, None].expand_as(mean), count)
