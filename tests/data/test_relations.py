"""Edges of several types in one graph: cut out, changed and told apart."""

from dataclasses import replace

import numpy as np
import pytest

from ipal.data.csr import Neighbours
from ipal.data.graph import Graph, content_hash
from ipal.data.relations import Relations, Types

TYPES = Types((("a", 2), ("b", 1)), (("a", "r", "a"), ("a", "s", "b")))
EDGES = {"r": [(0, 1), (1, 0), (1, 2)], "s": [(0, 3), (3, 0), (2, 3), (3, 2), (0, 1)]}


def rows(*names: str) -> Neighbours:
    return Neighbours.of_edges(np.array([edge for name in names for edge in EDGES[name]]).T, 4)


def typed() -> Graph:
    relations = Relations(TYPES, (rows("r"), rows("s")), np.array([True, True, True, False]))
    return Graph.of(np.arange(12, dtype=np.float32).reshape(4, 3), rows("r", "s"), relations=relations)


def test_types_are_plain_data_and_back():
    assert Types.of_plain(TYPES.plain) == TYPES
    assert TYPES.target == "a"


@pytest.mark.parametrize("norm", ["symmetric", "mean", "sum"])
def test_what_is_gathered_is_added_up_over_types(norm):
    graph, alone = typed(), [Graph.of(typed().x, rows(name)) for name in ("r", "s")]
    expected = sum(one.aggregation(norm).toarray() for one in alone)
    np.testing.assert_array_equal(graph.aggregation(norm).toarray(), expected)
    np.testing.assert_array_equal(graph.aggregation_rows(1, 3, norm).toarray(), expected[1:3])
    if norm != "symmetric":  # the edge from 0 to 1 is of both types
        assert expected[1, 0] == 2


def test_a_part_has_the_edges_of_each_type_among_its_nodes():
    part = typed().induced(np.array([3, 0, 1]))
    assert part.types == TYPES
    assert part.targets.tolist() == [1, 2]
    assert part.others.tolist() == [0]
    assert [one.matrix(0, 3, one.values(0, 3)).toarray().tolist() for one in part.by_type] == [
        [[0, 0, 0], [0, 0, 1], [0, 1, 0]],
        [[0, 1, 0], [1, 0, 0], [0, 1, 0]],
    ]
    assert part.at_targets(np.array([5, 6, 7])).tolist() == [6, 7]


def test_a_part_may_keep_the_degrees_of_each_type():
    graph = typed()
    part = graph.induced(np.array([0, 3]), whole_degree=True)
    for one, whole in zip((part.neighbours, *part.by_type), (graph.neighbours, *graph.by_type), strict=True):
        assert one.degree.tolist() == whole.degree[[0, 3]].tolist()
    assert [one.degree.tolist() for one in graph.induced(np.array([0, 3])).by_type] == [[0, 0], [1, 1]]


def test_types_of_edges_are_part_of_what_a_graph_holds():
    graph, y = typed(), np.zeros(4, dtype=np.int64)
    assert graph.relations is not None
    other = replace(graph.relations, rows=graph.relations.rows[::-1])
    hashes = [None, graph.relations, other]
    assert len({content_hash(Graph.of(graph.x, graph.neighbours, relations=one), y) for one in hashes}) == 3


def test_without_types_of_edges_all_are_alone():
    none = Relations(Types(TYPES.nodes, ()), (), np.ones(4, dtype=bool))
    graph = Graph.of(typed().x, Neighbours.none(4), relations=none)
    np.testing.assert_array_equal(graph.normalised.toarray(), np.eye(4))
