"""Bare: plain fine-tuning, the lower reference. Nothing is done against forgetting."""

from pydantic.dataclasses import dataclass

from ipal.learners.trained import Lesson, TrainedLearner


@dataclass(kw_only=True, eq=False)
class Bare(TrainedLearner[Lesson]):
    """Cross-entropy on the current task, nothing against forgetting: the lower reference."""

    name = "bare"
    title = "Bare"
    recordable = True
