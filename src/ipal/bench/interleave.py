"""Many runs in one process, taking turns epoch by epoch: how a bench uses a GPU that one small run cannot fill.

Every run has its own CUDA stream, so that the GPU works on several at once; results are bit-equal to those of single
runs. Runs on the same graph share its tasks. If one fails, the others continue.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ipal.engine.executors.stacked import Stack, float_settings
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
WAIT = 0.01
"""Seconds between two looks at runs that are being stored, where there is nothing else to do."""
TURN, LONGEST = 10, 0.005
"""Epochs of a run before the next one takes its turn, or seconds: between two tasks a run keeps the host busy."""


def run_interleaved(runs: Sequence[Run], stacked: int = 1) -> Iterator[Outcome]:
    """Make all runs, interleaved; yields the index of each when it has ended, and why it failed.

    Up to so many (`stacked`) that differ in numbers alone take their steps as one (`ipal.engine.executors.stacked`).
    """
    waiting = deque(_units(runs, stacked))
    lanes_used = min(LANES, len(waiting))
    company = sum(sorted(map(len, waiting))[-lanes_used:]) if waiting else 0
    # One for all: a reset for every run would lose the peaks of the others.
    memory = PeakMemory()
    with ThreadPoolExecutor(1) as thread:
        beside = _Beside(thread)
        options = {"company": company, "memory": memory}
        lanes = [_lane(waiting, place / lanes_used, beside, **options) for place in range(lanes_used)]
        while lanes:
            for lane in tuple(lanes):
                for outcome in lane:
                    if outcome is None:
                        break
                    yield outcome
                else:
                    lanes.remove(lane)


@dataclass
class _Beside:
    """Stores what runs end in, one after the other in another thread, while others go on."""

    thread: Executor
    running: int = 0
    """Runs under way, with those that are being stored."""
    storing: int = 0

    def __call__(self, store: Callable[[], None]) -> Generator[None, None, None]:
        stored = self.thread.submit(store)
        self.storing += 1
        try:
            while not stored.done():
                if self.storing == self.running:  # nothing else to do: this thread would only be in the way
                    wait([stored], WAIT)
                yield
            stored.result()
        finally:
            self.storing -= 1
            if not stored.cancel():  # nobody else may work on the run before
                wait([stored])


def _units(runs: Sequence[Run], stacked: int) -> list[Unit]:
    """Runs that go on epoch by epoch together: those that may be stacked, in their order; others one by one."""
    alike: dict[Hashable, list[int]] = {}
    for index, (resolved, _) in enumerate(runs):
        config = resolved.config
        method = resolved.learner_config().method
        free = float_settings(method) if isinstance(method, Trained) else {}
        settings = {name: value for name, value in config.settings.items() if name not in free}
        rest = config.model_copy(update={"settings": settings}).model_dump_json()
        alike.setdefault((id(resolved.stream), rest) if free and stacked > 1 else index, []).append(index)
    return [
        {index: runs[index] for index in some[begin : begin + stacked]}
        for some in alike.values()
        for begin in range(0, len(some), stacked)
    ]


def _lane(waiting: deque[Unit], ahead: float, beside: _Beside, **options: Any) -> Iterator[Outcome | None]:
    """One unit after the other, on a CUDA stream of its own; yields what has ended, and None after every turn.

    It begins that share of a task ahead: while one run is between two tasks, the others keep the GPU busy.
    """
    streams: dict[str, AbstractContextManager[Any]] = {}
    turn = None
    while waiting:
        unit = waiting.popleft()
        config = next(iter(unit.values()))[0].config
        stack = Stack() if len(unit) > 1 else None
        runs = {
            index: runner.run_by_epochs(resolved, folder, runner.Silent(), stack=stack, storing=beside, **options)
            for index, (resolved, folder) in unit.items()
        }
        beside.running += len(unit)
        under_way = deque(unit)
        first = turn is None
        turn = int(ahead * config.train.epochs) if first else TURN
        while under_way:
            ended: list[Outcome] = []
            left, end = turn * len(under_way), math.inf if first else time.perf_counter() + LONGEST
            with _stream(streams, config.device):
                while under_way and left and time.perf_counter() < end:
                    left -= 1
                    index = under_way.popleft()
                    reason = None
                    try:
                        next(runs[index])
                        under_way.append(index)
                        continue
                    except StopIteration:
                        pass
                    except Exception as error:  # kept no longer than this: it holds what the run held
                        reason = unit[index][1].note_failure(error)
                    ended.append((index, reason))
                    del runs[index]
                    beside.running -= 1
            yield from ended
            yield None
            turn, first = TURN, False


def _stream(known: dict[str, AbstractContextManager[Any]], device: str) -> AbstractContextManager[Any]:
    if not device.startswith("cuda"):
        return nullcontext()
    if device not in known:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        known[device] = torch.cuda.stream(stream)
    return known[device]
