"""Edges in any form: read, refused with the line that converts them, or warned about."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from torch_geometric.utils import dense_to_sparse, from_scipy_sparse_matrix, to_edge_index

from ipal import NCM, DataError
from ipal.errors import IgnoredInput
from ipal.estimator.convert.pyg import graph_of
from tests.bad_input.support import E, N, X, converted, expected, one, some_data

# ---------------------------------------------------------------------- weights

WEIGHTS = np.random.default_rng(2).uniform(0.1, 3, E.shape[1]).astype(np.float32)
SUMS, TIMES = (sp.coo_array((v, (E[1], E[0])), shape=(N, N)).toarray() for v in (WEIGHTS, np.ones_like(WEIGHTS)))
MATRIX = SUMS / np.maximum(TIMES, 1) * (1 - np.eye(N, dtype=np.float32))

WEIGHTED: dict[str, Callable[[], dict[str, Any]]] = {
    "edge_weight": lambda: {"edge_weight": torch.from_numpy(WEIGHTS)},
    "a column": lambda: {"edge_weight": torch.from_numpy(WEIGHTS)[:, None]},
}


@pytest.mark.parametrize("form", WEIGHTED)
def test_weights_of_edges_are_read(form: str) -> None:
    data = some_data(**WEIGHTED[form]())
    found = graph_of(data)
    assert np.array_equal(found.edges, expected())
    np.testing.assert_allclose(found.aggregation("sum").toarray(), MATRIX, rtol=1e-6)


def test_negative_weights_are_refused_in_one_sentence() -> None:
    for use in (NCM().partial_fit, graph_of):
        with pytest.raises(DataError, match="finite and positive") as refusal:
            use(some_data(edge_weight=-torch.from_numpy(WEIGHTS)))
        assert "\n" not in str(refusal.value)


# ---------------------------------------------------------------------- what is not used


NOT_USED: dict[str, dict[str, Any]] = {
    "data.edge_attr": {"edge_attr": torch.rand(E.shape[1], 2)},
    "data.edge_type": {"edge_type": torch.arange(E.shape[1]) % 2},
}


@pytest.mark.parametrize("name", NOT_USED)
def test_what_is_said_about_edges_and_not_used_is_warned_about(name: str) -> None:
    data = some_data(**NOT_USED[name])
    with pytest.warns(IgnoredInput) as found:
        learner = NCM().partial_fit(data)
    assert [str(warning.message) for warning in found] == [f"Not used: {name}; an edge counts by edge_weight alone."]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IgnoredInput)
        assert np.array_equal(learner.predict_proba(data), learner.predict_proba(some_data()))


def test_a_process_warns_once() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for _ in range(3):
            for parts in NOT_USED.values():
                NCM().partial_fit(some_data(**parts)).predict(some_data(**parts))
    found = [str(one.message) for one in said if issubclass(one.category, IgnoredInput)]
    assert [line.removeprefix("Not used: ").partition(";")[0] for line in found] == [*NOT_USED]


# ---------------------------------------------------------------------- edges


A = torch.zeros(N, N)
A[E[0], E[1]] = 1.0
EDGES: dict[str, tuple[Any, str, Callable[[Any], Any] | None]] = {
    "sparse tensor": (A.to_sparse(), "to_edge_index(A)[0]", lambda a: to_edge_index(a)[0]),
    "SciPy's": (sp.csr_array(A.numpy()), "from_scipy_sparse_matrix(A)[0]", lambda a: from_scipy_sparse_matrix(a)[0]),
    "turned": (torch.from_numpy(E.T.copy()), "edge_index.T", lambda e: e.T),
    "adjacency": (A, "np.stack(A.nonzero())", lambda a: np.stack(a.numpy().nonzero())),
    "floats": (torch.from_numpy(E).double(), "edge_index.long()", lambda e: e.long()),
    "bools": (torch.from_numpy(E > 3), "whole numbers", None),
    "beyond 64 bits": (one(E.astype(np.uint64), (0, 0), 2**64 - 1), f"points to node {2**64 - 1}", None),
    "meta": (torch.zeros(2, 3, dtype=torch.long, device="meta"), "cannot be made an array", None),
}


@pytest.mark.parametrize("kind", EDGES)
def test_edges_in_another_form_are_refused_with_the_line_that_converts_them(kind: str) -> None:
    graph = converted("edge_index", *EDGES[kind])
    assert (graph is None) == (EDGES[kind][-1] is None)
    assert graph is None or np.array_equal(graph.edges, expected())


@pytest.mark.parametrize("part", ["adj", "adj_t"])
def test_a_dense_adjacency_is_not_taken_for_no_edges(part: str) -> None:
    data = Data(x=torch.from_numpy(X), **{part: A})
    with pytest.raises(DataError, match=r"dense_to_sparse\(A\)"):
        graph_of(data)
    data.edge_index = dense_to_sparse(A)[0]
    assert np.array_equal(graph_of(data).edges, expected())
