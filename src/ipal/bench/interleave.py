"""Many runs in one process, taking turns epoch by epoch: how a bench uses a GPU that one small run cannot fill.

Every run has its own CUDA stream, so that the GPU works on several at once; results are bit-equal to those of single
runs. Runs on the same graph share its tasks. If one fails, the others continue.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ipal.bench.jobs import Outcome, reason_of
from ipal.runs import runner
from ipal.runs.environment import PeakMemory
from ipal.runs.resolved import Resolved
from ipal.runs.run_folder import RunFolder

Run = tuple[Resolved, RunFolder]

LANES = 8
"""Runs at a time: more than a GPU has queues would be slower."""
TURN = 10
"""Epochs of a run before the next one takes its turn."""


def run_interleaved(runs: Sequence[Run]) -> Iterator[Outcome]:
    """Make all runs, interleaved; yields the index of each when it has ended, and why it failed."""
    waiting = deque(enumerate(runs))
    company = min(LANES, len(runs))
    # One for all: a reset for every run would lose the peaks of the others.
    memory = PeakMemory()
    lanes = [_Lane(waiting, company, memory) for _ in range(company)]
    for place, lane in enumerate(lanes):
        # With a head start of their own: while one run is between two tasks, the others keep the GPU busy.
        yield from lane.advance(lane.epochs_of_a_task * place // company)
    while lanes:
        for lane in lanes:
            yield from lane.advance(TURN)
        lanes = [lane for lane in lanes if lane.is_busy]


class _Lane:
    """One run after the other, on a CUDA stream of its own."""

    def __init__(self, waiting: deque[tuple[int, Run]], company: int, memory: PeakMemory) -> None:
        self._waiting, self._company, self._memory = waiting, company, memory
        self._streams: dict[str, AbstractContextManager[Any]] = {}
        self._take()

    def _take(self) -> None:
        """The next run, where there is one."""
        self.is_busy = bool(self._waiting)
        if self.is_busy:
            self._index, (resolved, self._folder) = self._waiting.popleft()
            self._config = resolved.config
            self._run = runner.run_by_epochs(
                resolved, self._folder, runner.Silent(), company=self._company, memory=self._memory
            )

    @property
    def epochs_of_a_task(self) -> int:
        return self._config.train.epochs

    def advance(self, epochs: int) -> Iterator[Outcome]:
        """Some epochs further, with the next run where one has ended; yields what has."""
        turns = iter(range(epochs))
        while self.is_busy:
            try:
                with self._stream(self._config.device):
                    for _ in turns:
                        next(self._run)
                return
            except StopIteration:
                reason = None
            except Exception as error:  # kept no longer than this: it holds what the run held
                reason = reason_of(error, self._folder)
            ended = self._index, reason
            self._take()
            yield ended

    def _stream(self, device: str) -> AbstractContextManager[Any]:
        if not device.startswith("cuda"):
            return nullcontext()
        if device not in self._streams:
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._streams[device] = torch.cuda.stream(stream)
        return self._streams[device]
