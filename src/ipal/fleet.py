"""Many runs in one process, taking turns epoch by epoch: how a bench uses a GPU that one small run cannot fill.

Every run has a CUDA stream of its own, so that the GPU works on several at once; each computes what it would compute
alone, to the bit. Runs on the same graph share its tasks. One that fails takes no other with it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ipal import experiment
from ipal.config import RunConfig
from ipal.datasets import Dataset
from ipal.store import RunFolder

Ended = Callable[[int, BaseException | None], None]


@dataclass(frozen=True, eq=False)
class Member:
    """One run of a fleet."""

    config: RunConfig
    """Resolved."""
    dataset: Dataset
    folder: RunFolder
    data_root: Path | None = None


def run_fleet(members: Sequence[Member], ended: Ended, checkpoint_every: int | None = None) -> None:
    """Make all runs, interleaved; `ended` hears of each when it is done: its place, and what went wrong."""
    streams = _Streams()
    under_way = {
        index: (
            streams.next(member.config.device),
            experiment.run_by_epochs(
                member.config,
                member.dataset,
                member.folder,
                Silent(),
                checkpoint_every=checkpoint_every,
                data_root=member.data_root,
                company=len(members),
            ),
        )
        for index, member in enumerate(members)
    }
    while under_way:
        for index, (stream, epochs) in tuple(under_way.items()):
            try:
                with stream:
                    next(epochs)
            except StopIteration:
                del under_way[index]
                ended(index, None)
            except Exception as error:
                del under_way[index]
                ended(index, error)


class _Streams:
    """CUDA streams, handed out in turn: more of them than a GPU has queues would make it slower, not faster."""

    MOST = 8

    def __init__(self) -> None:
        self._made: dict[str, deque[torch.cuda.Stream]] = {}

    def next(self, device: str) -> AbstractContextManager[Any]:
        if not device.startswith("cuda"):
            return nullcontext()
        some = self._made.setdefault(device, deque(maxlen=self.MOST))
        if len(some) < self.MOST:
            some.append(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        some.rotate()
        return torch.cuda.stream(some[0])


class Silent:
    """Watches a run and says nothing."""

    def started(self, *_: object) -> None: ...
    def epoch(self, *_: object) -> None: ...
    def task(self, *_: object) -> None: ...
