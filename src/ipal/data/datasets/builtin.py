"""What needs no file: the graph of handwritten digits inside scikit-learn, and features for graphs that have none."""

import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ipal.data.datasets.readers import RawGraph
from ipal.data.graph import Graph

STRUCTURAL = (
    "structural features: propagated through the whole graph, later tasks' nodes included (never labels), "
    "so no result on them is isolated or inductive without this remark"
)


def digits(neighbours: int = 8) -> RawGraph:
    """Each of 1,797 digit images linked to its nearest neighbours by pixel distance; features are the pixels."""
    pixels, target = _images()
    # Pixels are whole numbers up to 16, so these distances are exact, and equal ones are told apart by their order: the
    # same graph on every machine, with any number of threads. Numbers of 16 bits are sorted several times as fast.
    square = (pixels**2).sum(axis=1)
    distance = (square[:, None] + square[None, :] - 2 * pixels @ pixels.T).astype(np.int16)
    np.fill_diagonal(distance, np.iinfo(np.int16).max)
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :neighbours]
    x = (pixels / 16.0).astype(np.float32)
    return RawGraph(
        np.stack([np.repeat(np.arange(len(x)), neighbours), nearest.reshape(-1)]),
        target,
        x,
        f"pixels scaled to [0, 1]; edges join {neighbours} nearest neighbours over all images, "
        "so the graph itself was made from more than one task",
    )


def _images() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Pixels and digits, from the file that `sklearn.datasets.load_digits` reads: importing that takes a second."""
    found = importlib.util.find_spec("sklearn")
    assert found is not None, "the package depends on it"
    rows = np.loadtxt(Path(str(found.origin)).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(np.int64)


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
