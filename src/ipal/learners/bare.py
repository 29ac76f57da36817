"""Bare: plain fine-tuning, the lower reference. Nothing is done against forgetting."""

from pydantic.dataclasses import dataclass

from ipal.backend.batches import Batch
from ipal.learners.trained import Competing, Lesson, TrainedLearner
from ipal.learners.values import Terms


@dataclass(kw_only=True, eq=False)
class Bare(TrainedLearner[Lesson]):
    """Cross-entropy on the current task, nothing against forgetting: the lower reference."""

    competing: Competing = "seen"

    name = "bare"
    recordable = True

    def loss(self, batch: Batch, lesson: Lesson) -> Terms:
        logits = self.head_(self.encoder_(batch.graph))
        return {"cross_entropy": lesson.cross_entropy(logits, batch.positions, self.competing)}
