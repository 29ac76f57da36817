"""Sparse products against SciPy and finite differences, and the operators of a graph."""

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.cuda import _utils

from ipal.backend import cuda_kernels
from ipal.backend.batches import Sampler
from ipal.backend.operators import operators
from ipal.backend.runtime import Runtime
from ipal.backend.sparse import Cut, SparseMatrix, SparsePair, row_starts, sparse_matmul
from ipal.data import csr
from ipal.data.graph import Features, Graph, checked_graph
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.errors import CapacityError

HERE = Runtime.of()

CPU = torch.device("cpu")


def random_matrix(rows: int, columns: int, density: float, dtype: type = np.float32) -> sp.csr_array:
    random = np.random.default_rng(0)
    dense = random.normal(size=(rows, columns)) * (random.random((rows, columns)) < density)
    return sp.csr_array(dense.astype(dtype))


def with_empty_rows() -> sp.csr_array:
    """First, inner neighbouring and last rows empty: where offsets repeat, bags are easily counted wrong."""
    dense = random_matrix(7, 5, 0.6).toarray()
    dense[[0, 3, 4, 6]] = 0
    return sp.csr_array(dense)


def only_nothing() -> sp.csr_array:
    return sp.csr_array((4, 5), dtype=np.float32)


@pytest.mark.parametrize(
    "matrix",
    [
        random_matrix(6, 5, 0.5),
        random_matrix(6, 5, 0.5, np.float64),
        with_empty_rows(),
        only_nothing(),
        only_nothing().astype(np.float64),
    ],
    ids=["float32", "float64", "empty rows", "all empty", "all empty, float64"],
)
def test_a_sparse_product_equals_scipys(matrix: sp.csr_array) -> None:
    dense = np.random.default_rng(1).normal(size=(3, 5)).astype(matrix.dtype).T  # in any layout
    product = SparseMatrix.of(matrix, CPU).matmul(torch.from_numpy(dense))
    assert product.dtype == torch.from_numpy(dense).dtype
    np.testing.assert_allclose(product.numpy(), matrix @ dense, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 7])
def test_long_rows_may_be_cut_into_parts(rows: int, monkeypatch) -> None:
    # The form that a GPU uses; on a CPU it is only checked here.
    monkeypatch.setattr(Cut, "LENGTH", 3)
    parts = [random_matrix(rows, 50, density) for density in (0.04, 0.0, 0.9)]
    matrix = sp.csr_array(sp.vstack(parts, format="csr"))
    cut = Cut.of(matrix.indptr, CPU)
    assert np.diff(cut.parts).max() == 3
    dense = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    product = replace(SparseMatrix.of(matrix, CPU), cut=cut).matmul(dense)
    np.testing.assert_allclose(product.numpy(), matrix @ dense.numpy(), rtol=1e-5, atol=1e-5)
    assert Cut.of(with_empty_rows().indptr, CPU) is None, "short rows are not cut"


# ---------------------------------------------------------------------- more entries than 32 bits count

WIDE = np.array([0, 2**31 - 10, 2**31 + 5])
"""Row starts of a matrix that is not there: as 32-bit numbers the last would be negative."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: SparseMatrix.of(SimpleNamespace(indptr=WIDE, indices=WIDE, data=WIDE, shape=(2, 9)), CPU),
        lambda: Cut.of(WIDE, CPU),
        lambda: row_starts(torch.from_numpy(WIDE[1:]), int(WIDE[-1])),
    ],
    ids=["matrix", "cut", "row starts"],
)
def test_more_entries_than_can_be_counted_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(CapacityError, match=r"2147483653 entries.*mini-batches"):
        make()


def test_row_starts_and_indices_are_of_one_kind_whatever_scipy_holds() -> None:
    matrix = random_matrix(6, 5, 0.5)
    wide = sp.csr_array((matrix.data, matrix.indices.astype(np.int64), matrix.indptr.astype(np.int64)), shape=(6, 5))
    ready = SparseMatrix.of(wide, CPU)
    assert (ready.indptr.dtype, ready.indices.dtype) == (torch.int32, torch.int32)
    starts = row_starts(torch.tensor([2, 2, 5]), 5)
    assert (starts.dtype, starts.tolist()) == (torch.int32, [0, 2, 2, 5])


def test_a_sample_of_too_many_neighbours_is_refused(tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tiny_stream.task(0).graph
    sampler = Sampler.of(graph, CPU)
    nodes, generator = torch.arange(graph.num_nodes), torch.Generator().manual_seed(0)
    assert sampler.rows(nodes, "all", generator).indptr.dtype == torch.int32
    monkeypatch.setattr(csr, "MOST_ENTRIES", graph.num_edges)
    with pytest.raises(CapacityError, match="smaller"):
        sampler.rows(nodes, "all", generator)


# ---------------------------------------------------------------------- on a GPU


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Stands in for torch's compiler and a GPU; which sources were compiled."""
    compiled: list[str] = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(_utils, "_nvrtc_compile", lambda source, name: (compiled.append(source) or b"code", name))
    loaded = SimpleNamespace(func=b"code")
    monkeypatch.setattr(_utils, "_cuda_load_module", lambda code, names: dict.fromkeys(names, loaded))
    monkeypatch.setattr(_utils, "_get_gpu_runtime_library", lambda: "driver")
    return compiled


