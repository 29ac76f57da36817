"""Steps recorded as CUDA graphs and repeated: on a GPU, small steps spend their time in starting kernels one by one.

A recording holds the very kernels that the step would start, on the same memory: replayed, it computes the same bits.
That memory is a pool of its own, which torch does not use for anything else and keeps when the graph is gone. The
recordings of one learner, one after the other, share a pool: to give memory back, a GPU waits for all that it does.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ipal.backend.adam import Adam
from ipal.backend.finite import StepTerms
from ipal.engine.trainer import Steps, Training

WAITS = "synchronizing CUDA operation"
"""What torch warns of where the host waits for a GPU, as `.item()` makes it."""


class Automatic:
    """Executes steps as fast as the device can take them. One for all tasks of a run: they share memory."""

    def __init__(self) -> None:
        self._recordings = Recordings()

    def __call__(self, training: Training) -> Steps:
        if training.setup.runtime.device.type != "cuda" or training.setup.batch != "full":
            return training
        return RecordedSteps(training, self._recordings)


class RecordedSteps:
    """Steps of whole tasks on a GPU."""

    def __init__(self, training: Training, recordings: "Recordings") -> None:
        (batch,) = training.batches(0)
        self._step = partial(training.step, batch)
        kind = (training.state.teacher is None,)
        self._repeater = Repeater(training.optimizer, training.state.generator, recordings, kind)

    def epoch(self, epoch: int) -> StepTerms:
        """The step of an epoch."""
        return self._repeater(self._step)

    def close(self) -> None:
        self._repeater.close()


class Repeater:
    """Takes one step again and again; recorded where the host never waits for a GPU.

    Not the first, which makes what later ones find, as the operators of a method's own nodes. The second is watched,
    unless an earlier one of its kind was: in a first task there may be less to do.
    """

    def __init__(
        self, optimizer: Adam, generator: torch.Generator, recordings: "Recordings", kind: tuple[bool, ...]
    ) -> None:
        self._optimizer, self._generator, self._recordings = optimizer, generator, recordings
        self._kind, self._is_first, self._may_record = kind, True, can_record(generator.device)
        self._recorded: Recorded | None = None

    def __call__(self, step: Callable[[], StepTerms]) -> StepTerms:
        waits = self._recordings.waits.get(self._kind)
        # A step that makes moments is not what later ones are.
        has_moments = all(weight in self._optimizer.state for weight in self._optimizer.parameters)
        if self._is_first or waits or not self._may_record or not has_moments:
            self._is_first = False
            return step()
        if waits is None:
            terms, self._recordings.waits[self._kind] = watched(step)
            return terms
        if self._recorded is None:
            self._recorded = self._recordings.record(step, self._generator)
        return self._recorded()

    def close(self) -> None:
        if self._recorded:
            self._optimizer.zero_grad()  # gradients are in the recording's memory
            self._recorded.close()
            self._recorded = None


def watched(step: Callable[[], StepTerms]) -> tuple[StepTerms, bool]:
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


def can_record(device: torch.device) -> bool:
    """Whether it is a GPU, and torch lets us clear its workspaces, which is no part of its public interface."""
    return device.type == "cuda" and hasattr(torch._C, "_cuda_clearCublasWorkspaces")


class Recordings:
    """The memory of one learner's recordings, which are replayed one at a time; given back when it is let go."""

    _pool: Any = None
    _anchor: Any = None

    def __init__(self) -> None:
        self.waits: dict[tuple[bool, ...], bool] = {}
        """Of kinds of steps that were watched, whether the host waits for a GPU in one."""

    def record(self, step: Callable[[], StepTerms], generator: torch.Generator) -> "Recorded":
        """Record a step on the device of the generator, which is all that it draws with."""
        with torch.cuda.device(generator.device):
            if self._pool is None:
                self._pool, self._anchor = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
                # Without any graph in it, a pool cannot be used again (torch 2.11).
                with captured(self._anchor, self._pool):
                    torch.zeros(1, device=generator.device)
            return Recorded(step, generator, self._pool)

    def __del__(self) -> None:
        # In this order: a pool that is let go returns to the device what no graph and no tensor holds any more.
        if self._anchor is not None:
            self._anchor.reset()


class Recorded:
    """A step without arguments, recorded when made and repeated when called, until it is closed."""

    def __init__(self, step: Callable[[], StepTerms], generator: torch.Generator, pool: Any) -> None:
        # A recording holds on to all that its kernels look at.
        self._step: Callable[[], StepTerms] | None = step
        self._graph = torch.cuda.CUDAGraph()
        # Every replay goes on drawing where the last one ended.
        self._graph.register_generator_state(generator)
        with captured(self._graph, pool):
            self._terms = step()

    def __call__(self) -> StepTerms:
        self._graph.replay()
        return self._terms._replace(values=self._terms.values.clone())

    def close(self) -> None:
        """Let the next recording use the memory, but that of tensors which the step left elsewhere, as gradients."""
        self._graph.reset()
        self._step = None
        del self._terms


@contextmanager
def captured(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """What is computed inside becomes a graph's kernels, with memory from a pool."""
    here, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(here)
    with torch.cuda.stream(aside), _own_workspaces():
        # Not with torch.cuda.graph(): that waits for all streams and empties caches, which other runs use.
        graph.capture_begin(pool=pool.id, capture_error_mode="thread_local")
        try:
            yield
        finally:
            graph.capture_end()
    here.wait_stream(aside)


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Torch keeps a workspace of matrix products for every stream, and hands out the same streams again and again.

    One that was made inside a recording belongs to it: another recording must not find it, nor any use when
    it is gone.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
