"""What is passed in place of a `Data`: read for what it means, or refused with the line that converts it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data, HeteroData

import ipal
from ipal import IPAL, NCM, DataError
from ipal.deploy import predict
from ipal.estimator.convert.pyg import graph_of, task_of
from tests.bad_input.support import E, N, X, Y

DATASET = ipal.load_dataset("synthetic:nodes=60,classes=3,features=4")


# ---------------------------------------------------------------------- other things than a Data


def drawn() -> nx.Graph:
    graph = nx.path_graph(N)
    for node in graph:
        graph.nodes[node].update(x=X[node].tolist(), y=int(Y[node]))
    return graph


STRANGERS: dict[str, tuple[Any, Callable[[Any], Data] | None]] = {
    "Graph": (drawn(), ipal.graph_from),
    "dict": ({"x": X, "edge_index": E, "y": Y}, ipal.graph_from),
    "coo_array": (
        sp.coo_array((np.ones(E.shape[1]), E), shape=(N, N)),
        lambda A: ipal.graph_from({"x": X, "edge_index": A.coords, "edge_weight": A.data, "y": Y}),
    ),
    "Dataset": (DATASET, ipal.graph_from),
    "NoneType": (None, None),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_something_else_than_a_data_is_refused_with_the_line_that_converts_it(kind: str, fitted: IPAL) -> None:
    given, converted = STRANGERS[kind]
    for use in (task_of, graph_of, fitted.predict, fitted.predict_proba, fitted.embed, NCM().partial_fit):
        with pytest.raises(DataError) as refusal:
            use(given)
        assert f"A {kind} is not read as it is: pass data = ipal.graph_from(…)" in str(refusal.value)
        assert str(refusal.value).count(". ") == 0, "one sentence"
    if converted is not None:
        assert len(NCM().partial_fit(converted(given)).classes_)


def test_a_hetero_data_is_refused_with_the_line_that_converts_it(fitted: IPAL) -> None:
    data = HeteroData({"paper": {"x": torch.from_numpy(X).float(), "y": torch.from_numpy(Y)}})
    data["paper", "cites", "paper"].edge_index = torch.from_numpy(E)
    for use in (graph_of, fitted.partial_fit, partial(predict.predict, fitted.model_), ipal.graph_from):
        with pytest.raises(DataError, match=r"HeteroData.* its to_homogeneous\(\)"):
            use(data)
