"""Steps recorded as CUDA graphs and repeated: on a GPU, small steps spend their time in starting kernels one by one."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ipal.backend.batches import Batch
from ipal.backend.cuda_graphs import Recorded, Recordings, can_record
from ipal.backend.fixed_batches import FixedBatches
from ipal.engine.trainer import Eager, Steps, Training, mean_terms
from ipal.methods.base import Terms

Places = Tensor | slice
"""Which training nodes a batch has."""


class Automatic:
    """Executes steps as fast as the device can take them. One for all tasks of a run: they share memory."""

    def __init__(self) -> None:
        self._recordings = Recordings()
        self._never_waits: dict[type, bool] = {}

    def __call__(self, training: Training) -> Steps:
        if training.setup.runtime.device.type != "cuda":
            return Eager(training)
        return RecordedSteps(training, self._recordings, self._never_waits)


class RecordedSteps:
    """Steps of a task on a GPU. Batches of one size share a recording."""

    def __init__(self, training: Training, recordings: Recordings, known: dict[type, bool]) -> None:
        self._training, self._recordings = training, recordings
        self._known = known
        """Of methods with a memory: whether their steps never wait."""
        setup = training.setup
        self._fixed = None
        if setup.batch != "full":
            self._fixed = FixedBatches.of(
                training.context.task, setup.batch, setup.runtime, training.network.encoder.needs
            )
        self._drawn_from = [self._fixed.generator] if self._fixed else []
        self._recorded: dict[int, tuple[Places, Recorded]] = {}
        """By the size of a batch: where its nodes are read from, and the step."""
        self._is_first = True
        self._may_record = can_record()

    def epoch(self, epoch: int) -> Terms:
        """All steps of an epoch; terms are means over them."""
        training = self._training
        if training.setup.batch == "full":
            (batch,) = training.batches(epoch)
            return self._step(slice(None), lambda _: batch)
        if self._fixed is None:
            return mean_terms([training.step(batch) for batch in training.batches(epoch)])
        places = self._fixed.places(training.sampling_seed(epoch))
        return mean_terms([self._step(here, self._fixed.around) for here in places])

    def _step(self, here: Places, batch: Callable[[Places], Batch]) -> Terms:
        """A step from the nodes `here`, of which `batch` makes a batch."""
        size = 0 if isinstance(here, slice) else len(here)
        # Not the first step, which makes what later ones find, as the operators of a method's own nodes.
        if size not in self._recorded and not self._is_first and self._can_repeat(here, batch):
            kept = here if isinstance(here, slice) else here.clone()
            step = self._recordings.record(
                partial(self._taken, kept, batch), self._training.state.generator, *self._drawn_from
            )
            self._recorded[size] = kept, step
        self._is_first = False
        if size not in self._recorded:
            return self._taken(here, batch)
        kept, recorded = self._recorded[size]
        if isinstance(kept, Tensor) and isinstance(here, Tensor):
            kept.copy_(here)
        return recorded()

    def _taken(self, here: Places, batch: Callable[[Places], Batch]) -> Terms:
        return self._training.step(batch(here))

    def _can_repeat(self, here: Places, batch: Callable[[Places], Batch]) -> bool:
        """Whether a step is the same sequence of kernels on the same memory, and waits for none of them."""
        training = self._training
        if not self._may_record or not all(p in training.optimizer.state for p in training.network.parameters()):
            return False
        if self._recorded:
            return True
        kind, is_later = type(training.method), training.state.teacher is not None
        if kind in self._known:
            return self._known[kind]
        self._may_record = never_waits(training, partial(batch, here), *self._drawn_from)
        if is_later or not self._may_record:  # a first task may have less to do
            self._known[kind] = self._may_record
        return self._may_record

    def end(self) -> Any:
        return self._training.end()

    def close(self) -> None:
        if self._recorded:
            self._training.optimizer.zero_grad()  # gradients are in the recordings' memory
            for _, recorded in self._recorded.values():
                recorded.close()
            self._recorded = {}


def never_waits(training: Training, batch: Callable[[], Batch], *more: torch.Generator) -> bool:
    """Whether a step runs without the host waiting for the GPU, as `.item()` makes it; nothing is changed by trying.

    `more` are generators that a batch is drawn from.
    """

    def step() -> None:
        terms = training.loss(batch())
        training.optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        training.method.adjust_gradients(training.network, training.state.memory, training.context)

    try:
        return runs_ahead(step, training.state.generator, *more)
    finally:
        training.optimizer.zero_grad()


def runs_ahead(work: Callable[[], object], *generators: torch.Generator) -> bool:
    """Whether work on a GPU never makes the host wait; what it draws is drawn again."""
    before, mode = [one.get_state() for one in generators], torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
    try:
        work()
        return True
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return False
    finally:
        torch.cuda.set_sync_debug_mode(mode)
        for one, state in zip(generators, before, strict=True):
            one.set_state(state)
