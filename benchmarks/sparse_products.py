"""Why the engine multiplies as it does: the same sparse products by every kernel at hand, and dense ones.

The second part measures the constant by which the engine weighs dense against sparse multiply-adds when it
chooses the form of a first layer (`DENSE_PER_SPARSE`).
"""

import sys
import warnings
from collections.abc import Callable
from statistics import median

import scipy.sparse as sp
import torch
import work
from timing import WIDTH, Line, begin, compared, cs, describe, difference, interleaved, options, ratio
from torch import Tensor

from ipal.backend.operators import DENSE_PER_SPARSE
from ipal.backend.sparse import SparseMatrix, SparsePair

ROUNDING = 1e-5
CPU = torch.device("cpu")


def torch_csr(matrix: sp.csr_array, index: torch.dtype) -> Tensor:
    """The matrix as torch's own kind of CSR."""
    indptr, indices = (torch.from_numpy(part).to(index) for part in (matrix.indptr, matrix.indices))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        values = torch.from_numpy(matrix.data)
        return torch.sparse_csr_tensor(indptr, indices, values, size=matrix.shape, check_invariants=False)


def kernels(matrix: sp.csr_array, dense: Tensor) -> dict[str, Callable[[], Tensor]]:
    """All ways to multiply, by name; ours first."""
    ours = SparseMatrix.of(matrix, CPU)
    narrow, wide = torch_csr(matrix, torch.int32), torch_csr(matrix, torch.int64)
    return {
        "ours": lambda: ours.matmul(dense),
        "torch CSR, int32": lambda: narrow @ dense,
        "torch CSR, int64": lambda: wide @ dense,
        "torch.sparse.mm 'sum'": lambda: torch.sparse.mm(wide, dense, "sum"),
        "scipy": lambda: torch.from_numpy(matrix @ dense.numpy()),
    }


def products(a: sp.csr_array, x: sp.csr_array, repeats: int) -> list[Line]:
    """Print each product by each kernel. Fails where one gave something else."""
    lines, same = [], True
    cases = {"X @ W": x, "X^T @ G": x.T.tocsr(), "A @ H": a}
    for name, matrix in cases.items():
        dense = torch.randn(matrix.shape[1], WIDTH, generator=torch.Generator().manual_seed(0))
        ways = kernels(matrix, dense)
        times = interleaved(ways, repeats)
        print(f"\n{name}: {matrix.shape[0]:,} x {matrix.shape[1]:,}, {matrix.nnz:,} non-zeros, {WIDTH} columns")
        for way, multiply in ways.items():
            off = difference([multiply()], [ways["ours"]()])
            same &= off < ROUNDING
            print(
                f"  {way:22s} {median(times[way]):8.2f} ms   ratio to ours {ratio(times[way], times['ours']):5.2f} x"
                f"   largest relative difference {off:.1e}"
            )
        floor = work.sparse(*matrix.shape, matrix.nnz, WIDTH)
        lines.append(compared(f"sparse product {name}, CS", times, "torch CSR, int32", "torch CSR", floor))
    if not same:
        sys.exit("The kernels did not compute the same.")
    return lines


def dense_per_sparse(a: sp.csr_array, x: sp.csr_array, repeats: int) -> None:
    """Print what a multiply-add costs in a first layer's forward and backward, dense and sparse."""
    forward, propagation = SparsePair.of(x, CPU), SparsePair.of(a, CPU, symmetric=True)
    propagated = torch.from_numpy((a @ x).toarray())
    random = torch.Generator().manual_seed(0)
    weight, grad = (torch.randn(size, WIDTH, generator=random) for size in reversed(x.shape))

    def sparse() -> Tensor:
        propagation.matrix.matmul(forward.matrix.matmul(weight))
        return forward.transpose.matmul(propagation.matrix.matmul(grad))

    def dense() -> Tensor:
        propagated @ weight
        return propagated.T @ grad

    times = interleaved({"sparse": sparse, "dense": dense}, repeats)
    # Forward and backward: two multiply-adds for every non-zero (or entry) and column.
    count = {"sparse": 2 * WIDTH * (x.nnz + a.nnz), "dense": 2 * WIDTH * x.shape[0] * x.shape[1]}
    print("\nFirst layer, forward and backward: X W then A, both sparse, against the stored dense A X")
    for side, taken in times.items():
        print(f"  {side:7s} {median(taken):8.2f} ms, {1e9 * median(taken) / count[side]:6.2f} ps a multiply-add")
    constant = ratio(times["sparse"], times["dense"]) * count["dense"] / count["sparse"]
    print(f"  ratio of the costs of a multiply-add, sparse to dense: {constant:.1f} x")
    print(f"  DENSE_PER_SPARSE of the engine: {DENSE_PER_SPARSE}")


def main() -> None:
    chosen = options("Sparse products by kernel, and dense against sparse.", repeats=21).parse_args()
    begin(chosen.threads)
    dataset = cs(chosen.size)
    print(describe(dataset))
    a, x = dataset.graph.normalised, dataset.graph.x
    products(a, x, chosen.repeats)
    dense_per_sparse(a, x, chosen.repeats)


if __name__ == "__main__":
    main()
