"""Several types of nodes and edges in one graph: which there are, and the edges of each type in rows of their own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipal.data.csr import Neighbours

EdgeType = tuple[str, str, str]
"""Type of the source, name, type of the target, as in a `HeteroData`."""


@dataclass(frozen=True)
class Types:
    """The types that a model knows. Each type of nodes has columns of its own among the features, in this order."""

    nodes: tuple[tuple[str, int], ...]
    """Name and number of features of each; the first is the type that has labels."""
    edges: tuple[EdgeType, ...]

    @property
    def target(self) -> str:
        """The type whose nodes are classified."""
        return self.nodes[0][0]

    @property
    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {"nodes": dict(self.nodes), "edges": [list(edge) for edge in self.edges]}

    @classmethod
    def of_plain(cls, facts: Mapping[str, Any]) -> "Types":
        return cls(tuple(facts["nodes"].items()), tuple((a, name, b) for a, name, b in facts["edges"]))


def num_edge_types(types: Types | None) -> int:
    """How many types of edges are told apart: at least one."""
    return max(1, len(types.edges)) if types else 1


@dataclass(frozen=True, eq=False)
class Relations:
    """The edges of each type, over all nodes of a graph."""

    types: Types
    rows: tuple[Neighbours, ...]
    """One for each of `types.edges`."""
    is_target: NDArray[np.bool_]
    """Which nodes are of the type that has labels."""

    def changed(self, change: Callable[[Neighbours], Neighbours], nodes: NDArray[np.int64] | slice) -> "Relations":
        """With the edges of all types changed alike, between the nodes that stay."""
        return Relations(self.types, tuple(map(change, self.rows)), self.is_target[nodes])