def test_machine_code_is_kept_and_made_anew_where_it_is_damaged(compiler: list[str], tmp_path: Path) -> None:
    make = partial(cuda_kernels.kernels.__wrapped__, "sums_of_rows.cu", torch.device("cuda", 0))
    found = {"sums_of_rows": cuda_kernels.Kernel("driver", b"code")}
    assert make() == make() == found
    assert len(compiler) == 1
    assert make("#define T float\n") == found
    assert [source.startswith("#define") for source in compiler] == [False, True]
    for kept in (tmp_path / ".cache" / "ipal" / "kernels").iterdir():
        kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    assert make() == found
    assert len(compiler) == 3


@pytest.mark.parametrize("failure", [TypeError("other arguments"), RuntimeError("no compiler"), OSError("no library")])
def test_a_kernel_that_cannot_be_had_is_none(
    failure: Exception, compiler: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise failure

    make = partial(cuda_kernels.kernels.__wrapped__, "fused.cu", torch.device("cuda", 0))
    monkeypatch.setattr(_utils, "_cuda_load_module", fails)
    assert make() is None
    monkeypatch.delattr(_utils, "_cuda_load_module")
    assert make() is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 6, 7, 128])
def test_products_on_a_gpu_are_right_and_the_same_every_time(dtype: type, width: int) -> None:
    parts = [random_matrix(40, 3000, density, dtype) for density in (0.001, 0.0, 0.5)]
    matrix = sp.csr_array(sp.vstack(parts, format="csr"))
    device = torch.device("cuda", 0)
    dense = torch.from_numpy(np.random.default_rng(0).normal(size=(3000, width)).astype(dtype))
    ready = SparseMatrix.of(matrix, device)
    first = ready.matmul(dense.to(device))
    np.testing.assert_allclose(first.cpu().numpy(), matrix @ dense.numpy(), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(ready.matmul(dense.to(device)), first) for _ in range(20))


def pair(kind: str) -> SparsePair:
    if kind == "not square":
        return SparsePair.of(random_matrix(3, 4, 0.6, np.float64), CPU)
    square = random_matrix(4, 4, 0.5, np.float64)
    if kind == "not symmetric":
        return SparsePair.of(square, CPU)
    return SparsePair.of(sp.csr_array(square + square.T), CPU, symmetric=True)


@pytest.mark.parametrize("kind", ["symmetric", "not symmetric", "not square"])
def test_a_sparse_product_has_the_right_first_and_second_derivatives(kind: str) -> None:
    matrix = pair(kind)
    dense = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def product(dense: Tensor) -> Tensor:
        return sparse_matmul(matrix, dense)

    def curved(dense: Tensor) -> Tensor:
        # The product is linear, with second derivatives of zero: squared, they are not, and errors can show.
        return sparse_matmul(matrix, dense.square()).square()

    assert gradcheck(product, dense)
    assert gradgradcheck(product, dense)
    assert gradcheck(curved, dense)
    assert gradgradcheck(curved, dense)


# ------------------------------------------------------------------ operators


def ring(x: Features, *, undirected: bool = True) -> Graph:
    n = x.shape[0]
    ends = np.stack([np.arange(n), (np.arange(n) + 1) % n])
    return checked_graph(x, ends, undirected=undirected)


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize(
    "x",
    [random_matrix(20, 30, 1.0).toarray(), random_matrix(20, 400, 0.005), random_matrix(20, 30, 0.5)],
    ids=["dense", "very sparse", "nearly dense"],
)
def test_the_first_layer_is_the_same_in_every_form(x: Features, undirected: bool) -> None:
    graph = ring(x, undirected=undirected)
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(graph.num_features, 4, generator=generator), torch.randn(4, generator=generator)
    made = operators(graph, HERE)
    if x.shape[1] == 400:
        assert isinstance(made.features.x, SparsePair)
        assert len(made.features.x.matrix.values) == x.nnz, "propagated beforehand they would be filled up"
    else:
        assert list(made.features.aggregated) == ["symmetric"], "dense features are propagated once"
    plain = x.toarray() if isinstance(x, sp.csr_array) else x
    expected = graph.normalised.toarray() @ plain @ weight.numpy() + bias.numpy()
    np.testing.assert_allclose(made.first.aggregated(weight).add_(bias).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_only_an_undirected_graph_is_its_own_transpose() -> None:
    x = np.ones((5, 1), dtype=np.float32)
    needs = ("symmetric", "sum", "mean")
    undirected, directed = (operators(ring(x, undirected=way), HERE, needs).blocks[0] for way in (True, False))
    assert all(undirected.aggregation[n].transpose is undirected.aggregation[n].matrix for n in ("symmetric", "sum"))
    assert undirected.aggregation["mean"].transpose is not undirected.aggregation["mean"].matrix
    assert all(pair.transpose is not pair.matrix for pair in directed.aggregation.values())


def test_operators_are_made_once_and_shared_between_a_task_and_its_graph(tiny_stream: TaskStream) -> None:
    task = tiny_stream.task(0)
    made = operators(task, HERE)
    assert operators(task, HERE) is made
    assert made.features is operators(task.graph, HERE).features
    assert made.blocks[0] is operators(task.graph, HERE).blocks[0]


def test_operators_are_let_go_with_their_graph_and_task() -> None:
    # A stream makes a graph per task: kept for good, they would fill the memory.
    graph = ring(np.ones((5, 1), dtype=np.float32))
    task = Task(graph, np.array([0, 2]), np.array([0, 1]))
    alive = weakref.ref(operators(graph, HERE)), weakref.ref(operators(task, HERE))
    assert all(reference() is not None for reference in alive)
    del graph, task
    gc.collect()
    assert all(reference() is None for reference in alive)
