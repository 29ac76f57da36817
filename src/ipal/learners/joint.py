"""Joint: trained anew on all tasks so far at every task. The upper reference, not a continual learner.

All tasks lie side by side in one graph without edges between them, as they were learned from: "each on its own
graph, losses added", where every class counts the same. The base rate serves every task, for each one starts from
fresh weights. Keeps everything.
"""

from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from ipal.backend.batches import Batch
from ipal.data.streams import Task
from ipal.learners.exemplars import Nodes, disjoint_union
from ipal.learners.trained import Lesson, TrainedLearner


@dataclass(kw_only=True, eq=False)
class Joint(TrainedLearner[Lesson]):
    """Training on all tasks at once, anew at every task: the upper reference, not a continual learner."""

    competing: ClassVar[Literal["seen"]] = "seen"  # type: ignore[misc]  # no setting: all classes are current
    name = "joint"
    stores_exemplars = True
    stores_all_tasks = True
    recordable = True
    kept = (Nodes("data", "all nodes, edges and labels of all tasks so far", even_while_learning=True),)

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.data_: Task | None = None

    def begin_task(self, task: Task) -> None:
        self.data_ = task if self.data_ is None else disjoint_union(self.data_, task)
        self.learning_rate_ = self.train.lr_base
        self.renew_network()

    def prepare(self, task: Task) -> Lesson:
        return super().prepare(self.data_ or task)

    def batches(self, task: Task, epoch: int) -> Iterable[Batch]:
        return super().batches(self.data_ or task, epoch)
