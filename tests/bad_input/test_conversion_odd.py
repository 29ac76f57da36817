"""Odd values in every part of a graph and every argument: each is read for what it means, or refused in a sentence."""

import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

import ipal
from ipal import IpalError
from tests.bad_input.support import E, N, X, Y

XT, YT = torch.from_numpy(X).float(), torch.from_numpy(Y)


def quantised(values: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(values, 0.1, 0, torch.quint8)


def tensors(values: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """The same numbers as tensors of every kind; made when they are needed, as some warn."""
    return {
        "bfloat16": values.bfloat16,
        "double": values.double,
        "bool": values.bool,
        "requires grad": lambda: values.float().clone().requires_grad_(),
        "meta": lambda: values.to("meta"),
        "quantised": lambda: quantised(values.float()),
        "complex": lambda: values.to(torch.complex64),
        "conjugate": lambda: values.to(torch.complex64).conj(),
        "no elements": lambda: values[:0],
        "a number": lambda: values.reshape(-1)[0],
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "three dimensions": lambda: values[None, None],
    }


def sparse_tensors() -> dict[str, Callable[[], Any]]:
    square = torch.eye(N)
    return {
        "COO": square.to_sparse,
        "not coalesced": lambda: torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.ones(2), (N, N)),
        "CSR": square.to_sparse_csr,
        "BSR": lambda: square.to_sparse_bsr((2, 2)),
        "sparse bfloat16": lambda: square.bfloat16().to_sparse(),
        "sparse, one dimension": lambda: square[0].to_sparse(),
        "sparse, of rows": lambda: torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2, N), (N, N)),
    }


def matrices() -> dict[str, Callable[[], Any]]:
    some = sp.coo_array((np.ones(E.shape[1]), E), shape=(N, N))
    return {
        **{f"SciPy {kind}": getattr(some, f"to{kind}") for kind in ("csr", "csc", "bsr", "lil", "dok")},
        "SciPy matrix": lambda: sp.csr_matrix(some),
        "SciPy complex": lambda: some.astype(complex),
        "strings": lambda: np.full((N, N), "a"),
        "matrix of objects": lambda: np.full((N, N), None),
        "dates": lambda: np.full((N, N), np.datetime64("2020-01-01")),
        "masked": lambda: np.ma.masked_equal(np.eye(N), 0),
    }  # fmt: skip


PLAIN: dict[str, Callable[[], Any]] = {
    "ragged": lambda: [[1.0], [1.0, 2.0]],
    "empty list": list,
    "a word": lambda: "abc",
    "a dict": lambda: {"a": 1},
    "a set": lambda: {1, 2},
    "an object": SimpleNamespace,
    "a generator": lambda: (n for n in range(N)),
    "list of tensors": lambda: [torch.ones(2) for _ in range(N)],
    "list of ragged tensors": lambda: [torch.ones(1 + n % 2) for n in range(N)],
    "list of None": lambda: [None] * N,
    "list of mixed": lambda: [n if n % 2 else str(n) for n in range(N)],
    "huge numbers": lambda: [10**30] * N,
    "decimals": lambda: [Decimal("1.5")] * N,
    "complex": lambda: [1j] * N,
    "NaN": lambda: float("nan"),
    "infinite": lambda: [float("inf")] * N,
    "structured": lambda: np.zeros(N, dtype=[("a", int), ("b", float)]),
    "times": lambda: np.full(N, np.datetime64("2020-01-01")),
}
VALUES = {
    **{f"features {name}": make for name, make in tensors(XT).items()},
    **{f"labels {name}": make for name, make in tensors(YT).items()},
    **{f"edges {name}": make for name, make in tensors(torch.from_numpy(E)).items()},
    **sparse_tensors(),
    **matrices(),
    **PLAIN,
}
PARTS = [
    "x",
    "edge_index",
    "edge_weight",
    "y",
    "train_mask",
    "test_mask",
    "forget_mask",
    "adj_t",
    "ids",
    "time",
]


def sound() -> dict[str, Any]:
    return {"x": XT, "edge_index": torch.from_numpy(E), "y": YT}


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
    learner = ipal.NCM().partial_fit(data)
    return learner.predict(data), learner.score(data)


def as_edit(part: str, value: Any) -> object:
    learner = ipal.NCM().partial_fit(Data(**sound()))
    data = Data(**sound(), forget_mask=torch.arange(N) < 2)
    data[part] = value
    return ipal.forget_rows(learner, data)


