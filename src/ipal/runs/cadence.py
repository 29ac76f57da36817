"""When to read losses from the GPU, which waits for them, and when to write checkpoints."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Cadence:
    """When a checkpoint is due: after so many epochs, or when the last one was a small share of the time since."""

    SHARE = 0.05
    LOOK_EVERY = 0.1

    def __init__(self, every: int | None, company: int) -> None:
        self._every, self._company = every, company
        self._last, self._cost, self._looked = time.perf_counter(), 0.0, 0.0

    def is_due(self, epoch: int) -> bool:
        if self._every:
            return epoch % self._every == 0
        return time.perf_counter() - self._last > self._company * max(1.0, self._cost / self.SHARE)

    def is_look_due(self) -> bool:
        """Whether the progress bar is due for an update."""
        return time.perf_counter() - self._looked > self._company * self.LOOK_EVERY

    def looked(self) -> None:
        self._looked = time.perf_counter()

    @contextmanager
    def paid(self) -> Iterator[None]:
        """Context manager around the writing of a checkpoint."""
        begin = time.perf_counter()
        yield
        self._last = time.perf_counter()
        self._cost = self._last - begin
