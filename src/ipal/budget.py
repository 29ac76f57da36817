"""How much memory may be taken by what could as well lie in a file. Set for a run as a whole, where it is started."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Budget:
    """Bytes of main memory that a run may take; None for as many as there are."""

    bytes: int | None = None

    def room(self, shape: tuple[int, int], dtype: type) -> NDArray[Any]:
        """An array to be filled: in memory, or in a temporary file where it would take more than a quarter."""
        size = shape[0] * shape[1] * np.dtype(dtype).itemsize
        if self.bytes is None or size <= self.bytes // 4:
            return np.empty(shape, dtype)
        # The file has no name: it goes when the last user does.
        with tempfile.TemporaryFile() as file:
            return np.memmap(file, dtype, "w+", shape=shape)


_current: ContextVar[Budget] = ContextVar("budget", default=Budget())  # noqa: B039 (it is immutable)


def current() -> Budget:
    return _current.get()


@contextmanager
def limited(budget: Budget) -> Iterator[None]:
    """Everything inside keeps to this budget."""
    token = _current.set(budget)
    try:
        yield
    finally:
        _current.reset(token)
