"""The steps of one task, epoch by epoch: recorded and repeated where a GPU can do so by itself."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ipal.backend.cuda_graphs import Recorded, Recordings
from ipal.data.streams import Task
from ipal.learners.values import Terms

if TYPE_CHECKING:
    from ipal.learners.trained import TrainedLearner


class Steps:
    """Steps of a learner that learns a task. Batches of one size share a recording."""

    def __init__(self, learner: "TrainedLearner[Any]", task: Task, lesson: Any, recordings: Recordings) -> None:
        self._learner, self._task, self._lesson, self._recordings = learner, task, lesson, recordings
        self._fixed = learner.fixed_batches(task)
        self._recorded: dict[int, tuple[Tensor | slice, Recorded]] = {}
        """By the size of a batch: where its nodes are read from, and the step."""
        self._is_first = True

    def epoch(self, epoch: int) -> Terms:
        """All steps of an epoch; terms are means over them."""
        learner = self._learner
        if learner.batch == "full":
            (batch,) = learner.batches(self._task, epoch)
            steps = [self._step(slice(None), lambda _: batch)]
        elif self._fixed:
            places = self._fixed.places(learner.sampling_seed(epoch))
            steps = [self._step(here, self._fixed.around) for here in places]
        else:
            steps = [learner.step(batch, self._lesson) for batch in learner.batches(self._task, epoch)]
        if len(steps) == 1:
            return steps[0]
        names = dict.fromkeys(name for terms in steps for name in terms)
        return {name: torch.stack([terms[name] for terms in steps if name in terms]).mean() for name in names}

    def _step(self, here: Tensor | slice, batch: Callable[[Tensor | slice], Any]) -> Terms:
        """A step from the nodes `here`, of which `batch` makes a batch."""
        size = 0 if isinstance(here, slice) else len(here)
        # Not the first step, which makes what later ones find, as the operators of a method's own nodes.
        if size not in self._recorded and not self._is_first and self._learner.is_repetitive:
            kept = here if isinstance(here, slice) else here.clone()
            self._recorded[size] = kept, self._record(partial(self._taken, kept, batch))
        self._is_first = False
        if size not in self._recorded:
            return self._taken(here, batch)
        kept, recorded = self._recorded[size]
        if isinstance(kept, Tensor) and isinstance(here, Tensor):
            kept.copy_(here)
        return recorded()

    def _taken(self, here: Tensor | slice, batch: Callable[[Tensor | slice], Any]) -> Terms:
        return self._learner.step(batch(here), self._lesson)

    def _record(self, step: Callable[[], Terms]) -> Recorded:
        more = [self._fixed.generator] if self._fixed else []
        return self._recordings.record(step, self._learner.generator_, *more)

    def close(self) -> None:
        if self._recorded:
            self._learner.optimizer_.zero_grad()  # gradients are in the recordings' memory
            for _, recorded in self._recorded.values():
                recorded.close()
            self._recorded = {}
