"""Homophily, by hand."""

import numpy as np
import pytest

from ipal.data.class_edges import balanced_homophily, edge_homophily, edges_by_class
from ipal.data.csr import Neighbours

# 0 -> 1, 1 -> 0, 2 -> 0, 3 -> 2, 4 -> 3; nodes 0, 1 of class 0, 2, 3 of class 1, 4 of none.
NEIGHBOURS = Neighbours.of_edges(np.array([[0, 1, 2, 3, 4], [1, 0, 0, 2, 3]]), 5)
CLASSES = np.array([0, 0, 1, 1, -1])


def test_edges_by_class_by_hand() -> None:
    same, every = edges_by_class(NEIGHBOURS, CLASSES, 2)
    assert same.tolist() == [2, 1]
    assert every.tolist() == [3, 1]


def test_edge_homophily_by_hand() -> None:
    assert edge_homophily(np.array([2, 1]), np.array([3, 1])) == 3 / 4
    assert edge_homophily(np.array([0]), np.array([0])) is None


def test_balanced_homophily_by_hand() -> None:
    found = balanced_homophily(np.array([2, 1]), np.array([3, 1]), np.array([2, 2]))
    assert found == pytest.approx((2 / 3 - 1 / 2) + (1 - 1 / 2))
    assert balanced_homophily(np.array([0, 3]), np.array([3, 3]), np.array([1, 3])) == pytest.approx(1 / 4)
    assert balanced_homophily(np.array([2]), np.array([3]), np.array([4])) is None
