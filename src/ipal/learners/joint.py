"""Joint: trained anew on all tasks so far at every task. The upper reference, not a continual learner.

All tasks lie side by side in one graph without edges between them, as they were learned from: "each on its own
graph, losses added", where every class counts the same. The base rate serves every task, for each one starts from
fresh weights. Keeps everything.
"""

from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.batches import Batch
from ipal.data.streams import Task
from ipal.learners.checks import require
from ipal.learners.classifier import Classifier, Lesson
from ipal.learners.exemplars import disjoint_union, task_of_tensors, task_tensors


@dataclass(kw_only=True, eq=False)
class Joint(Classifier):
    """Training on all tasks at once, anew at every task: the upper reference, not a continual learner."""

    competing: ClassVar[Literal["seen"]] = "seen"  # type: ignore[misc]  # no setting: all classes are current
    name: ClassVar[str] = "joint"
    stores_exemplars: ClassVar[bool] = True
    keeps: ClassVar[dict[str, str]] = Classifier.keeps | {"data": "all nodes, edges and labels of all tasks so far"}

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.data_: Task | None = None

    def begin_task(self, task: Task) -> None:
        self.data_ = task if self.data_ is None else disjoint_union(self.data_, task)
        self.learning_rate_ = self.train.lr_base
        self.renew_network()
        super().begin_task(task)

    def prepare(self, task: Task) -> Lesson:
        return super().prepare(self.data_ or task)

    def batches(self, task: Task, epoch: int) -> Iterable[Batch]:
        return super().batches(self.data_ or task, epoch)

    def tensors(self) -> dict[str, Tensor]:
        data = {} if self.data_ is None else task_tensors(self.data_, self.rows(self.data_.labels), "data")
        return super().tensors() | data

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        super().load_tensors(tensors)
        if "data.labels" in tensors:
            self.data_ = task_of_tensors(tensors, "data", self.classes_, self.num_features_)

    def check(self, whole: bool) -> None:
        super().check(whole)
        kept = [] if self.data_ is None else self.data_.labels.tolist()
        require(set(kept) == set(self.labels_), "it does not keep nodes of every class")
