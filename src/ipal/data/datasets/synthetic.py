"""Graphs of any size: classes with communities in them, uneven degrees, Gaussian features; made piece by piece."""

from collections.abc import Iterator
from dataclasses import dataclass as plain_dataclass
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ipal.config import Count, Seed, explain
from ipal.data.datasets.readers import RawGraph
from ipal.errors import ConfigError
from ipal.system import free_memory

EDGES_AT_ONCE = 2_000_000
VALUES_AT_ONCE = 8_000_000

CHECKED = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(config=CHECKED, frozen=True, kw_only=True)
class Synthetic:
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
    communities: Count = 1
    """Communities inside each class, which differ in their features too."""
    closeness: float = Field(0.75, ge=0, le=1)
    """Share of a class's inner edges that stay inside a community, where there are several."""
    unevenness: float = Field(0.0, ge=0, le=100)
    """The size of a class falls with its rank to this power."""
    strays: float = Field(0.0, ge=0, le=1)
    """Share of nodes that look and link like those of another class: nobody can tell them."""
    shuffled: bool = False
    """Nodes in no order; else those of a class follow each other."""
    seed: Seed = 0


@dataclass(config=CHECKED, frozen=True, kw_only=True)
class RedditShaped:
    """A part, or a multiple, of a graph of Reddit's size."""

    scale: float = Field(1.0, gt=0, le=100)
    """Nodes and edges, as a multiple of Reddit's."""
    seed: Seed = 0

    def as_synthetic(self) -> Synthetic:
        """Reddit has 232,965 nodes, 114,615,892 directed edges, 602 features and 41 classes of uneven sizes."""
        return Synthetic(
            nodes=max(41, round(232_965 * self.scale)),
            classes=41,
            features=602,
            degree=532.0,  # of which 492 are left when each counts once
            homophily=0.75,
            signal=0.1,
            communities=4,
            closeness=0.5,
            unevenness=0.8,
            strays=0.08,
            shuffled=True,
            seed=self.seed,
        )


Size = TypeVar("Size", Synthetic, RedditShaped)


def parse_size(name: str, kind: type[Size]) -> Size:
    """What stands behind the colon of `synthetic:nodes=5000,classes=10`."""
    _, _, text = name.partition(":")
    pairs = [part.partition("=") for part in text.split(",") if part]
    wrong = [key for key, equals, _ in pairs if not equals]
    if wrong:
        raise ConfigError(f"'{wrong[0]}' in '{name}' is not NAME=VALUE, as in synthetic:nodes=5000,classes=10.")
    try:
        return TypeAdapter(kind).validate_python({key.strip(): value for key, _, value in pairs})
    except ValidationError as error:
        raise explain(error, [field.name for field in fields(kind)]) from error


@plain_dataclass(frozen=True, eq=False)
class _Groups:
    """Nodes sorted into groups, and where each group begins and ends."""

    of_node: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, sorted_groups: NDArray[np.int64], count: int) -> "_Groups":
        all_groups = np.arange(count)
        return cls(
            sorted_groups,
            np.searchsorted(sorted_groups, all_groups),
            np.searchsorted(sorted_groups, all_groups, side="right"),
        )


def synthetic(size: Synthetic) -> RawGraph:
    """A degree-corrected community graph, in time linear in nodes and edges.

    Each edge picks a source by its propensity; its target is of the same class with probability `homophily` (and then
    of the same community with probability `closeness`), else any node. Propensities follow a Pareto law, so degrees
    are uneven as in real graphs.
    """
    rows = size.nodes + size.classes * size.communities
    free_memory.need(
        rows * (64 + 8 * size.features) + 17 * size.nodes * size.degree / 2,
        "This synthetic graph",
        "ask for fewer nodes, classes or features, or a smaller degree",
    )
    random = np.random.default_rng(size.seed)
    homes = _Groups.of(_class_of_nodes(size, random), size.classes)
    smaller = _communities(homes, size)
    propensity = 1.0 + random.pareto(2.5, size.nodes)
    edges = _edges(size, homes, smaller, propensity, random)
    x = _features(size, homes, smaller, random)
    y = homes.of_node.copy()
    if size.strays:
        away = random.random(size.nodes) < size.strays
        y[away] = random.integers(0, size.classes, int(away.sum()))
    if size.shuffled:
        order = random.permutation(size.nodes).astype(np.int32)
        for some in _slices(edges.shape[1], EDGES_AT_ONCE):
            edges[:, some] = order[edges[:, some]]
        place = np.argsort(order)
        x, y = x[place], y[place]
    return RawGraph(edges, y, x, "synthetic")


