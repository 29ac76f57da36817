"""Odd values in every part of a graph and every argument: each is read for what it means, or refused in a sentence."""

import pickle
import warnings
from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import ipal
from ipal import IpalError
from tests.bad_input.support import E, N, X, Y

XT, YT, ET = torch.from_numpy(X).float(), torch.from_numpy(Y), torch.from_numpy(E)
VALUES: dict[str, Callable[[], Any]] = {
    "a gradient": lambda: XT.clone().requires_grad_(),
    "meta": lambda: XT.to("meta"),
    "quantised": lambda: torch.quantize_per_tensor(XT, 0.1, 0, torch.quint8),
    "conjugate": lambda: YT.to(torch.complex64).conj(),
    "no elements": lambda: ET[:0],
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "not coalesced": lambda: torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.ones(2), (N, N)),
    "BSR": lambda: torch.eye(N).to_sparse_bsr((2, 2)),
    "sparse, one dimension": lambda: torch.eye(N)[0].to_sparse(),
    "sparse, of rows": lambda: torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2, N), (N, N)),
    "SciPy matrix of words": lambda: np.full((N, N), "a"),
    "ragged": lambda: [[1.0], [1.0, 2.0]],
    "a word": lambda: "abc",
    "an object": SimpleNamespace,
    "list of ragged tensors": lambda: [torch.ones(1 + n % 2) for n in range(N)],
    "huge numbers": lambda: [10**30] * N,
    "decimals": lambda: [Decimal("1.5")] * N,
    "NaN": lambda: float("nan"),
    "times": lambda: np.full(N, np.datetime64("2020-01-01")),
}
PARTS = ["x", "edge_index", "edge_weight", "y", "train_mask", "adj_t", "ids", "time"]


def sound() -> dict[str, Any]:
    return {"x": XT, "edge_index": ET, "y": YT}


def tables() -> tuple[dict[str, Any], dict[str, Any]]:
    return {"id": list(range(N)), "label": Y.tolist(), "a": X[:, 0]}, {"source": E[0], "target": E[1]}


def drawn(part: str, value: Any) -> nx.Graph:
    graph = nx.path_graph(N)
    for node in graph:
        graph.nodes[node].update(x=X[node].tolist(), y=int(Y[node]))
    graph.nodes[3][part] = value
    return graph


def as_data(part: str, value: Any) -> object:
    data = Data(**sound())
    data[part] = value
    return ipal.NCM().partial_fit(data).predict(data)


USES: dict[str, Callable[[str, Any], object]] = {
    "Data": as_data,
    "dict": lambda part, value: ipal.graph_from(sound() | {part: value}),
    "networkx": lambda part, value: ipal.graph_from(drawn(part, value)),
    "column": lambda part, value: ipal.graph_from(tables()[0] | {part: value}, tables()[1]),
}
WHOLE: dict[str, Callable[[Any], object]] = {
    "graph": ipal.graph_from,
    "pair": lambda value: ipal.graph_from(value, value),
    "ids of nodes": lambda value: ipal.graph_from(tables()[0] | {"id": value}, tables()[1]),
    "ends of edges": lambda value: ipal.graph_from(tables()[0], tables()[1] | {"source": value}),
    "weights of edges": lambda value: ipal.graph_from(tables()[0], tables()[1] | {"weight": value}),
}
TRIED = {
    **{f"{name}, {part}": lambda value, use=use, part=part: use(part, value) for name, use in USES.items()
       for part in PARTS},
    **WHOLE,
}  # fmt: skip


def tried(what: str, use: Callable[[], object]) -> None:
    """It works, or says in a sentence why not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, about kinds of tensors; of ipal, about what is not used
        try:
            use()
        except IpalError as error:
            said = str(error)
            assert said[-1] in ".…?", said
            assert len(said.splitlines()) == 1, said
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("name", VALUES)
def test_odd_values_are_read_or_refused(name: str) -> None:
    for place, use in TRIED.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = VALUES[name]()
        tried(f"{place} = {name}", lambda use=use, value=value: use(value))


# ---------------------------------------------------------------------- arguments

ARGUMENTS: list[Any] = [
    None, True, float("nan"), float("inf"), 10**30, 0.5, "abc", [0, 1], [[0], [1, 2]], {"a": 1}, np.int64(0),
    torch.arange(3), torch.tensor(0.5, requires_grad=True), SimpleNamespace(), 1j,
]  # fmt: skip
CALLS: dict[str, Callable[[Any, Any, Any], object]] = {
    "fit": lambda model, data, value: model.fit(data, value),
    "predict": lambda model, data, value: model.predict(value),
    "predict reject": lambda model, data, value: model.predict(data, reject=value),
    "score": lambda model, data, value: model.score(data, value),
    "predict_sets": lambda model, data, value: ipal.predict_sets(model, data, value),
    "discover": lambda model, data, value: ipal.discover(model, data, value),
    "discover classes": lambda model, data, value: ipal.discover(model, data, 0.5, value),
    "explain": lambda model, data, value: ipal.explain(model, data, value),
    "rename_class": lambda model, data, value: ipal.rename_class(model, value, 9),
    "merge_classes": lambda model, data, value: ipal.merge_classes(model, value, 0),
    "forget_class": lambda model, data, value: ipal.forget_class(model, value, data),
    "forget_nodes": lambda model, data, value: ipal.forget_nodes(model, value),
    "merge_models": lambda model, data, value: ipal.merge_models(model, value),
    "discover of": lambda model, data, value: ipal.discover(value, data),
    "forget_rows of": lambda model, data, value: ipal.forget_rows(value, data),
    "graph_from directed": lambda model, data, value: ipal.graph_from(data, directed=value),
    "graph_from features": lambda model, data, value: ipal.graph_from(*tables(), features=value),
    "nodes": lambda model, data, value: ipal.graph_from(sound()).nodes(value),
}


@pytest.mark.parametrize("call", CALLS)
def test_odd_arguments_are_taken_or_refused(call: str) -> None:
    data = Data(**sound())
    fitted = pickle.dumps(ipal.Analytic(width=16).partial_fit(data))
    for value in ARGUMENTS:
        tried(f"{call}: {value}", lambda value=value: CALLS[call](pickle.loads(fitted), data, value))
