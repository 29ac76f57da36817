"""PR: conventional prototype replay.

Song, Li, Guan & Kong 2025 (the IPAL paper), Eq. 1: cross-entropy on current nodes and on features drawn from the
Gaussians of old classes. Differences from the paper: it names no number of draws; `samples` a class and step.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ipal.config import Draws, TrainConfig
from ipal.methods.base import Batch, Network, Space, TaskContext, Terms
from ipal.methods.classifier import Classifier, Competing
from ipal.methods.shared.prototypes import PrototypeContext, PrototypeMemory


def replay_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Cross-entropy of features drawn from memory, by the current head.

    .. math:: E_{(f_M^m, y_M^m) \in M} \big[ -y_M^m \log g_{\phi_t}(f_M^m) \big]

    Source: the IPAL paper, Eq. 1, right half; the left half is the cross-entropy of current nodes.
    """
    return F.cross_entropy(logits, labels)


@dataclass(frozen=True, kw_only=True)
class PR(Classifier):
    """Conventional prototype replay: cross-entropy on nodes and on samples of old classes' Gaussians."""

    competing: Competing = "current"
    """Classes whose outputs the cross-entropy of current nodes compares: all seen so far, or the current ones."""
    samples: Draws = 10
    """Features drawn for each old class at each step."""

    name = "pr"
    title = "PR"
    default_train = TrainConfig(epochs=200)

    def init(self, space: Space) -> PrototypeMemory:
        return PrototypeMemory.empty(space.width, space.device)

    def prepare(self, memory: Any, context: TaskContext) -> PrototypeContext:
        return PrototypeContext.of(context, np.ones(len(context.task.nodes)))

    def loss(self, network: Network, memory: Any, batch: Batch, context: Any, rng: torch.Generator) -> Terms:
        """Eq. 1."""
        terms = super().loss(network, memory, batch, context, rng)
        if len(context.old):
            drawn = memory.of(context.old).draw(self.samples, rng)
            labels = context.old.repeat_interleave(self.samples)
            terms["replay"] = replay_cross_entropy(network.classifier(drawn), labels)
        return terms

    def end_task(self, network: Network, memory: Any, context: Any, rng: torch.Generator) -> Any:
        return context.learned(memory, context.embeddings(network))
