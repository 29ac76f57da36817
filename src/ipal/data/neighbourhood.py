"""The part of a graph that a prediction depends on.

A prediction by a model of L hops needs the features of all nodes within L hops, the edges among them, and their
in-degrees in the whole graph: nodes at the border of a subgraph have lost neighbours, and would be weighted wrongly.
`neighbourhood` returns exactly that.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipal.data.graph import Graph, Nodes
from ipal.data.graph_data import GraphData
from ipal.errors import DataError


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """A subgraph that gives the same predictions for some nodes as the whole graph."""

    graph: Graph
    """Its `neighbours.degree` is that of the whole graph."""
    nodes: Nodes
    """The predicted nodes, as numbered in `graph`."""
    origin: Nodes
    """Number of every node of `graph` in the whole graph; ascending."""
    distance: NDArray[np.int64]
    """How many edges lead from every node of `graph` to the nearest of the predicted ones; -1 where none do."""


def neighbourhood(graph: Graph | GraphData, nodes: Iterable[int], hops: int | None) -> Neighbourhood:
    """The subgraph that the predictions of some nodes depend on.

    Parameters
    ----------
    graph : Graph or GraphData
        The whole graph.
    nodes : iterable of int
        The nodes to predict.
    hops : int or None
        How many hops the model reads; None for any number.

    Returns
    -------
    Neighbourhood
    """
    graph = graph.graph if isinstance(graph, GraphData) else graph
    asked = checked_nodes(nodes, graph.num_nodes)
    distance = np.full(graph.num_nodes, -1)
    distance[asked] = 0
    border, hop = asked, 0
    while len(border) and hop != hops:
        hop += 1
        found = np.unique(graph.neighbours.rows_of(border)[1])
        border = found[distance[found] < 0].astype(np.int64)
        distance[border] = hop
    inside = np.arange(graph.num_nodes) if hops is None else np.flatnonzero(distance >= 0)
    if len(inside) == graph.num_nodes:
        return Neighbourhood(graph, asked, inside, distance)
    part = graph.induced(inside, whole_degree=True)
    return Neighbourhood(part, np.searchsorted(inside, asked), inside, distance[inside])


def checked_nodes(nodes: Iterable[int], n: int) -> Nodes:
    """Numbers of nodes that came from outside."""
    numbers = np.asarray(nodes if isinstance(nodes, np.ndarray) else list(nodes))
    if numbers.ndim != 1 or not len(numbers) or not np.issubdtype(numbers.dtype, np.integer):
        raise DataError("Give the nodes as a list of whole numbers, at least one.")
    for wrong in (numbers.min(), numbers.max()):
        if not 0 <= wrong < n:
            raise DataError(f"There is no node {wrong}: the nodes are 0 to {n - 1}.")
    return numbers.astype(np.int64)
