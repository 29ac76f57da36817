"""Task-incremental: the tasks of the class-incremental stream; at test time the task is known."""

from dataclasses import replace

from ipal.data.streams.base import Exam
from ipal.data.streams.class_incremental import TaskStream


class TaskIncremental(TaskStream):
    """As class-incremental, but every node is tested among the classes of its own task only."""

    name = "task"

    def exams(self, learned: int) -> list[Exam]:
        exams = zip(super().exams(learned), self.classes, strict=False)
        return [replace(exam, classes=tuple(classes)) for exam, classes in exams]
