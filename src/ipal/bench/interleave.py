"""Many runs in one process, taking turns epoch by epoch: how a bench uses a GPU that one small run cannot fill.

Every run has its own CUDA stream, so that the GPU works on several at once; results are bit-equal to those of single
runs. Runs on the same graph share its tasks. If one fails, the others continue.
"""

import time
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ipal.engine.executors.stacked import Stack, without_numbers
from ipal.methods.base import Trained
from ipal.runs import runner
from ipal.runs.environment import PeakMemory
from ipal.runs.resolved import Resolved
from ipal.runs.run_folder import RunFolder

Run = tuple[Resolved, RunFolder]
Outcome = tuple[int, str | None]
"""The index of a run that has ended, and why it failed (None: it did not)."""
Unit = dict[int, Run]
"""Runs by their index, of which each takes an epoch in turn."""

LANES = 8
"""Runs at a time: more than a GPU has queues would be slower."""
TURN, LONGEST = 10, 0.005
"""Epochs of a run before the next one takes its turn, or seconds: between two tasks a run keeps the host busy."""


def run_interleaved(runs: Sequence[Run], stacked: int = 1) -> Iterator[Outcome]:
    """Make all runs, interleaved; yields the index of each when it has ended, and why it failed.

    Up to so many (`stacked`) that differ in numbers alone take their steps as one (`ipal.engine.executors.stacked`).
    """
    waiting = deque(_units(runs, stacked))
    used = min(LANES, len(waiting))
    # One memory for all: a reset for every run would lose the peaks of the others.
    options = {"company": sum(sorted(map(len, waiting))[len(waiting) - used :]), "memory": PeakMemory()}
    lanes = [_lane(waiting, place / used, **options) for place in range(used)]
    while lanes:
        for lane in tuple(lanes):
            for outcome in lane:
                if outcome is None:
                    break
                yield outcome
            else:
                lanes.remove(lane)


def _units(runs: Sequence[Run], stacked: int) -> list[Unit]:
    """Runs that go on epoch by epoch together: those that may be stacked, in their order; others one by one."""
    alike: dict[Hashable, list[int]] = {}
    for index, (resolved, _) in enumerate(runs):
        key: Hashable = index
        method = resolved.learner_config().method
        if stacked > 1 and isinstance(method, Trained):
            rest = resolved.config.model_copy(update={"settings": {}}).model_dump_json()
            key = id(resolved.stream), without_numbers(method), rest
        alike.setdefault(key, []).append(index)
    return [
        {index: runs[index] for index in some[begin : begin + stacked]}
        for some in alike.values()
        for begin in range(0, len(some), stacked)
    ]


def _lane(waiting: deque[Unit], ahead: float, **options: Any) -> Iterator[Outcome | None]:
    """One unit after the other, on a CUDA stream of its own; yields what has ended, and None after every turn.

    It begins that share of a task ahead: while one run is between two tasks, the others keep the GPU busy.
    """
    device = next(iter(waiting[0].values()))[0].config.device if waiting else "cpu"
    queue: AbstractContextManager[Any] = nullcontext()
    if device.startswith("cuda"):
        queue = torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
    is_first = True
    while waiting:
        unit = waiting.popleft()
        stack = Stack() if len(unit) > 1 else None
        under_way = {
            index: runner.run_by_epochs(resolved, folder, runner.Silent(), stack=stack, **options)
            for index, (resolved, folder) in unit.items()
        }
        while under_way:
            epochs = max(resolved.config.train.epochs for resolved, _ in unit.values())
            end = time.perf_counter() + LONGEST
            ended: list[Outcome] = []
            with queue:
                for _ in range(int(ahead * epochs) if is_first else TURN):
                    for index in tuple(under_way):
                        reason = None
                        try:
                            next(under_way[index])
                            continue
                        except StopIteration:
                            pass
                        except Exception as error:  # kept no longer than this: it holds what the run held
                            reason = unit[index][1].note_failure(error)
                        ended.append((index, reason))
                        del under_way[index]
                    if not is_first and time.perf_counter() > end:
                        break
            is_first = False
            yield from ended
            yield None
