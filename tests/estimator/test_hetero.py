"""`ipal.graph_from(HeteroData)`: one graph of the nodes and edges of all types."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.transforms import ToUndirected

import ipal
from ipal.errors import DataError

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


def library() -> HeteroData:
    """Four papers of two classes, one without a label, and two authors with other features."""
    data = HeteroData()
    data["author"].x = torch.tensor([[7.0], [8.0]])
    data["paper"].x = torch.arange(8.0).reshape(4, 2)
    data["paper"].y = torch.tensor([0, 1, 1, -1])
    data["paper"].train_mask = torch.tensor([True, True, False, True])
    data[WRITES].edge_index = torch.tensor([[0, 1], [3, 0]])
    data[CITES].edge_index = torch.tensor([[0], [1]])
    return data


def test_nodes_features_labels_and_edges_by_hand() -> None:
    graph = ipal.graph_from(library())
    assert graph.x.toarray().tolist() == [
        [0, 1, 0],
        [2, 3, 0],
        [4, 5, 0],
        [6, 7, 0],
        [0, 0, 7],
        [0, 0, 8],
    ]
    assert graph.columns == ("paper 0", "paper 1", "author 0")
    assert graph.y is not None
    assert graph.y.tolist() == [0, 1, 1, -1, -1, -1]
    assert graph.train_mask is not None
    assert graph.train_mask.tolist() == [True, True, False, False, False, False]
    assert graph.edge_index.T.tolist() == [[0, 1], [0, 5], [1, 0], [3, 4], [4, 3], [5, 0]]
    assert graph.edge_weight is None
    assert ipal.graph_from(library(), directed=True).edge_index.T.tolist() == [[0, 1], [4, 3], [5, 0]]


def test_weights_count_where_a_type_has_them_and_the_other_way_is_the_same_edge() -> None:
    data = library()
    data[WRITES].edge_weight = torch.tensor([0.5, 2.0])
    for one in (data, ToUndirected()(data.clone())):
        found = ipal.graph_from(one)
        assert found.edge_weight is not None
        weights = dict(zip(map(tuple, found.edge_index.T.tolist()), found.edge_weight.tolist(), strict=True))
        assert weights == {(0, 1): 1, (1, 0): 1, (0, 5): 2, (5, 0): 2, (3, 4): 0.5, (4, 3): 0.5}


def test_a_later_graph_is_put_into_the_same_columns_and_needs_no_labels() -> None:
    data = library()
    model = ipal.NCM().partial_fit(ipal.graph_from(data))
    expected = model.predict_proba(ipal.graph_from(data))
    del data["paper"].y
    assert np.array_equal(model.predict_proba(ipal.graph_from(data, label="paper")), expected)
    turned = model.predict_proba(ipal.graph_from(data, label="author"))  # other rows first, columns by their names
    np.testing.assert_allclose(turned[2:], expected[:4], rtol=1e-6)


def setting(kind: Any, name: str, value: Any) -> Callable[[HeteroData], Any]:
    return lambda data: data[kind].__setattr__(name, value)


REFUSED: dict[str, tuple[Callable[[HeteroData], Any], str]] = {
    "no features": (lambda data: delattr(data["author"], "x"), "Nodes of type 'author' have no features"),
    "no labels": (lambda data: delattr(data["paper"], "y"), "No type of nodes has labels: say which"),
    "two types with labels": (setting("author", "y", torch.zeros(2)), r"\['author', 'paper'\] have labels"),
    "no such type": (setting(("paper", "at", "venue"), "edge_index", torch.zeros(2, 1).long()), "type without nodes"),
    "no such node": (setting(WRITES, "edge_index", torch.tensor([[2], [0]])), "names a node that is not there"),
    "no such node at all": (setting(WRITES, "edge_index", torch.tensor([[0], [-1]])), "node -1"),
    "too many labels": (setting("paper", "y", torch.zeros(9)), "9 labels for 4 nodes"),
    "a weight too few": (setting(CITES, "edge_weight", torch.ones(3)), "edge_weight must hold one number"),
    "a negative weight": (setting(CITES, "edge_weight", -torch.ones(1)), "has the weight -1.0"),
    "another shape": (setting(WRITES, "edge_index", torch.zeros(3, 4).long()), "2 x edges"),
    "no table": (setting("author", "x", torch.ones(2)), "features of type 'author' must be a table"),
    "not finite": (setting("author", "x", torch.full((2, 1), torch.nan)), "NaN"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_graph_is_refused(case: str) -> None:
    data = library()
    spoil, sentence = REFUSED[case]
    spoil(data)
    with pytest.raises(DataError, match=sentence) as refusal:
        ipal.graph_from(data)
    assert str(refusal.value).count(". ") == 0, "one sentence"


def test_unknown_types_and_other_types_than_learned_are_refused() -> None:
    data = library()
    with pytest.raises(DataError, match="no nodes of type 'venue'"):
        ipal.graph_from(data, label="venue")
    model = ipal.NCM().partial_fit(ipal.graph_from(data))
    del data["author"], data[WRITES]
    with pytest.raises(DataError, match="no column author 0"):
        model.predict(ipal.graph_from(data))
