"""The memory budget of a run: what does not fit goes to temporary files."""

import tempfile
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNED = 64
"""Alignment of arrays in bytes, as torch's: the bits of a product may depend on it."""


@dataclass(frozen=True)
class Budget:
    """Bytes of main memory for optional data; None for no limit.

    Half is for arrays that can also be in a file, as copies of features; a quarter for what can also be computed in
    pieces (see `nn.embed`).
    """

    bytes: int | None = None
    _held: Counter[str] = field(default_factory=Counter, compare=False, repr=False)
    _admitted: "weakref.WeakKeyDictionary[object, int]" = field(
        default_factory=weakref.WeakKeyDictionary, compare=False, repr=False
    )

    @property
    def taken(self) -> int:
        """Bytes of the live arrays in memory."""
        return self._held["bytes"]

    def admits(self, owner: object, size: int) -> bool:
        """Whether the data of `owner` fits a quarter of the budget with that of others; if so, it is counted."""
        if self.bytes is None:
            return True
        others = sum(held for other, held in self._admitted.items() if other is not owner)
        if others + size > self.bytes // 4:
            return False
        self._admitted[owner] = size
        return True

    def room(self, shape: tuple[int, int], dtype: type) -> NDArray[Any]:
        """An empty array: in memory if it fits, else in a temporary file."""
        size = shape[0] * shape[1] * np.dtype(dtype).itemsize
        if size == 0 or self.bytes is None or self.taken + size <= self.bytes // 2:
            memory = np.empty(size + ALIGNED, np.uint8)
            begin = -memory.ctypes.data % ALIGNED
            array: NDArray[Any] = memory[begin : begin + size].view(dtype).reshape(shape)
            self._held.update(bytes=size)
            weakref.finalize(memory, self._held.subtract, {"bytes": size})
            return array
        # The file is unlinked: it is freed with its last user.
        with tempfile.TemporaryFile() as file:
            return np.memmap(file, dtype, "w+", shape=shape)
