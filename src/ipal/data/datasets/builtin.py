"""Graphs that need no file: scikit-learn's digits, and synthetic ones of any size; features for graphs without any."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ipal.config import Count, Section, Seed
from ipal.data.datasets.readers import RawGraph
from ipal.data.graph import Graph
from ipal.system import free_memory

STRUCTURAL = (
    "structural features: propagated through the whole graph, later tasks' nodes included (never labels), "
    "so no result on them is isolated or inductive without this remark"
)


def digits(neighbours: int = 8) -> RawGraph:
    """Each of 1,797 digit images linked to its nearest neighbours by pixel distance; features are the pixels."""
    # The file that sklearn.datasets.load_digits reads: importing that takes a second.
    found = importlib.util.find_spec("sklearn")
    assert found is not None, "the package depends on it"
    rows = np.loadtxt(Path(str(found.origin)).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    pixels, y = rows[:, :-1], rows[:, -1].astype(np.int64)
    # Pixels are whole numbers up to 16, so these distances are exact, and equal ones are told apart by their order: the
    # same graph on every machine, with any number of threads. Numbers of 16 bits are sorted several times as fast.
    square = (pixels**2).sum(axis=1)
    distance = (square[:, None] + square[None, :] - 2 * pixels @ pixels.T).astype(np.int16)
    np.fill_diagonal(distance, np.iinfo(np.int16).max)
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :neighbours]
    return RawGraph(
        np.stack([np.repeat(np.arange(len(y)), neighbours), nearest.reshape(-1)]),
        y,
        (pixels / 16.0).astype(np.float32),
        f"pixels scaled to [0, 1]; edges join {neighbours} nearest neighbours over all images, "
        "so the graph itself was made from more than one task",
    )


def structural_features(graph: Graph) -> NDArray[np.float32]:
    """A fixed Gaussian matrix, propagated four times, rows normalised each time, the last three side by side."""
    x = np.random.default_rng(0).normal(size=(graph.num_nodes, 128)).astype(np.float32)
    kept = []
    for _ in range(4):
        x = graph.normalised @ x
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        kept.append(x)
    return np.concatenate(kept[-3:], axis=1)


class Synthetic(Section):
    """Size and shape of a synthetic graph."""

    nodes: Count = 2000
    classes: Count = 10
    features: Count = 64
    degree: float = Field(8.0, ge=0, le=2**31)
    """Mean number of neighbours, those drawn twice counted twice."""
    homophily: float = Field(0.8, ge=0, le=1)
    """Share of edges that stay inside a class."""
    signal: float = Field(1.0, ge=0)
    """Distance of class centres in units of the noise."""
    unevenness: float = Field(0.0, ge=0, le=100)
    """The size of a class falls with its rank to this power."""
    shuffled: bool = False
    """Nodes in no order; else those of a class follow each other."""
    seed: Seed = 0


def synthetic(**sizes: Any) -> RawGraph:
    """A degree-corrected community graph (see `Synthetic`), in time linear in nodes and edges.

    Each edge picks a source by its propensity; its target is of the same class with probability `homophily`, else any
    node. Propensities follow a Pareto law, so degrees are uneven as in real graphs. Features are Gaussian.
    """
    size = Synthetic(**sizes)
    rows = size.nodes + size.classes
    free_memory.need(
        rows * (64 + 24 * size.features) + 60 * size.nodes * size.degree / 2,
        "This synthetic graph",
        "ask for fewer nodes, classes or features, or a smaller degree",
    )
    random = np.random.default_rng(size.seed)
    y = _class_of_nodes(size, random)
    edges, x = _edges(size, y, random), _features(size, y, random)
    if size.shuffled:
        order = random.permutation(size.nodes).astype(np.int32)
        before = np.argsort(order)
        edges, x, y = order[edges], x[before], y[before]
    return RawGraph(edges, y, x, "synthetic")


def _class_of_nodes(size: Synthetic, random: np.random.Generator) -> NDArray[np.int64]:
    """Ascending; every class has a node, where there are enough."""
    if size.unevenness:
        shares = np.arange(1, size.classes + 1) ** -size.unevenness
        y = random.choice(random.permutation(size.classes), size.nodes, p=shares / shares.sum())
    else:
        y = random.integers(0, size.classes, size.nodes)
    y = np.sort(y)
    y[: size.classes] = np.arange(min(size.classes, size.nodes))
    return np.sort(y)


def _edges(size: Synthetic, y: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int32]:
    total = np.concatenate([[0.0], np.cumsum(1.0 + random.pareto(2.5, size.nodes))])
    # Between which points of the cumulative propensity the target of a node's edge is drawn: anywhere, or in its class.
    groups = [np.zeros_like(y), y]
    reach = np.array([[total[np.searchsorted(group, group, side)] for side in ("left", "right")] for group in groups])
    number = int(size.nodes * size.degree / 2)

    def draw(low: Any, high: Any) -> NDArray[np.int32]:
        drawn = low + random.random(number) * (high - low)
        return np.asarray(np.searchsorted(total, drawn, side="right") - 1, dtype=np.int32).clip(0, size.nodes - 1)

    source = draw(total[0], total[-1])
    within = (random.random(number) < size.homophily).astype(np.int8)
    return np.stack([source, draw(*reach[within, :, source].T)])


def _features(size: Synthetic, y: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.float32]:
    centres = random.normal(size=(size.classes, size.features)) / np.sqrt(size.features)
    noise = random.normal(size=(size.nodes, size.features)).astype(np.float32) / np.sqrt(size.features)
    return np.asarray(noise + (size.signal * centres[y]).astype(np.float32), dtype=np.float32)
