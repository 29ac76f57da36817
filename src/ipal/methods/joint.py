"""Joint: trained from the beginning on all tasks so far at every task. The upper reference, not a continual learner.

With `protocol.train_graph=isolated` all tasks lie side by side in one graph without edges between them, as they were
learned from: "each on its own graph, losses added", where every class counts the same. With `seen` it is trained on the
one graph of all nodes so far, edges between tasks included. The base rate serves every task, for each one starts from
fresh weights. Keeps everything.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from ipal.config import EncoderConfig, TrainConfig
from ipal.data.task import Task
from ipal.methods.base import Batch, Network, Space, TaskContext, Terms
from ipal.methods.classifier import HeadClassifier, balanced_cross_entropy, class_weights
from ipal.methods.shared.exemplars import AllTasks, disjoint_union, grown, owned


def uniform_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Cross-entropy with the uniform distribution over all classes, in which every class present counts the same.

    .. math:: \sum_i \frac{w_{y_i}}{\sum_j w_{y_j}} \Big( -\frac{1}{K} \sum_k \log p_i(k) \Big), \quad w_c = 1 / n_c

    Source: Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision", Sec. 7: the second part
    of label smoothing, H(u, p).
    """
    weights = class_weights(logits, labels)[labels]
    return -(logits.log_softmax(dim=1).mean(dim=1) * weights).sum() / weights.sum()


@dataclass(frozen=True, kw_only=True)
class Joint(HeadClassifier):
    """Training on all tasks at once, from the beginning at every task: the upper reference, not a continual learner."""

    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of every target that is spread over all classes."""

    name = "joint"
    title = "Joint"
    default_train = TrainConfig(epochs=50, lr_base=3e-3, weight_decay=5e-4)
    default_encoder = EncoderConfig(kind="skip", hidden=256, dropout=0.8)
    keeps = "everything"

    def needs(self) -> dict[str, str]:
        return {"whole tasks": "take a method that learns batch by batch"}

    def init(self, space: Space) -> AllTasks:
        return AllTasks(None)

    def training_task(self, memory: AllTasks, task: Task) -> Task:
        known = memory.data
        return task if known is None else grown(known, task) or disjoint_union(known, task)

    def starts_afresh(self) -> bool:
        return True

    def loss(self, network: Network, memory: Any, batch: Batch, context: Any, rng: torch.Generator) -> Terms:
        logits, labels = network(batch.graph), context.labels[batch.positions]
        terms = {"cross_entropy": (1 - self.label_smoothing) * balanced_cross_entropy(logits, labels)}
        if self.label_smoothing:
            terms["label_smoothing"] = self.label_smoothing * uniform_cross_entropy(logits, labels)
        return terms

    def end_task(self, network: Network, memory: AllTasks, context: TaskContext, rng: torch.Generator) -> AllTasks:
        return AllTasks(owned(context.task))
