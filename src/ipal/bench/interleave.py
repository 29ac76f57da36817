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
    lanes = [_lane(waiting, place / company, company=company, memory=memory) for place in range(company)]
    while lanes:
        for lane in tuple(lanes):
            for outcome in lane:
                if outcome is None:
                    break
                yield outcome
            else:
                lanes.remove(lane)


def _lane(waiting: deque[tuple[int, Run]], ahead: float, **options: Any) -> Iterator[Outcome | None]:
    """One run after the other, on a CUDA stream of its own; yields what has ended, and None after every turn.

    It begins that share of a task ahead: while one run is between two tasks, the others keep the GPU busy.
    """
    streams: dict[str, AbstractContextManager[Any]] = {}
    turn: Iterator[int] | None = None
    while waiting:
        index, (resolved, folder) = waiting.popleft()
        config = resolved.config
        turn = turn or iter(range(int(ahead * config.train.planned)))
        run = runner.run_by_epochs(resolved, folder, runner.Silent(), **options)
        reason = None
        try:
            while True:
                with _stream(streams, config.device):
                    for _ in turn:
                        next(run)
                yield None
                turn = iter(range(TURN))
        except StopIteration:
            pass
        except Exception as error:  # kept no longer than this: it holds what the run held
            reason = reason_of(error, folder)
        yield index, reason


def _stream(known: dict[str, AbstractContextManager[Any]], device: str) -> AbstractContextManager[Any]:
    if not device.startswith("cuda"):
        return nullcontext()
    if device not in known:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        known[device] = torch.cuda.stream(stream)
    return known[device]
