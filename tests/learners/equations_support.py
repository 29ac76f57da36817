"""Numbers and small graphs for tests of equations, and when two numbers are close."""

import numpy as np
import scipy.sparse as sp
import torch
from hypothesis import settings
from torch import Tensor

from ipal.backend.runtime import Runtime
from ipal.data.graph import Graph, checked_graph

HERE = Runtime.of()

# Everything here is called many times on tiny tensors: a deadline would measure the machine, not the code.
quick = settings(deadline=None, max_examples=50)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Reproducible float64 numbers that want a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def close(got: Tensor, expected: object) -> None:
    torch.testing.assert_close(got, torch.as_tensor(expected, dtype=got.dtype), rtol=1e-5, atol=1e-6)


def graph(x: np.ndarray | sp.csr_array, edges: list[list[int]], *, undirected: bool = True) -> Graph:
    return checked_graph(x, np.array(edges, dtype=np.int64), undirected=undirected)
