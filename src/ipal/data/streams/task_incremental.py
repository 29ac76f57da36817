"""Task-incremental: the tasks of the class-incremental stream; at test time the task is known."""

from dataclasses import replace

from ipal.data.streams.class_incremental import TaskStream
from ipal.data.task import TestSplit


class TaskIncremental(TaskStream):
    """As class-incremental, but every node is tested among the classes of its own task only."""

    name = "task"

    def test_splits(self, learned: int) -> list[TestSplit]:
        test_splits = zip(super().test_splits(learned), self.classes, strict=False)
        return [replace(test_split, classes=tuple(classes)) for test_split, classes in test_splits]
