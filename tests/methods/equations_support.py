"""Small graphs for tests of equations, and when two numbers are close."""

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.backend.runtime import Runtime
from ipal.data.graph import Graph, checked_graph

HERE = Runtime.of()


def close(got: Tensor, expected: object) -> None:
    torch.testing.assert_close(got, torch.as_tensor(expected, dtype=got.dtype), rtol=1e-5, atol=1e-6)


def graph(x: np.ndarray | sp.csr_array, edges: list[list[int]], *, undirected: bool = True) -> Graph:
    return checked_graph(x, np.array(edges, dtype=np.int64), undirected=undirected)
