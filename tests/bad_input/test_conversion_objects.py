"""What is passed in place of a `Data`: read for what it means, or refused with the line that converts it."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Batch, Data, HeteroData

import ipal
from ipal import IPAL, NCM, DataError
from ipal.deploy import predict
from ipal.errors import IgnoredInput
from ipal.estimator.convert.pyg import graph_of, task_of
from tests.bad_input.conversion_support import N, expected
from tests.bad_input.support import E, X, Y, some_data

DATASET = ipal.load_dataset("synthetic:nodes=60,classes=3,features=4")


# ---------------------------------------------------------------------- other things than a Data


def drawn() -> nx.Graph:
    graph = nx.path_graph(N)
    for node in graph:
        graph.nodes[node].update(x=X[node].tolist(), y=int(Y[node]))
    return graph


STRANGERS: dict[str, tuple[Any, str, Callable[[Any], Data] | None]] = {
    "networkx": (drawn(), "ipal.graph_from(G)", ipal.graph_from),
    "dict": ({"x": X, "edge_index": E, "y": Y}, "ipal.graph_from(d)", ipal.graph_from),
    "SciPy": (
        sp.coo_array((np.ones(E.shape[1]), E), shape=(N, N)),
        "ipal.graph_from(A, x=features, y=labels)",
        lambda A: ipal.graph_from(A, x=X, y=Y),
    ),
    "tuple": ((X, E, Y), "Data(x=x, edge_index=edge_index, y=y)", lambda t: Data(x=t[0], edge_index=t[1], y=t[2])),
    "list of graphs": ([some_data(), some_data()], "Batch.from_data_list(graphs)", Batch.from_data_list),
    "path": ("graphs/mine.npz", "ipal.graph_from(path)", None),
    "Path": (Path("mine.npz"), "ipal.graph_from(path)", None),
    "Dataset": (DATASET, "ipal.graph_from(d)", ipal.graph_from),
    "Graph": (DATASET.graph, "ipal.graph_from(g)", None),
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
        assert len(NCM().partial_fit(converted(given)).classes_)


def test_a_batch_is_one_graph_of_several() -> None:
    both = task_of(Batch.from_data_list([some_data(), some_data()]))
    assert both.graph.num_nodes == 2 * N
    assert np.array_equal(both.graph.edges[:, : len(expected()[0])], expected())


def test_predictions_for_some_nodes_take_a_data_too(fitted: IPAL) -> None:
    whole = predict.predict(fitted.model_, some_data())
    assert np.array_equal(whole.probabilities, predict.predict(fitted.model_, graph_of(some_data())).probabilities)


def test_types_that_are_not_known_are_refused_with_the_line_that_makes_one_of_them(fitted: IPAL) -> None:
    data = HeteroData({"paper": {"x": torch.from_numpy(X).float(), "y": torch.from_numpy(Y)}})
    data["paper", "cites", "paper"].edge_index = torch.from_numpy(E)
    for use in (
        task_of,
        graph_of,
        fitted.predict,
        fitted.embed,
        fitted.partial_fit,
        partial(predict.predict, fitted.model_),
    ):
        with pytest.raises(DataError, match=r"data = data.to_homogeneous\(\)"):
            use(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IgnoredInput)  # to_homogeneous adds edge_type
        assert len(fitted.predict(data.to_homogeneous())) == N
