"""Methods with a classifier head: what fine-tuning does, and what every such method builds on."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from ipal.backend.batches import Batch
from ipal.backend.operators import operators
from ipal.data.streams import Task
from ipal.learners.base import Terms
from ipal.learners.checks import require
from ipal.learners.trained import TrainedLearner
from ipal.nn.head import Head


@dataclasses.dataclass(frozen=True, eq=False)
class Lesson:
    """What the steps of one task need, all of it derived from the state and the task."""

    labels: Tensor
    """Class of each training node, as a row of the head."""
    current: Tensor
    """Classes being learned, as rows of the head."""
    old: Tensor
    """Known classes that are not being learned."""
    before: Tensor | None
    """Embeddings of the training nodes by the previous network; None where there is none."""


def balanced_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy in which every class that is present counts the same, whatever its number of nodes."""
    classes = torch.arange(logits.shape[1], device=labels.device)
    weight = (labels[:, None] == classes).sum(dim=0).to(logits.dtype).clamp_min(1).reciprocal()
    return F.cross_entropy(logits, labels, weight=weight)


@dataclass(kw_only=True, eq=False)
class Classifier(TrainedLearner[Lesson]):
    """An encoder with a head over all classes so far, trained by class-balanced cross-entropy."""

    competing: Literal["seen", "current"] = "seen"
    """Which classes' outputs the cross-entropy of current nodes sets against each other."""

    temperature: ClassVar[float | None] = None
    """Of the head: cosines divided by it; None for a linear head."""
    keeps: ClassVar[dict[str, str]] = TrainedLearner.keeps | {"head": "classifier weights"}

    def renew_network(self) -> None:
        super().renew_network()
        self.network_["head"] = Head(self.encoder.width, self.temperature).eval()

    @property
    def head_(self) -> Head:
        return cast(Head, self.network_["head"])

    def begin_task(self, task: Task) -> None:
        self._grow(len(self.labels_) - self.head_.num_classes)

    def _grow(self, num_classes: int) -> None:
        if num_classes:
            rate = self.learning_rate_ or self.train.lr_base  # not the rate that the optimiser began with
            self.optimizer_.add_param_group({"params": self.head_.grow(num_classes, self.generator_), "lr": rate})

    def prepare(self, task: Task) -> Lesson:
        labels = self.rows(task.labels)
        current = torch.unique(labels)
        known = torch.arange(len(self.labels_), device=labels.device)
        before = None if self.previous_ is None else self.training_embeddings(task, self.previous_)
        return Lesson(labels, current, known[~torch.isin(known, current)], before)

    def loss(self, batch: Batch, prepared: Lesson) -> Terms:
        return self.terms(self.encoder_(batch.graph), batch, prepared)

    def terms(self, f: Tensor, batch: Batch, prepared: Lesson) -> Terms:
        """Loss terms from the embeddings of a batch's nodes; a method adds its own."""
        return {"cross_entropy": self.cross_entropy(self.head_(f), prepared.labels[batch.positions], prepared)}

    def cross_entropy(self, logits: Tensor, labels: Tensor, prepared: Lesson) -> Tensor:
        if self.competing == "current":
            logits = logits.index_fill(1, prepared.old, -torch.inf)
        return balanced_cross_entropy(logits, labels)

    def training_outputs(self, task: Task) -> Tensor:
        """Outputs of a task's training nodes by the network as it is."""
        outputs: Tensor = self.head_(self.encoder_(operators(task, self.generator_.device)))
        return outputs

    def scores_of(self, f: Tensor) -> Tensor:
        """Outputs of the head."""
        scores: Tensor = self.head_(f)
        return scores

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        blocks = _head_blocks(tensors)
        fits = all(block.dim() == 2 and block.shape[1] == self.encoder.width for block in blocks)
        require(
            fits and sum(map(len, blocks)) == len(self.labels_), "its head has not one row of weights for every class"
        )
        for block in blocks:
            self._grow(len(block))
        super().load_tensors(tensors)

    def frozen_network(self, tensors: Mapping[str, Tensor]) -> nn.ModuleDict:
        # The previous head has as many rows as it had then.
        current = self.network_
        self.network_ = copy.deepcopy(current)
        head, blocks = self.head_, len(_head_blocks(tensors))
        head.weights, head.biases = head.weights[:blocks], head.biases[:blocks]
        try:
            return super().frozen_network(tensors)
        finally:
            self.network_ = current


def _head_blocks(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The saved blocks of a head's weights, in order."""
    number = sum(name.startswith("head.weights.") for name in tensors)
    return [tensors[f"head.weights.{index}"] for index in range(number)]
