"""LwF: learning without forgetting.

Li & Hoiem 2017, "Learning without Forgetting", https://arxiv.org/abs/1606.09282. Differences from the paper: one
head over all classes and no task identity; the whole network is trained from the first epoch, without a warm-up
of the new rows; and the distillation is scaled by the squared temperature, as Hinton et al. 2015 ask for, so that its
gradient does not fade with the temperature and `strength` means the same at each.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ipal.config import NonNegative, Positive, TrainConfig
from ipal.methods.base import Batch, Network, TaskContext, Terms
from ipal.methods.classifier import Classifier, node_cross_entropy


def output_distillation(logits: Tensor, before: Tensor, T: float) -> Tensor:
    r"""Cross-entropy between softened old and new outputs over the old classes, times the squared temperature.

    .. math:: T^2 \, E_x \Big[ -\sum_i y'_i \log \hat y'_i \Big], \quad
        y' = \mathrm{softmax}(o_{t-1} / T), \; \hat y' = \mathrm{softmax}(o_t / T)

    Source: Li & Hoiem 2017, "knowledge distillation loss"; the factor is of Hinton et al. 2015, "Distilling the
    Knowledge in a Neural Network", Sec. 2. A probability to the power 1/T, divided by the sum, is the softmax of
    outputs divided by T.
    """
    return -(T**2) * ((before / T).softmax(dim=1) * (logits / T).log_softmax(dim=1)).sum(dim=1).mean()


@dataclass(frozen=True, kw_only=True)
class LwF(Classifier):
    """Distillation of the previous network's softened outputs on the current nodes."""

    strength: NonNegative = 1.0
    """Weight of the distillation, the paper's lambda_o."""
    softening: Positive = 2.0
    """Temperature of the softened outputs, the paper's T."""

    name = "lwf"
    title = "LwF"
    default_train = TrainConfig(epochs=50)

    def prepare(self, memory: Any, context: TaskContext) -> TaskContext:
        return context.with_before()

    def loss(self, network: Network, memory: Any, batch: Batch, context: TaskContext, rng: torch.Generator) -> Terms:
        logits = network(batch.graph)
        terms = {"cross_entropy": node_cross_entropy(logits, batch.positions, context, self.competing)}
        if context.teacher is not None:
            with torch.no_grad():
                before = context.teacher.classifier(context.before_of(batch))
            distilled = output_distillation(logits[:, : before.shape[1]], before, self.softening)
            terms["distillation"] = self.strength * distilled
        return terms
