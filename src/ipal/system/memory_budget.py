"""How much memory may be taken by what could as well lie in a file. Set for a run as a whole, where it is started."""

import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNED = 64
"""Bytes: arrays begin at a multiple of it, as torch's do. The bits of a product may depend on it."""


@dataclass(frozen=True)
class Budget:
    """Bytes of main memory for what a run could do without; None for as many as there are.

    Half of them are for arrays that may as well lie in a file, as copies of features, a quarter for what could be made
    in pieces (see `exact.fits`).
    """

    bytes: int | None = None
    _held: Counter[str] = field(default_factory=Counter, compare=False, repr=False)
    _admitted: "weakref.WeakKeyDictionary[object, int]" = field(
        default_factory=weakref.WeakKeyDictionary, compare=False, repr=False
    )

    @property
    def taken(self) -> int:
        """Bytes of the arrays in memory that are still there."""
        return self._held["bytes"]

    def admits(self, owner: object, size: int) -> bool:
        """Whether what `owner` keeps, with what others keep, takes a quarter at most; if so, it counts from now on."""
        if self.bytes is None:
            return True
        others = sum(held for other, held in self._admitted.items() if other is not owner)
        if others + size > self.bytes // 4:
            return False
        self._admitted[owner] = size
        return True

    def room(self, shape: tuple[int, int], dtype: type) -> NDArray[Any]:
        """An array to be filled: in memory while there is room, else in a temporary file."""
        size = shape[0] * shape[1] * np.dtype(dtype).itemsize
        if size == 0 or self.bytes is None or self.taken + size <= self.bytes // 2:
            memory = np.empty(size + ALIGNED, np.uint8)
            begin = -memory.ctypes.data % ALIGNED
            array: NDArray[Any] = memory[begin : begin + size].view(dtype).reshape(shape)
            self._held.update(bytes=size)
            weakref.finalize(memory, self._held.subtract, {"bytes": size})
            return array
        # The file has no name: it goes when the last user does.
        with tempfile.TemporaryFile() as file:
            return np.memmap(file, dtype, "w+", shape=shape)


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


def current() -> Budget:
    return _current.get() or Budget()


@contextmanager
def limited(budget: Budget) -> Iterator[None]:
    """Everything inside keeps to this budget."""
    token = _current.set(budget)
    try:
        yield
    finally:
        _current.reset(token)
