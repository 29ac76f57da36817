"""Features for graphs that have none."""

import numpy as np
from numpy.typing import NDArray

from ipal.data.graph import Graph

REMARK = (
    "structural features: propagated through the whole graph, later tasks' nodes included (never labels), "
    "so no result on them is isolated or inductive without this remark"
)


def structural_features(
    graph: Graph, *, width: int = 128, hops: int = 4, keep: int = 3, seed: int = 0
) -> NDArray[np.float32]:
    """A fixed Gaussian matrix, propagated `hops` times, rows normalised each time, the last `keep` side by side."""
    a = graph.normalised
    x = np.random.default_rng(seed).normal(size=(graph.num_nodes, width)).astype(np.float32)
    kept = []
    for _ in range(hops):
        x = a @ x
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        kept.append(x)
    return np.concatenate(kept[-keep:], axis=1)
