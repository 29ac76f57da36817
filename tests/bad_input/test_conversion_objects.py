"""What is passed in place of a `Data`: read for what it means, or refused with the line that converts it."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.utils import from_networkx

import ipal
from ipal import IPAL, NCM, DataError
from ipal.deploy import predict
from ipal.errors import IgnoredInput
from ipal.learners.from_pyg import graph_of, task_of
from tests.bad_input.conversion_support import N, expected
from tests.bad_input.support import E, X, Y, some_data

DATASET = ipal.load_dataset("synthetic:nodes=60,classes=3,features=4")


# ---------------------------------------------------------------------- other things than a Data


def hetero() -> HeteroData:
    data = HeteroData()
    for name in ("paper", "author"):
        data[name].x = torch.from_numpy(X[:20]).float()
        data[name].y = torch.from_numpy(Y[:20])
    data["paper", "by", "author"].edge_index = torch.from_numpy(E % 20)
    return data


def drawn() -> nx.Graph:
    graph = nx.path_graph(N)
    for node in graph:
        graph.nodes[node].update(x=X[node].tolist(), y=int(Y[node]))
    return graph


STRANGERS: dict[str, tuple[Any, str, Callable[[Any], Data] | None]] = {
    "HeteroData": (hetero(), "data.to_homogeneous()", lambda data: data.to_homogeneous()),
    "networkx": (
        drawn(),
        "from_networkx(G, group_node_attrs=['x'])",
        lambda G: from_networkx(G, group_node_attrs=["x"]),
    ),
    "dict": ({"x": X, "edge_index": E, "y": Y}, "Data(**d)", lambda d: Data(**d)),
    "tuple": ((X, E, Y), "Data(x=x, edge_index=edge_index, y=y)", lambda t: Data(x=t[0], edge_index=t[1], y=t[2])),
    "list of graphs": ([some_data(), some_data()], "Batch.from_data_list(graphs)", Batch.from_data_list),
    "path": ("graphs/mine.npz", "ipal.load_dataset(path)", None),
    "Path": (Path("mine.npz"), "ipal.load_dataset(path)", None),
    "Dataset": (
        DATASET,
        "Data(x=d.graph.x, edge_index=d.graph.edges, edge_weight=d.graph.edge_weight, y=d.y)",
        lambda d: Data(x=d.graph.x, edge_index=d.graph.edges, edge_weight=d.graph.edge_weight, y=d.y),
    ),
    "Graph": (DATASET.graph, "Data(x=g.x, edge_index=g.edges, edge_weight=g.edge_weight)", None),
    "tensor": (torch.ones(3, 3), "type Tensor", None),
    "array": (X, "type ndarray", None),
    "None": (None, "type NoneType", None),
    "a number": (3, "type int", None),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_something_else_than_a_data_is_refused_with_the_line_that_converts_it(kind: str, fitted: IPAL) -> None:
    given, line, converted = STRANGERS[kind]
    for use in (task_of, graph_of, fitted.predict, fitted.predict_proba, fitted.embed, NCM().partial_fit):
        with pytest.raises(DataError) as refusal:
            use(given)
        assert line in str(refusal.value)
        assert str(refusal.value).count(". ") == 0, "one sentence"
    if converted is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IgnoredInput)  # to_homogeneous adds edge_type
            assert len(NCM().partial_fit(converted(given)).classes_)


def test_a_batch_is_one_graph_of_several() -> None:
    both = task_of(Batch.from_data_list([some_data(), some_data()]))
    assert both.graph.num_nodes == 2 * N
    assert np.array_equal(both.graph.edges[:, : len(expected()[0])], expected())


def test_predictions_for_some_nodes_take_a_data_too(fitted: IPAL) -> None:
    whole = predict.predict(fitted, some_data())
    assert np.array_equal(whole.probabilities, predict.predict(fitted, graph_of(some_data())).probabilities)
    with pytest.raises(DataError, match="to_homogeneous"):
        predict.predict(fitted, hetero())  # type: ignore[arg-type]
