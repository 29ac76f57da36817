"""A step of training recorded as a CUDA graph: on a GPU, small steps spend their time in starting kernels one by one.

A recording holds the very kernels that the step would start, on the same memory: replayed, it computes the same bits.
That memory is a pool of its own. Torch does not use it for anything else and keeps it when the graph is gone, so it is
given back by hand: see `close`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Terms = dict[str, Tensor]


def can_record() -> bool:
    """Whether torch lets us clear its workspaces (see `_own_workspaces`), which is no part of its public interface."""
    return hasattr(torch._C, "_cuda_clearCublasWorkspaces")


class Recorded:
    """A step without arguments, recorded when made and repeated when called, until it is closed."""

    def __init__(self, step: Callable[[], Terms], generator: torch.Generator) -> None:
        # A recording holds on to all that its kernels look at.
        self._step: Callable[[], Terms] | None = step
        with torch.cuda.device(generator.device):
            self._graph, self._pool = torch.cuda.CUDAGraph(), torch.cuda.MemPool()
            # Every replay goes on drawing where the last one ended.
            self._graph.register_generator_state(generator)
            here, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(here)
            with torch.cuda.stream(aside), _own_workspaces():
                # Not with torch.cuda.graph(): that waits for all streams and empties caches, which other runs use.
                pool: Any = self._pool.id
                self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    terms = step()
                    self._values = torch.stack(list(terms.values()))
                finally:
                    self._graph.capture_end()
            here.wait_stream(aside)
        self._names = list(terms)

    def __call__(self) -> Terms:
        self._graph.replay()
        return dict(zip(self._names, self._values.clone().unbind(), strict=True))

    def close(self) -> None:
        """Give all memory back but that of tensors which the step left elsewhere, as gradients.

        In this order: a pool that is let go returns to the device what no graph and no tensor holds any more.
        """
        self._graph.reset()
        self._step = None
        del self._values, self._pool


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Torch keeps a workspace of matrix products for every stream, and hands out the same streams again and again.

    One that was made inside a recording belongs to it: another recording must not find it, nor anybody when it is gone.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
