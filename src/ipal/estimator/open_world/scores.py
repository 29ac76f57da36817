"""Novelty of nodes, as a mean over neighbours: nodes of an unknown class are often neighbours."""

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.data.graph import Graph

SMOOTHED = 2
"""How often novelty is averaged over neighbours."""


def smoothed(values: Tensor, graph: Graph, times: int = SMOOTHED) -> Tensor:
    """Means over each node and its in-neighbours, so many times."""
    matrix, counts = _with_loops(graph)
    found = values.numpy()
    for _ in range(times):
        found = (matrix @ found) / counts
    return torch.from_numpy(found)


def own_shares(graph: Graph) -> Tensor:
    """The weight of a node's own value in its `smoothed` one."""
    matrix, counts = _with_loops(graph)
    means = sp.diags_array(1 / counts) @ matrix
    return torch.from_numpy(np.asarray(means.multiply(means.T).sum(axis=1)).reshape(-1))


def _with_loops(graph: Graph) -> tuple[sp.csr_array, np.ndarray]:
    matrix = graph.adjacency.astype(np.float64) + sp.eye_array(graph.num_nodes, format="csr")
    return matrix, np.diff(matrix.indptr).astype(np.float64)
