"""Graphs that need no file: the handwritten digits inside scikit-learn, and communities of any size."""

from dataclasses import fields
from typing import Any

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ipal.config import explain
from ipal.datasets.readers import RawGraph
from ipal.errors import ConfigError


def digits(neighbours: int = 8) -> RawGraph:
    """Each of 1,797 digit images linked to its nearest neighbours by pixel distance; features are the pixels."""
    from sklearn.datasets import load_digits

    images = load_digits()
    # Pixels are whole numbers, so these distances are exact, and equal ones are told apart by their order: the same
    # graph on every machine, with any number of threads.
    square = (images.data**2).sum(axis=1)
    distance = square[:, None] + square[None, :] - 2 * images.data @ images.data.T
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :neighbours]
    x = (images.data / 16.0).astype(np.float32)
    return RawGraph(
        np.stack([np.repeat(np.arange(len(x)), neighbours), nearest.reshape(-1)]),
        images.target,
        x,
        f"pixels scaled to [0, 1]; edges join {neighbours} nearest neighbours over all images, "
        "so the graph itself was made from more than one task",
    )


@dataclass(config=ConfigDict(extra="forbid", allow_inf_nan=False), frozen=True, kw_only=True)
class Synthetic:
    """Size of a synthetic graph: communities with Gaussian features and uneven degrees."""

    nodes: int = Field(2000, ge=1)
    classes: int = Field(10, ge=1)
    features: int = Field(64, ge=1)
    degree: float = Field(8.0, ge=0)
    """Mean number of neighbours."""
    homophily: float = Field(0.8, ge=0, le=1)
    """Share of edges that stay inside a class."""
    signal: float = Field(1.0, ge=0)
    """Distance of class centres in units of the noise."""
    seed: int = Field(0, ge=0)


def parse_synthetic(name: str) -> Synthetic:
    """`synthetic:nodes=5000,classes=10` as a size."""
    _, _, text = name.partition(":")
    pairs = [part.partition("=") for part in text.split(",") if part]
    wrong = [key for key, equals, _ in pairs if not equals]
    if wrong:
        raise ConfigError(f"'{wrong[0]}' in '{name}' is not NAME=VALUE, as in synthetic:nodes=5000,classes=10.")
    try:
        return TypeAdapter(Synthetic).validate_python({key.strip(): value for key, _, value in pairs})
    except ValidationError as error:
        raise explain(error, [field.name for field in fields(Synthetic)]) from error


def synthetic(size: Synthetic) -> RawGraph:
    """A degree-corrected community graph, in time linear in nodes and edges.

    Each edge picks a source by its propensity; its target is of the same class with probability `homophily`,
    else any node. Propensities follow a Pareto law, so degrees are uneven as in real graphs.
    """
    random = np.random.default_rng(size.seed)
    y = np.sort(random.integers(0, size.classes, size.nodes))
    y[: size.classes] = np.arange(min(size.classes, size.nodes))
    y = np.sort(y)
    propensity = 1.0 + random.pareto(2.5, size.nodes)
    total = np.concatenate([[0.0], np.cumsum(propensity)])
    num_edges = int(size.nodes * size.degree / 2)

    def draw(low: Any, high: Any) -> Any:
        """Nodes between two points of the cumulative propensity."""
        return np.searchsorted(total, low + random.random(num_edges) * (high - low), side="right") - 1

    source = draw(0.0, total[-1])
    starts = np.searchsorted(y, np.arange(size.classes))
    ends = np.searchsorted(y, np.arange(size.classes), side="right")
    inside = random.random(num_edges) < size.homophily
    low = np.where(inside, total[starts[y[source]]], 0.0)
    high = np.where(inside, total[ends[y[source]]], total[-1])
    target = draw(low, high)
    edges = np.clip(np.stack([source, target]), 0, size.nodes - 1)

    centres = random.normal(size=(size.classes, size.features)) / np.sqrt(size.features)
    x = random.normal(size=(size.nodes, size.features)).astype(np.float32) / np.sqrt(size.features)
    x += (size.signal * centres[y]).astype(np.float32)
    return RawGraph(edges, y, x.astype(np.float32), "synthetic")
