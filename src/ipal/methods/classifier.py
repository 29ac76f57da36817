"""Methods that classify by a head over all classes: the cross-entropy they share."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ipal.methods.base import Batch, Method, Network, TaskContext, Terms, Trained
from ipal.nn.head import Head

Competing = Literal["seen", "current"]


def class_weights(logits: Tensor, labels: Tensor) -> Tensor:
    """1 / n of every class that is present, by which all of them count the same."""
    classes = torch.arange(logits.shape[1], device=labels.device)
    return (labels[:, None] == classes).sum(dim=0).to(logits.dtype).clamp_min(1).reciprocal()


def balanced_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy in which every class that is present counts the same, whatever its number of nodes."""
    return F.cross_entropy(logits, labels, weight=class_weights(logits, labels))


def node_cross_entropy(
    logits: Tensor, here: Tensor | slice, context: TaskContext, competing: Competing = "seen"
) -> Tensor:
    """Balanced cross-entropy of the training nodes `here`: over all classes seen, or the current ones."""
    if competing == "current":
        logits = logits.index_fill(1, context.old, -torch.inf)
    return balanced_cross_entropy(logits, context.labels[here])


@dataclass(frozen=True, kw_only=True)
class HeadClassifier(Trained):
    """A method with a linear head over all classes."""

    def head(self, width: int) -> Head | None:
        return Head(width)

    def classify(self, network: Network, memory: Any, f: Tensor) -> Tensor:
        scores: Tensor = network.classifier(f)
        return scores


@dataclass(frozen=True, kw_only=True)
class Classifier(HeadClassifier):
    """A method with a linear head, whose loss is the cross-entropy of the current nodes, to which it adds."""

    competing: Competing = "seen"
    """Classes whose outputs the cross-entropy of current nodes compares: all seen so far, or the current ones."""

    def loss(self, network: Network, memory: Any, batch: Batch, context: Any, rng: torch.Generator) -> Terms:
        return {"cross_entropy": node_cross_entropy(network(batch.graph), batch.positions, context, self.competing)}


def predicts_by_network_alone(method: Method) -> bool:
    """Whether predictions need no memory: a head scores the classes, and nothing else is done."""
    usual = (HeadClassifier.classify, Method.probabilities, Trained.predictor)
    return all(getattr(type(method), one.__name__, None) is one for one in usual)
