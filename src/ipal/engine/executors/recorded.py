"""Steps recorded as CUDA graphs and repeated: on a GPU, small steps spend their time in starting kernels one by one."""

import warnings
from collections.abc import Callable
from functools import partial

import torch

from ipal.backend.adam import Adam
from ipal.backend.cuda_graphs import Recorded, Recordings, can_record
from ipal.engine.trainer import Eager, Steps, Training
from ipal.methods.base import Terms

WAITS = "synchronizing CUDA operation"
"""What torch warns of where the host waits for a GPU, as `.item()` makes it."""


class Automatic:
    """Executes steps as fast as the device can take them. One for all tasks of a run: they share memory."""

    def __init__(self) -> None:
        self._recordings = Recordings()

    def __call__(self, training: Training) -> Steps:
        if training.setup.runtime.device.type != "cuda" or training.setup.batch != "full":
            return Eager(training)
        return RecordedSteps(training, self._recordings)


class RecordedSteps(Eager):
    """Steps of whole tasks on a GPU."""

    def __init__(self, training: Training, recordings: Recordings) -> None:
        super().__init__(training)
        (self._batch,) = training.batches(0)
        self._repeater = Repeater(training.optimizer, training.state.generator, recordings)

    def epoch(self, epoch: int) -> Terms:
        """The step of an epoch."""
        return self._repeater(partial(self._training.step, self._batch))

    def close(self) -> None:
        self._repeater.close()


class Repeater:
    """Takes one step again and again: recorded at its third time, if the host did not wait for a GPU at its second.

    The first makes what later ones find, as the operators of a method's own nodes.
    """

    def __init__(self, optimizer: Adam, generator: torch.Generator, recordings: Recordings) -> None:
        self._optimizer, self._generator, self._recordings = optimizer, generator, recordings
        self._times, self._may_record = 0, can_record(generator.device)
        self._recorded: Recorded | None = None

    def __call__(self, step: Callable[[], Terms]) -> Terms:
        self._times += 1
        if self._recorded is None and self._times > 2 and self._may_record and self._has_moments():
            self._recorded = self._recordings.record(step, self._generator)
        if self._recorded:
            return self._recorded()
        if self._times != 2 or not self._may_record:
            return step()
        terms, waits = watched(step)
        self._may_record = not waits
        return terms

    def _has_moments(self) -> bool:
        """Whether all weights have: a step that makes some is not what later ones are."""
        weights = [weight for group in self._optimizer.param_groups for weight in group["params"]]
        return all(weight in self._optimizer.state for weight in weights)

    def close(self) -> None:
        if self._recorded:
            self._optimizer.zero_grad()  # gradients are in the recording's memory
            self._recorded.close()
            self._recorded = None


def watched(step: Callable[[], Terms]) -> tuple[Terms, bool]:
    """What a step gives, and whether the host waited for a GPU meanwhile."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            terms = step()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    return terms, any(WAITS in str(one.message) for one in said)
