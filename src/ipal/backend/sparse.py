"""Sparse products that are fast in both directions.

Autograd's own backward of a sparse product transposes the matrix at every step. Here a matrix travels with
its transpose (itself, where it is symmetric), so that a backward is just another product. The same pair
serves the propagation matrix and bag-of-words features, which are never made dense.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.cuda_kernels import sums_of_rows
from ipal.data.csr import check_entries


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A matrix in CSR form on a device."""

    indptr: Tensor
    indices: Tensor
    values: Tensor
    shape: tuple[int, int]
    cut: "Cut | None" = None
    """How long rows are cut into parts; None where they are added up as they are."""

    @classmethod
    def of(cls, matrix: sp.csr_array, device: torch.device) -> "SparseMatrix":
        check_entries(int(matrix.indptr[-1]))
        indptr, indices, values = (
            torch.from_numpy(part).to(device)
            for part in (matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32), matrix.data)
        )
        rows, columns = matrix.shape
        cut = Cut.of(matrix.indptr, device) if device.type == "cuda" else None
        return cls(indptr, indices, values, (rows, columns), cut)

    def matmul(self, dense: Tensor) -> Tensor:
        """The product with a dense matrix, outside autograd: a row of it is a weighted bag of rows.

        Bags are added up in a fixed order, whatever the number of threads, so that the same product gives the same
        bits. On a CPU that is up to twice as fast as torch's product of CSR matrices; on a GPU about as fast, where
        long rows are cut into parts (benchmarks/).
        """
        if self.cut is None:
            return bags(dense, self.indices, self.indptr, self.values)
        parts = bags(dense, self.indices, self.cut.parts, self.values)
        return bags(parts, self.cut.order, self.cut.rows)

    def picked(self, rows: Tensor) -> "SparseMatrix":
        """Some rows, in the order given."""
        start = self.indptr[rows]
        lengths = self.indptr[rows + 1] - start
        ends = lengths.cumsum(0)
        total = int(ends[-1]) if len(ends) else 0
        starts = row_starts(ends, total)
        place = (start - starts[:-1]).repeat_interleave(lengths, output_size=total)
        place += torch.arange(total, device=rows.device, dtype=place.dtype)
        indices, values = self.indices.index_select(0, place), self.values.index_select(0, place)
        return SparseMatrix(starts, indices, values, (len(rows), self.shape[1]))

    def transposed(self) -> "SparseMatrix":
        """The transpose, entries of a row in the order of the columns they came from: a fixed order."""
        rows, columns = self.shape
        order = torch.argsort(self.indices, stable=True)
        counts = torch.bincount(self.indices, minlength=columns)
        indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(self.indptr.dtype)
        lengths = self.indptr.diff()
        row = torch.arange(rows, device=lengths.device, dtype=self.indices.dtype).repeat_interleave(
            lengths, output_size=len(self.indices)
        )
        return SparseMatrix(indptr, row[order], self.values[order], (columns, rows))


def row_starts(ends: Tensor, entries: int) -> Tensor:
    """Where rows begin that end at `ends`, in 32 bits; `entries` is the last of them, without asking the device."""
    check_entries(entries)
    return torch.nn.functional.pad(ends, (1, 0)).int()


def read_only(array: NDArray[Any]) -> Tensor:
    """The same memory as a tensor that is never written to: so it may be mapped from a file for reading alone."""
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def bags(rows: Tensor, indices: Tensor, indptr: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sums of rows, each from `indptr[i]` to `indptr[i + 1]` in `indices`, added up in a fixed order.

    Both are 32-bit numbers: the kernel reads them so, and an embedding bag asks that both are of one kind.
    """
    found = sums_of_rows(rows, indices, indptr, weights) if rows.is_cuda else None
    if found is not None:
        return found
    return torch.nn.functional.embedding_bag(
        indices, rows, indptr, mode="sum", per_sample_weights=weights, include_last_offset=True
    )


@dataclass(frozen=True, eq=False)
class Cut:
    """Rows of a matrix in parts of bounded length: on a GPU one thread adds up one part of one column.

    Otherwise the longest row would decide how long a product takes.
    """

    parts: Tensor
    """Where each part begins, and the end."""
    rows: Tensor
    """The first part of each row, and the end."""
    order: Tensor
    """0, 1, … as many as there are parts."""

    LENGTH: ClassVar[int] = 128

    @classmethod
    def of(cls, indptr: NDArray[Any], device: torch.device) -> "Cut | None":
        """None where no row is long."""
        check_entries(int(indptr[-1]))
        lengths = np.diff(indptr)
        if not len(lengths) or lengths.max() <= 2 * cls.LENGTH:
            return None
        number = -(-lengths // cls.LENGTH)
        first = np.concatenate([[0], np.cumsum(number)])
        within = np.arange(first[-1]) - np.repeat(first[:-1], number)
        begins = np.append(np.repeat(indptr[:-1], number) + cls.LENGTH * within, indptr[-1])
        made = (torch.from_numpy(part.astype(np.int32)).to(device) for part in (begins, first, np.arange(first[-1])))
        return cls(*made)


@dataclass(frozen=True, eq=False)
class SparsePair:
    """A sparse matrix together with its transpose."""

    matrix: SparseMatrix
    transpose: SparseMatrix

    @property
    def T(self) -> "SparsePair":  # noqa: N802
        return SparsePair(self.transpose, self.matrix)

    @classmethod
    def of(cls, matrix: sp.csr_array, device: torch.device, *, symmetric: bool = False) -> "SparsePair":
        forward = SparseMatrix.of(matrix, device)
        if symmetric:
            return cls(forward, forward)
        if device.type != "cuda":
            return cls(forward, SparseMatrix.of(matrix.T.tocsr(), device))
        starts = np.concatenate([[0], np.cumsum(np.bincount(matrix.indices, minlength=matrix.shape[1]))])
        return cls(forward, replace(forward.transposed(), cut=Cut.of(starts, device)))  # a GPU sorts faster


class _SparseMatmul(torch.autograd.Function):
    @staticmethod
    def forward(dense: Tensor, pair: SparsePair) -> Tensor:
        return pair.matrix.matmul(dense.detach())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, SparsePair], output: Tensor) -> None:
        ctx.pair = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        # Through `apply` again, so that second derivatives exist too.
        return sparse_matmul(ctx.pair.T, grads[0].contiguous()), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], dense: Tensor, pair: SparsePair) -> tuple[Tensor, int]:
        """Several dense matrices at once: one product with the columns of all of them."""
        columns = dense.movedim(in_dims[0], 1)
        found = sparse_matmul(pair, columns.flatten(1))
        return found.view(len(found), *columns.shape[1:]), 1


def sparse_matmul(pair: SparsePair, dense: Tensor) -> Tensor:
    """`pair.matrix @ dense`, with a backward that uses the stored transpose."""
    return cast(Tensor, _SparseMatmul.apply(dense, pair))  # type: ignore[no-untyped-call]