USES: dict[str, Callable[[str, Any], object]] = {
    "Data": as_data,
    "departure": as_edit,
    "dict": lambda part, value: ipal.graph_from(sound() | {part: value}),
    "dict alone": lambda part, value: ipal.graph_from({"edge_index": value, part: value}),
    "graph": lambda part, value: ipal.graph_from(value),
    "matrix and x": lambda part, value: ipal.graph_from(value, x=XT, y=YT),
    "matrix's x": lambda part, value: ipal.graph_from(sp.eye_array(N), x=value),
    "pair": lambda part, value: ipal.graph_from(value, value),
    "column": lambda part, value: ipal.graph_from(tables()[0] | {part: value}, tables()[1]),
    "ids of nodes": lambda part, value: ipal.graph_from(tables()[0] | {"id": value}, tables()[1]),
    "ends of edges": lambda part, value: ipal.graph_from(tables()[0], tables()[1] | {"source": value}),
    "weights of edges": lambda part, value: ipal.graph_from(tables()[0], tables()[1] | {"weight": value}),
    "networkx": lambda part, value: ipal.graph_from(drawn(part, value)),
    "GraphData": lambda part, value: ipal.NCM().partial_fit(
        replace(ipal.graph_from(sound()), **{part if part in ("x", "y", "edge_index", "edge_weight") else "y": value})
    ),
}


def tried(use: Callable[[], object]) -> None:
    """It works, or says in a sentence why not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, about kinds of tensors; of ipal, about what is not used
        try:
            use()
        except IpalError as error:
            said = str(error)
            assert said[-1] in ".…?", said
            assert len(said.splitlines()) == 1, said


@pytest.mark.parametrize("use", USES)
def test_odd_values_are_read_or_refused(use: str) -> None:
    whole = use in ("graph", "pair", "matrix and x", "matrix's x", "ids of nodes", "ends of edges")
    whole = whole or use == "weights of edges"
    parts = PARTS[:1] if whole else ("forget_mask", "train_mask") if use == "departure" else PARTS
    for name, make in VALUES.items():
        for part in parts:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = make()
            try:
                tried(lambda part=part, value=value: USES[use](part, value))
            except Exception as error:
                raise AssertionError(f"{use}: {part} = {name}: {type(error).__name__}: {error}") from error


# ---------------------------------------------------------------------- arguments

ARGUMENTS: dict[str, Any] = {
    "None": None,
    "True": True,
    "NaN": float("nan"),
    "infinite": float("inf"),
    "huge": 10**30,
    "a fraction": 0.5,
    "a word": "abc",
    "a list": [0, 1],
    "a ragged list": [[0], [1, 2]],
    "a dict": {"a": 1},
    "a number of NumPy": np.int64(0),
    "a tensor": torch.arange(3),
    "a tensor with a gradient": torch.tensor(0.5, requires_grad=True),
    "an object": SimpleNamespace(),
    "complex": 1j,
}
CALLS: dict[str, Callable[[Any, Any, Any], object]] = {
    "fit": lambda model, data, value: model.fit(data, value),
    "partial_fit": lambda model, data, value: model.partial_fit(data, value),
    "fit alone": lambda model, data, value: model.fit(value),
    "predict": lambda model, data, value: model.predict(value),
    "predict reject": lambda model, data, value: model.predict(data, reject=value),
    "score": lambda model, data, value: model.score(data, value),
    "predict_sets": lambda model, data, value: ipal.predict_sets(model, data, value),
    "discover": lambda model, data, value: ipal.discover(model, data, value),
    "discover classes": lambda model, data, value: ipal.discover(model, data, 0.5, value),
    "explain": lambda model, data, value: ipal.explain(model, data, value),
    "explain against": lambda model, data, value: ipal.explain(model, data, 0, against=value),
    "rename_class": lambda model, data, value: ipal.rename_class(model, value, 9),
    "rename_class to": lambda model, data, value: ipal.rename_class(model, 0, value),
    "merge_classes": lambda model, data, value: ipal.merge_classes(model, value, 0),
    "merge_classes into": lambda model, data, value: ipal.merge_classes(model, [0, 1], value),
    "forget_class": lambda model, data, value: ipal.forget_class(model, value, data),
    "forget_rows": lambda model, data, value: ipal.forget_rows(model, value),
    "forget_nodes": lambda model, data, value: ipal.forget_nodes(model, value),
    "merge_models": lambda model, data, value: ipal.merge_models(model, value),
    **{
        f"{name} of": lambda model, data, value, name=name: getattr(ipal, name)(value, data)
        for name in ("score_unknown", "predict_sets", "discover", "forget_rows", "forget_nodes")
    },
    "graph_from directed": lambda model, data, value: ipal.graph_from(data, directed=value),
    "graph_from features": lambda model, data, value: ipal.graph_from(*tables(), features=value),
    "nodes": lambda model, data, value: ipal.graph_from(sound()).nodes(value),
}


@pytest.mark.parametrize("call", CALLS)
def test_odd_arguments_are_taken_or_refused(call: str) -> None:
    data = Data(**sound())
    fitted = ipal.Analytic(width=16).partial_fit(data)
    for name, value in ARGUMENTS.items():
        try:
            tried(lambda value=value: CALLS[call](pickle.loads(pickle.dumps(fitted)), data, value))
        except Exception as error:
            raise AssertionError(f"{call}: {name}: {type(error).__name__}: {error}") from error
