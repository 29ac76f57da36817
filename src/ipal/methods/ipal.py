"""IPAL: Instance-Prototype Affinity Learning, Algorithm 1 of the paper.

Song, Li, Guan & Kong 2025, "Instance-Prototype Affinity Learning for Non-Exemplar Continual Graph Learning".
A class is remembered as a Gaussian over embeddings. Nodes are told from prototypes by contrast, hard examples and
replayed features sharpen the contrast, and the affinities of virtual old features are held in place.

Differences from the paper, each measured in docs/results.md:
- every product of embedding and prototype is a cosine (`cosine`); raw products, as printed, are `raw`;
- affinities are distilled towards all old prototypes, as one norm (`ipad`); Eq. 8 as printed is `ipad-printed`;
- drift weights are a softmax of cosines (`softmax`); Eq. 12 as printed is `printed`;
- encoder, rates, gamma and node weights have defaults of this package; the preset `paper` has the paper's.
The paper is silent on epochs and on a last ReLU. A class that comes again is learned as a current class and pooled.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ipal.config import Count, Draws, EncoderConfig, NonNegative, Restart, TrainConfig
from ipal.data.centrality import NodeWeights, node_weights
from ipal.methods.base import Batch, Network, TaskContext, Terms, relative_distance, with_middle
from ipal.methods.shared.prototypes import PrototypeClassifier, PrototypeContext, PrototypeMemory
from ipal.nn import losses as eq
from ipal.nn.truncated_beta import TruncatedBeta


@dataclass(frozen=True, eq=False, kw_only=True)
class IPALContext(PrototypeContext):
    """What the steps of a task need, from the memory and the task."""

    remembered: PrototypeMemory
    """Gaussians of the old classes."""
    held: eq.OldPrototypes
    """Prototypes whose affinities are distilled."""
    mixing: TruncatedBeta
    """The distribution of lambda (Eq. 6)."""


@dataclass(frozen=True, kw_only=True)
class IPAL(PrototypeClassifier):
    """Prototype contrast with affinity distillation, boundary perception and topology-weighted prototypes."""

    gamma: NonNegative = 3.0
    """Weight of the distillation (Eq. 13). The paper searches 0.1 to 1.0."""
    products: Literal["cosine", "raw"] = "cosine"
    """Products of embeddings and prototypes: cosines, or raw as printed."""
    distillation: Literal["ipad", "ipad-printed", "fd", "none"] = "ipad"
    """What holds old knowledge in place: affinities (Eq. 8), its printed form, features (Eq. 5), nothing."""
    node_weights: NodeWeights = "uniform"
    """How nodes weigh in prototypes (Eq. 3, 4): the paper's PageRank, degree, or all the same."""
    boundary: bool = True
    """Decision boundary perception: hard examples as negatives (Eq. 9, 10)."""
    hardness: Literal["entropy", "margin", "energy"] = "entropy"
    """What makes an example hard; entropy is the paper's (Eq. 9)."""
    replay: bool = True
    """Samples from the Gaussians of old classes as negatives (Eq. 10)."""
    compensation: Literal["softmax", "printed", "none"] = "softmax"
    """How old prototypes follow the drift of the current nodes (Eq. 11, 12)."""
    alpha: Restart = 0.85
    """Damping of PageRank (Eq. 3)."""
    beta: float = 0.1
    """Strength of drift compensation (Eq. 11)."""
    k: Draws = 10
    """Hard examples per current class, and replayed samples per old class (K)."""
    subset: Count = 100
    """Training nodes mixed with old prototypes at each step (the size of S_t)."""

    name = "ipal"
    title = "IPAL"
    default_encoder = EncoderConfig(kind="appnp", layers=1, hidden=2048, width=2048)
    default_train = TrainConfig(epochs=5, lr_base=2e-3, lr_next=2e-3, relative=True)

    def prepare(self, memory: PrototypeMemory, context: TaskContext) -> IPALContext:
        r = node_weights(context.task.graph, self.node_weights, self.alpha)[context.task.nodes]  # Eq. 3
        old, mixing = memory.of(context.old), TruncatedBeta(9.0, 21.0, 0.4, context.labels.device)
        held = eq.OldPrototypes.of(old.mean)
        return IPALContext.of(context.with_before(), r, remembered=old, held=held, mixing=mixing)

    def loss(self, network: Network, memory: Any, batch: Batch, context: IPALContext, rng: torch.Generator) -> Terms:
        """Eq. 13: the contrast of Eq. 10 and gamma times the distillation."""
        here, directed = batch.positions, self.directed
        f = network.encoder(batch.graph)
        directions = directed(f)
        online, absent = context.prototypes(f, here)  # Eq. 4
        mu = directed(torch.cat([online, context.remembered.mean]))
        hard = hard_labels = replayed = None
        if self.boundary:  # Eq. 9
            affinity = mu.detach() @ directions.detach().T
            if absent is not None:
                affinity.masked_fill_(absent[:, None], -torch.inf)
            hard_of_all = eq.hardness(affinity, self.hardness)
            nodes, hard_labels = eq.hardest(hard_of_all, context.members[:, here], self.k)
            hard = directions.index_select(0, nodes)
        if self.replay and len(context.old):
            replayed = directed(context.remembered.draw(self.k, rng))
        y = context.places[here]  # Eq. 10
        terms = {"contrast": eq.prototype_contrast(directions, y, mu, self.tau, hard, hard_labels, replayed, absent)}
        if context.before is not None and len(context.old) and self.distillation != "none":  # Eq. 13
            terms["distillation"] = self.gamma * self._distil(f, context.before_of(batch), context, rng)
        return terms

    def _distil(self, f: Tensor, before: Tensor, context: IPALContext, rng: torch.Generator) -> Tensor:
        if self.distillation == "fd":
            return eq.feature_distillation(f, before)  # Eq. 5
        mu = context.held.mean
        chosen = torch.randperm(len(f), generator=rng, device=f.device)[: self.subset]
        lam = context.mixing.draw((len(chosen), len(mu)), rng)
        if self.distillation == "ipad" and self.products == "cosine":
            by_kernel = eq.distillation_by_kernel(f, before, chosen, lam, context.held)
            if by_kernel is not None:
                return by_kernel
        mixed = eq.mixed_affinity if self.products == "cosine" else eq.mixed_affinity_printed  # Eq. 6
        then, now = mixed(before[chosen], mu, lam), mixed(f.index_select(0, chosen), mu, lam)
        keep = eq.keep_consistent(then)  # Eq. 7
        if self.distillation == "ipad-printed":
            return eq.affinity_distillation_printed(now, then, keep)
        return eq.affinity_distillation(now, then, keep)  # Eq. 8

    def end_task(self, network: Any, memory: Any, context: IPALContext, rng: torch.Generator) -> Any:  # lines 9 and 10
        f = context.embeddings(network)
        if context.before is not None and len(context.old) and self.compensation != "none":
            mu, before = memory.mean[context.old], context.before
            weigh = eq.proximity_printed if self.compensation == "printed" else eq.proximity_softmax
            w = weigh(self.product(before, mu))  # Eq. 12
            memory = memory.moved(context.old, eq.compensate(mu, f, before, w, self.beta))  # Eq. 11
        return context.learned(memory, f)  # Eq. 4

    def directed(self, rows: Tensor) -> Tensor:
        return eq.unit(rows) if self.products == "cosine" else rows

    def novelty(self, memory: PrototypeMemory, scores: Any, graph: Any, rows: Any, compute: Any) -> Tensor:
        return relative_distance(eq.unit(rows) @ with_middle(memory.mean).T)
