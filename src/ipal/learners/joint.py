"""Joint: trained anew on all tasks so far at every task. The upper reference, not a continual learner.

With `protocol.train_graph=isolated` all tasks lie side by side in one graph without edges between them, as they were
learned from: "each on its own graph, losses added", where every class counts the same. With `seen` it is trained on the
one graph of all nodes so far, edges between tasks included. The base rate serves every task, for each one starts from
fresh weights. Keeps everything.
"""

from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.batches import Batch
from ipal.backend.fixed_batches import FixedBatches
from ipal.data.streams import Task
from ipal.learners.exemplars import Nodes, disjoint_union, grown
from ipal.learners.trained import Lesson, TrainedLearner, class_weights
from ipal.learners.values import Terms


def uniform_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Cross-entropy with the uniform distribution over all classes, in which every class present counts the same.

    .. math:: \sum_i \frac{w_{y_i}}{\sum_j w_{y_j}} \Big( -\frac{1}{K} \sum_k \log p_i(k) \Big), \quad w_c = 1 / n_c

    Source: Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision", Sec. 7: the second part
    of label smoothing, H(u, p).
    """
    weights = class_weights(logits, labels)[labels]
    return -(logits.log_softmax(dim=1).mean(dim=1) * weights).sum() / weights.sum()


@dataclass(kw_only=True, eq=False)
class Joint(TrainedLearner[Lesson]):
    """Training on all tasks at once, anew at every task: the upper reference, not a continual learner."""

    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of every target that is spread over all classes."""

    competing: ClassVar[Literal["seen"]] = "seen"  # type: ignore[misc]  # no setting: all classes are current
    name = "joint"
    title = "Joint"
    stores_exemplars = True
    stores_all_tasks = True
    recordable = True
    kept = (Nodes("data", "all nodes, edges and labels of all tasks so far", even_while_learning=True),)

    def needs(self) -> dict[str, str]:
        return {"whole tasks": "take a method that learns batch by batch"}

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.data_: Task | None = None

    @property
    def rates(self) -> tuple[float, float]:
        return self.train.lr_base, self.train.lr_base  # every task is learned from the beginning

    def begin_task(self, task: Task) -> None:
        known = self.data_
        self.data_ = task if known is None else grown(known, task) or disjoint_union(known, task)
        self.renew_network()

    def prepare(self, task: Task) -> Lesson:
        return super().prepare(self.data_ or task)

    def batches(self, task: Task, epoch: int) -> Iterable[Batch]:
        return super().batches(self.data_ or task, epoch)

    def fixed_batches(self, task: Task) -> FixedBatches | None:
        return super().fixed_batches(self.data_ or task)

    def loss(self, batch: Batch, lesson: Lesson) -> Terms:
        if not self.label_smoothing:
            return super().loss(batch, lesson)
        logits, labels = self.head_(self.encoder_(batch.graph)), lesson.labels[batch.positions]
        smoothing = self.label_smoothing * uniform_cross_entropy(logits, labels)
        own = (1 - self.label_smoothing) * lesson.cross_entropy(logits, batch.positions)
        return {"cross_entropy": own, "label_smoothing": smoothing}
