"""What is passed in place of a `Data`, or in it: read for what it means, or refused with the line that converts it."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.utils import (
    dense_to_sparse,
    from_networkx,
    from_scipy_sparse_matrix,
    index_to_mask,
    to_edge_index,
)

import ipal
from ipal import IPAL, NCM, Analytic, DataError, TrainConfig
from ipal.deploy import predict
from ipal.errors import IgnoredInput
from ipal.learners.from_pyg import graph_of, task_of
from tests.bad_input.support import E, X, Y, one, some_data
from tests.conftest import PROJECT

N = len(X)
DATASET = ipal.load_dataset("synthetic:nodes=60,classes=3,features=4")


def expected() -> np.ndarray:
    return graph_of(some_data()).edges


# ---------------------------------------------------------------------- adj_t


def adjacency(layout: str = "sparse_coo", value: float = 1.0) -> torch.Tensor:
    """Row: target, column: source, as PyTorch Geometric's ToSparseTensor makes it."""
    dense = torch.zeros(N, N)
    dense[E[1], E[0]] = value
    return dense if layout == "strided" else dense.to_sparse(layout=getattr(torch, layout))


class SparseTensor:
    """As much of torch_sparse's as is asked for."""

    def __init__(self, matrix: torch.Tensor, has_value: bool) -> None:
        self.matrix, self.has_value = matrix.to_sparse_coo().coalesce(), has_value

    def sparse_sizes(self) -> tuple[int, ...]:
        return tuple(self.matrix.shape)

    def coo(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        row, column = self.matrix.indices()
        return row, column, self.matrix.values() if self.has_value else None

    def csr(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        rows = self.matrix.to_sparse_csr()
        return rows.crow_indices(), rows.col_indices(), rows.values() if self.has_value else None


FORMS: dict[str, Callable[[], Any]] = {
    **{
        layout: lambda layout=layout: adjacency(layout)
        for layout in ("sparse_coo", "sparse_csr", "sparse_csc", "strided")
    },
    "scipy csr": lambda: sp.csr_array(adjacency("strided").numpy()),
    "scipy coo matrix": lambda: sp.coo_matrix(adjacency("strided").numpy()),
    "bool": lambda: adjacency("strided").bool().to_sparse(),
    "SparseTensor": lambda: SparseTensor(adjacency(), has_value=False),
    "SparseTensor of ones": lambda: SparseTensor(adjacency(), has_value=True),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_transposed_adjacency_is_read_as_edges(form: str) -> None:
    found = graph_of(Data(x=torch.from_numpy(X), adj_t=FORMS[form]()))
    assert np.array_equal(found.edges, expected())
    assert len(found.edges[0])


@pytest.mark.parametrize("method", [IPAL, NCM, Analytic], ids=lambda method: method.name)
def test_learning_from_adj_t_is_learning_from_edge_index(method: Any) -> None:
    options = {"train": TrainConfig(epochs=2)} if method is IPAL else {"expansion": 16} if method is Analytic else {}
    data = some_data()
    other = Data(x=data.x, y=data.y, adj_t=adjacency("sparse_csr"))
    a, b = (method(**options).partial_fit(each) for each in (data, other))
    assert np.array_equal(a.predict_proba(data), b.predict_proba(data))
    assert np.array_equal(a.predict_proba(data), a.predict_proba(other))
    assert not np.array_equal(a.predict_proba(data), a.predict_proba(Data(x=data.x)))


def test_edge_index_and_adj_t_must_agree() -> None:
    assert np.array_equal(graph_of(some_data(adj_t=adjacency("sparse_csr"))).edges, expected())
    for other in (adjacency("strided").T.contiguous().to_sparse(), torch.zeros(N, N).to_sparse()):
        with pytest.raises(DataError, match=r"different edges.*del data\.adj_t"):
            graph_of(some_data(adj_t=other))


@pytest.mark.parametrize(
    ("adj_t", "words"),
    [
        (torch.eye(3).to_sparse(), rf"\(3, 3\), but there are {N} nodes"),
        (torch.zeros(N, N + 1).to_sparse(), "shape"),
        (torch.zeros(N).to_sparse(), "shape"),
        ([[0, 1]], "type list: make it a sparse tensor"),
        ("adjacency", "type str"),
        (torch.zeros(N, N, device="meta"), "meta"),
    ],
)
def test_what_is_no_transposed_adjacency_is_refused(adj_t: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        graph_of(Data(x=torch.from_numpy(X), adj_t=adj_t))


# ---------------------------------------------------------------------- what is not used


NOT_USED: dict[str, dict[str, Any]] = {
    "data.edge_weight": {"edge_weight": torch.rand(E.shape[1])},
    "data.edge_attr": {"edge_attr": torch.rand(E.shape[1], 2)},
    "data.edge_type": {"edge_type": torch.arange(E.shape[1]) % 2},
    "the values of data.adj_t": {"edge_index": None, "adj_t": adjacency(value=0.5)},
}


@pytest.mark.parametrize("name", NOT_USED)
def test_what_is_said_about_edges_and_not_used_is_warned_about(name: str) -> None:
    data = some_data(**NOT_USED[name])
    with pytest.warns(IgnoredInput) as found:
        learner = NCM().partial_fit(data)
    assert [str(warning.message) for warning in found] == [
        f"Not used: {name}; every edge counts the same, whatever its weight, attributes or type."
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IgnoredInput)
        assert np.array_equal(learner.predict_proba(data), learner.predict_proba(some_data()))


def test_a_process_warns_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "weighted.npz", edge_index=E, x=X, y=Y, edge_weight=np.ones(E.shape[1]), edge_attr=np.ones(3))
    code = (
        "import ipal\n"
        "from tests.bad_input.test_conversion import NOT_USED, some_data\n"
        "for turn in range(3):\n"
        "    ipal.load_dataset('weighted.npz')\n"
        "    for parts in NOT_USED.values():\n"
        "        ipal.NCM().partial_fit(some_data(**parts)).predict(some_data(**parts))\n"
    )
    where = {"PYTHONPATH": os.pathsep.join([str(PROJECT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **where}
    )
    assert done.returncode == 0, done.stderr
    lines = [line.partition("Not used: ")[2] for line in done.stderr.splitlines() if "Not used: " in line]
    in_file = [f"the array {name} of {tmp_path / 'weighted.npz'}" for name in ("edge_weight", "edge_attr")]
    assert [line.partition(";")[0] for line in lines] == [*in_file, *NOT_USED]


def test_weights_that_are_all_one_say_nothing_and_nothing_is_said() -> None:
    graph_of(some_data(edge_weight=torch.ones(E.shape[1])))
    graph_of(some_data(edge_weight=None, edge_attr=None))


def test_weights_in_a_file_are_warned_about(tmp_path: Path) -> None:
    path = tmp_path / "weighted.npz"
    np.savez(path, edge_index=E, x=X, y=Y, edge_weight=np.ones(E.shape[1]), edge_attr=np.ones(3))
    with pytest.warns(IgnoredInput) as found:
        ipal.load_dataset(str(path))
    assert [str(warning.message).partition(";")[0] for warning in found] == [
        f"Not used: the array {name} of {path}" for name in ("edge_weight", "edge_attr")
    ]


def test_the_command_warns_in_one_line(tmp_path: Path) -> None:
    np.savez(tmp_path / "weighted.npz", edge_index=E, x=X, y=Y, edge_weight=np.ones(E.shape[1]))
    done = subprocess.run(
        [sys.executable, "-m", "ipal", "data", "weighted.npz"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr.startswith("Warning: Not used: the array edge_weight of")
    assert done.stderr.count("\n") == 1


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
        "Data(x=d.graph.x, edge_index=d.graph.edges, y=d.y)",
        lambda d: Data(x=d.graph.x, edge_index=d.graph.edges, y=d.y),
    ),
    "Graph": (DATASET.graph, "Data(x=g.x, edge_index=g.edges)", None),
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


# ---------------------------------------------------------------------- edges


A = adjacency("strided").T.contiguous()
EDGES: dict[str, tuple[Any, str, Callable[[Any], Any] | None]] = {
    "sparse tensor": (A.to_sparse(), "to_edge_index(A)[0]", lambda a: to_edge_index(a)[0]),
    "csr tensor": (A.to_sparse_csr(), "to_edge_index(A)[0]", lambda a: to_edge_index(a)[0]),
    "SciPy's": (sp.csr_array(A.numpy()), "from_scipy_sparse_matrix(A)[0]", lambda a: from_scipy_sparse_matrix(a)[0]),
    "SparseTensor": (SparseTensor(A, has_value=False), "to_edge_index(A)[0]", None),
    "turned": (torch.from_numpy(E.T.copy()), "edge_index.T", lambda e: e.T),
    "adjacency": (A, "np.stack(A.nonzero())", lambda a: np.stack(a.numpy().nonzero())),
    "floats": (torch.from_numpy(E).double(), "edge_index.long()", lambda e: e.long()),
    "bfloat16": (torch.from_numpy(E).bfloat16(), "edge_index.long()", lambda e: e.long()),
    "floats of NumPy": (E.astype(float), ".astype(int)", lambda e: e.astype(int)),
    "bools": (torch.from_numpy(E > 3), "whole numbers", None),
    "beyond 32 bits": (torch.from_numpy(one(E, (0, 0), 2**33)), f"points to node {2**33}", None),
    "beyond 64 bits": (one(E.astype(np.uint64), (0, 0), 2**64 - 1), f"points to node {2**64 - 1}", None),
    "meta": (torch.zeros(2, 3, dtype=torch.long, device="meta"), "meta device", None),
}


@pytest.mark.parametrize("kind", EDGES)
def test_edges_in_another_form_are_refused_with_the_line_that_converts_them(kind: str) -> None:
    edges, line, converted = EDGES[kind]
    data = some_data()
    data.edge_index = edges
    with pytest.raises(DataError) as refusal:
        graph_of(data)
    assert line in str(refusal.value)
    if converted is not None:
        data.edge_index = converted(edges)
        assert np.array_equal(graph_of(data).edges, expected())


def test_a_dense_adjacency_is_not_taken_for_no_edges() -> None:
    data = Data(x=torch.from_numpy(X), adj=A)
    with pytest.raises(DataError, match=r"dense_to_sparse\(data.adj\)"):
        graph_of(data)
    data.edge_index = dense_to_sparse(data.adj)[0]
    assert np.array_equal(graph_of(data).edges, expected())


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.uint64, np.int64])
def test_edges_of_any_whole_numbers_are_read(kind: type) -> None:
    data = some_data()
    data.edge_index = E.astype(kind)
    assert np.array_equal(graph_of(data).edges, expected())


# ---------------------------------------------------------------------- features


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool, torch.uint8])
@pytest.mark.parametrize("sparse", [False, True])
def test_features_of_any_numbers_become_float32_exactly(kind: torch.dtype, sparse: bool) -> None:
    x = torch.from_numpy(X).float().to(kind)
    found = graph_of(some_data(x=x.to_sparse() if sparse else x)).x
    assert found.dtype == np.float32
    assert np.array_equal(found.toarray() if sparse else found, x.float().numpy())


def test_features_with_a_gradient_or_from_other_libraries_are_read() -> None:
    plain = graph_of(some_data()).x
    data = some_data()
    for x in (data.x.clone().requires_grad_(), X, X.tolist(), np.asfortranarray(X), sp.csc_array(X), Table(X)):
        data.x = x
        found = graph_of(data).x
        assert np.array_equal(found.toarray() if sp.issparse(found) else found, plain)
    data.x = SparseTensor(torch.from_numpy(X).float(), has_value=True)
    assert np.array_equal(graph_of(data).x.toarray(), plain)
    # Without values, every entry is a one.
    there = X > 0
    data.x = SparseTensor(torch.from_numpy(3.0 * there), has_value=False)
    assert np.array_equal(graph_of(data).x.toarray(), there.astype(np.float32))


class Table:
    """As a pandas DataFrame: no array, but it can give one."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.values


FEATURES: dict[str, tuple[Any, str, Callable[[Any], Any] | None]] = {
    "complex": (
        torch.from_numpy(X + 1j),
        "torch.view_as_real(data.x).flatten(1)",
        lambda x: torch.view_as_real(x).flatten(1),
    ),
    "complex, sparse": (torch.from_numpy(X + 1j).to_sparse(), "complex128", None),
    "objects": (X.astype(object), "x.astype('float32')", lambda x: torch.tensor(x.astype("float32"))),
    "words": (X.astype(str), "encode them", None),
    "dates": (np.full((N, 1), "2020-01-01", dtype="M8[D]"), "table of numbers", None),
    "one column": (torch.ones(N), "x.reshape(-1, 1)", lambda x: x.reshape(-1, 1)),
    "one column, sparse": (torch.ones(N).to_sparse(), "1 dimension", None),
    "three dimensions": (torch.ones(N, 2, 2), "3 dimension", None),
    "ragged": ([[1.0], [1.0, 2.0]], "the same length", None),
    "meta": (torch.zeros(N, 2, device="meta"), "meta device", None),
}


@pytest.mark.parametrize("kind", FEATURES)
def test_features_in_another_form_are_refused_with_the_line_that_converts_them(kind: str) -> None:
    x, line, converted = FEATURES[kind]
    data = some_data()
    data.x = x
    with pytest.raises(DataError) as refusal:
        graph_of(data)
    assert line in str(refusal.value)
    if converted is not None:
        data.x = converted(x)
        assert graph_of(data).num_nodes == N


# ---------------------------------------------------------------------- labels


LABELS: dict[str, tuple[Any, str, Callable[[Data], None] | None]] = {
    "one-hot": (torch.eye(4)[Y], "data.y.argmax(dim=1)", lambda d: setattr(d, "y", d.y.argmax(dim=1))),
    "too many": (np.r_[Y, Y], "80 labels for 40 nodes", None),
    "NaN": (
        torch.from_numpy(one(Y.astype(float), 3, np.nan)),
        "~data.y.isnan()",
        lambda d: setattr(d, "train_mask", ~d.y.isnan()),
    ),
    "None": (
        ["a", "b", None, "c"] * 10,
        "torch.tensor([label is not None for label in data.y])",
        lambda d: setattr(d, "train_mask", torch.tensor([label is not None for label in d.y])),
    ),
    "words and numbers": (
        ["a", 1] * 20,
        "[str(label) for label in data.y]",
        lambda d: setattr(d, "y", [str(label) for label in d.y]),
    ),
    "-1": (
        torch.from_numpy(Y - 1),
        "data.train_mask = data.y >= 0",
        lambda d: setattr(d, "train_mask", d.y >= 0),
    ),
    "-100": (
        one(Y, 0, -100).astype(float),
        "-100, which usually means unlabelled",
        lambda d: setattr(d, "train_mask", torch.ones(d.num_nodes, dtype=torch.bool)),
    ),
    "beyond 64 bits": (Y.astype(np.uint64) + np.uint64(2**63), "too large", None),
    "huge": (Y * 1e300, "too large", None),
    "complex": (Y.astype(complex), "whole numbers or strings", None),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_in_another_form_are_refused_with_the_line_that_converts_them(kind: str) -> None:
    y, line, convert = LABELS[kind]
    data, learner = some_data(), NCM()
    data.y = y
    with pytest.raises(DataError) as refusal:
        learner.partial_fit(data)
    assert line in str(refusal.value)
    assert not learner.is_fitted
    if convert is not None:
        convert(data)
        assert len(learner.partial_fit(data).classes_)


def test_a_mask_makes_a_class_of_any_number() -> None:
    data = some_data(y=2 * (Y > 1).astype(int) - 1)
    with pytest.raises(DataError, match="A label is -1"):
        NCM().partial_fit(data)
    data.train_mask = torch.ones(N, dtype=torch.bool)
    assert NCM().partial_fit(data).classes_.tolist() == [-1, 1]


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (Y > 1, [0, 1]),
        (Y[:, None], [0, 1, 2, 3]),
        (Y.astype(np.float16), [0, 1, 2, 3]),
        (torch.from_numpy(Y).bfloat16(), [0, 1, 2, 3]),
        (Y.tolist(), [0, 1, 2, 3]),
        (Y.astype(np.uint8), [0, 1, 2, 3]),
        (np.array(["a", "b"] * 20, dtype=object), ["a", "b"]),
    ],
)
def test_labels_that_mean_what_they_say_are_read(y: Any, classes: list[Any]) -> None:
    data = some_data()
    data.y = y
    assert NCM().partial_fit(data).classes_.tolist() == classes


def test_a_file_with_label_minus_one_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "unlabelled.npz", edge_index=E, x=X, y=Y - 1)
    with pytest.raises(DataError, match="A label is -1, which usually means unlabelled: leave such nodes out"):
        ipal.load_dataset(str(tmp_path / "unlabelled.npz"))


MASKS: dict[str, tuple[Any, str, Callable[[Any], Any] | None]] = {
    "columns": (torch.ones(N, 10, dtype=torch.bool), "data.train_mask[:, 0]", lambda mask: mask[:, 0]),
    "bytes": (torch.ones(N, dtype=torch.uint8), "data.train_mask.bool()", lambda mask: mask.bool()),
    "numbers": (torch.arange(12), "index_to_mask(numbers, size=40)", lambda mask: index_to_mask(mask, size=N)),
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks_in_another_form_are_refused_with_the_line_that_converts_them(kind: str) -> None:
    mask, line, converted = MASKS[kind]
    with pytest.raises(DataError) as refusal:
        task_of(some_data(train_mask=mask))
    assert line in str(refusal.value)
    assert converted is not None
    assert len(task_of(some_data(train_mask=converted(mask))).nodes)