def _class_of_nodes(size: Synthetic, random: np.random.Generator) -> NDArray[np.int64]:
    if size.unevenness:
        shares = np.arange(1, size.classes + 1) ** -size.unevenness
        y = random.choice(random.permutation(size.classes), size.nodes, p=shares / shares.sum())
    else:
        y = random.integers(0, size.classes, size.nodes)
    y = np.sort(y)
    y[: size.classes] = np.arange(min(size.classes, size.nodes))
    return np.sort(y)


def _communities(homes: _Groups, size: Synthetic) -> _Groups:
    """Equal parts of every class."""
    y, count = homes.of_node, size.communities
    place = np.arange(size.nodes) - homes.starts[y]
    return _Groups.of(y * count + place * count // (homes.ends - homes.starts)[y], size.classes * count)


def _edges(
    size: Synthetic, homes: _Groups, smaller: _Groups, propensity: NDArray[np.float64], random: np.random.Generator
) -> NDArray[np.int32]:
    total = np.concatenate([[0.0], np.cumsum(propensity)])
    num_edges = int(size.nodes * size.degree / 2)
    edges = np.empty((2, num_edges), dtype=np.int32)
    within = np.zeros(num_edges, dtype=np.int8)  # anywhere, the class, the community
    parts = list(_slices(num_edges, EDGES_AT_ONCE))

    def draw(some: slice, low: Any, high: Any) -> Any:
        """Nodes between two points of the cumulative propensity."""
        drawn = low + random.random(some.stop - some.start) * (high - low)
        return np.clip(np.searchsorted(total, drawn, side="right") - 1, 0, size.nodes - 1)

    for some in parts:
        edges[0, some] = draw(some, 0.0, total[-1])
    for some in parts:
        within[some] = random.random(some.stop - some.start) < size.homophily
    if size.communities > 1:
        for some in parts:
            within[some] += within[some] * (random.random(some.stop - some.start) < size.closeness)
    for some in parts:
        source = edges[0, some]
        low, high = np.zeros(len(source)), np.full(len(source), total[-1])
        for level, groups in enumerate((homes, smaller), start=1):
            there = within[some] == level
            low[there] = total[groups.starts[groups.of_node[source[there]]]]
            high[there] = total[groups.ends[groups.of_node[source[there]]]]
        edges[1, some] = draw(some, low, high)
    return edges


def _features(size: Synthetic, homes: _Groups, smaller: _Groups, random: np.random.Generator) -> NDArray[np.float32]:
    centres = random.normal(size=(size.classes, size.features)) / np.sqrt(size.features)
    kinds = homes
    if size.communities > 1:
        apart = random.normal(size=(size.classes * size.communities, size.features)) / np.sqrt(size.features)
        kinds, centres = smaller, np.sqrt(0.5) * (np.repeat(centres, size.communities, axis=0) + apart)
    x = np.empty((size.nodes, size.features), dtype=np.float32)
    for some in _slices(size.nodes, max(1, VALUES_AT_ONCE // size.features)):
        noise = random.normal(size=(some.stop - some.start, size.features)).astype(np.float32)
        x[some] = noise / np.sqrt(size.features) + (size.signal * centres[kinds.of_node[some]]).astype(np.float32)
    return x


def _slices(count: int, most: int) -> Iterator[slice]:
    """All of a range, in pieces."""
    return (slice(begin, min(begin + most, count)) for begin in range(0, count, most))
