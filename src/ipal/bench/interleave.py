"""Many runs in one process, taking turns epoch by epoch: how a bench uses a GPU that one small run cannot fill.

Every run has its own CUDA stream, so that the GPU works on several at once; results are bit-equal to those of single
runs. Runs on the same graph share its tasks. If one fails, the others continue.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from ipal.runs import runner
from ipal.runs.environment import Machine, PeakMemory
from ipal.runs.resolved import Resolved
from ipal.runs.run_folder import RunFolder

Ended = Callable[[int, BaseException | None], None]


@dataclass(frozen=True, eq=False)
class Member:
    """One run of a fleet."""

    resolved: Resolved
    folder: RunFolder
    data_root: Path | None = None


LANES = 8
"""Runs at a time: more than a GPU has queues would be slower."""
TURN = 10
"""Epochs of a run before the next one takes its turn."""


def run_fleet(
    members: Sequence[Member], ended: Ended, checkpoint_every: int | None = None, machine: Machine | None = None
) -> None:
    """Make all runs, interleaved; `ended` is called for each with its index and error."""
    waiting = deque(enumerate(members))
    company = min(LANES, len(members))
    # One for all: a reset for every run would lose the peaks of the others.
    shared = {"memory": PeakMemory(), "machine": machine or Machine.here()}
    options = {"checkpoint_every": checkpoint_every, "company": company, **shared}
    lanes = [_Lane(waiting, ended, options) for _ in range(company)]
    for place, lane in enumerate(lanes):
        # With a head start of their own: while one run is between two tasks, the others keep the GPU busy.
        lane.advance(lane.epochs_of_a_task * place // company)
    while lanes:
        lanes = [lane for lane in lanes if lane.advance(TURN)]


class _Lane:
    """One run after the other, on a CUDA stream of its own."""

    def __init__(self, waiting: deque[tuple[int, Member]], ended: Ended, options: dict[str, Any]) -> None:
        self._waiting, self._ended, self._options = waiting, ended, options
        self._streams: dict[str, AbstractContextManager[Any]] = {}
        self._index, self._member = -1, cast(Member | None, None)
        self._take()

    def _take(self) -> None:
        """The next run, where there is one."""
        self._member = None
        if self._waiting:
            self._index, member = self._waiting.popleft()
            self._member = member
            self._run = runner.run_by_epochs(
                member.resolved,
                member.folder,
                runner.Silent(),
                data_root=member.data_root,
                **self._options,
            )

    @property
    def epochs_of_a_task(self) -> int:
        return self._member.resolved.config.train.epochs if self._member else 0

    def advance(self, epochs: int) -> bool:
        """Some epochs further, with the next run where one has ended; whether anything is left to do."""
        turns = iter(range(epochs))
        while self._member is not None:
            try:
                with self._stream(self._member.resolved.config.device):
                    for _ in turns:
                        next(self._run)
                return True
            except StopIteration:
                self._ended(self._index, None)
                self._take()
            except Exception as error:
                self._ended(self._index, error)
                self._take()
        return False

    def _stream(self, device: str) -> AbstractContextManager[Any]:
        if not device.startswith("cuda"):
            return nullcontext()
        if device not in self._streams:
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._streams[device] = torch.cuda.stream(stream)
        return self._streams[device]
