"""One hop over a graph in double precision: neighbours added up, without a number for each edge that has no weight.

The propagation matrix is made of a scale a node, s_i s_j, so that rows are scaled before and after a plain sum over
neighbours. Sums add in a fixed order, whatever the number of threads.
"""

import itertools
import warnings
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.backend.sparse import Cut, SparseMatrix, bags, read_only
from ipal.data.csr import MOST_ENTRIES, Neighbours

NARROW = 64
"""Columns up to which torch's product of CSR matrices is the faster one on a CPU; the bits are the same."""


class Spreading:
    """Features of all nodes to those one hop further."""

    def __init__(self, neighbours: Neighbours, device: torch.device) -> None:
        self._scale = torch.from_numpy(1.0 / np.sqrt(neighbours.degree + 1.0)[:, None]).to(device)
        on_device = _SumsOnDevice if device.type == "cuda" else _SumsInPieces
        self._sums = on_device(neighbours, device)

    def __call__(self, x: Tensor) -> Tensor:
        """One hop, D^-1/2 (A + I) D^-1/2 x; `x` is used up."""
        x *= self._scale
        return self._sums(x).add_(x).mul_(self._scale)


class _SumsOnDevice:
    """Bags of rows; long ones are cut into parts. As many rows at a time as 32-bit row starts allow: mostly all."""

    def __init__(self, neighbours: Neighbours, device: torch.device) -> None:
        self._pieces = []
        for begin, end in neighbours.chunks(MOST_ENTRIES):
            starts = neighbours.indptr[begin : end + 1]
            indices, indptr = neighbours.indices[starts[0] : starts[-1]], starts - starts[0]
            cut = Cut.of(indptr, device)
            whole = read_only(indptr.astype(np.int32)).to(device) if cut is None else cut.parts
            weights = None
            if neighbours.weights is not None:
                weights = read_only(neighbours.values(begin, end, np.float64)).to(device)
            self._pieces.append((read_only(indices).to(device), whole, cut, weights))

    def __call__(self, x: Tensor) -> Tensor:
        sums = [_summed(x, *piece) for piece in self._pieces]
        return sums[0] if len(sums) == 1 else torch.cat(sums)


def _summed(x: Tensor, indices: Tensor, indptr: Tensor, cut: Cut | None, weights: Tensor | None) -> Tensor:
    if not len(indices):
        return x.new_zeros(len(indptr) - 1, x.shape[1])
    sums = bags(x, indices, indptr, weights)
    return sums if cut is None else bags(sums, cut.order, cut.rows)


class _SumsInPieces:
    """Some rows at a time; neighbours are read from where they lie, also from a file. Those of one piece are kept."""

    def __init__(self, neighbours: Neighbours, device: torch.device) -> None:
        self._neighbours = neighbours
        ranges = list(itertools.islice(neighbours.chunks(), 2))
        self._whole = self._piece(*ranges[0]) if len(ranges) == 1 else None

    def _piece(self, begin: int, end: int) -> "SparseProduct":
        rows = self._neighbours.matrix(begin, end, self._neighbours.values(begin, end, np.float64))
        return SparseProduct(rows, torch.device("cpu"))

    def __call__(self, x: Tensor) -> Tensor:
        if self._whole is not None:
            return self._whole(x)
        sums = torch.empty_like(x)
        for begin, end in self._neighbours.chunks():
            sums[begin:end] = self._piece(begin, end)(x)
        return sums


class SparseProduct:
    """A sparse matrix (float64) on a device, to be multiplied with dense columns there."""

    def __init__(self, matrix: sp.csr_array, device: torch.device) -> None:
        self._matrix, self._device = matrix, device

    def __call__(self, x: Tensor) -> Tensor:
        if self._device.type == "cuda" or x.shape[1] > NARROW:
            return self._bags.matmul(x)
        matrix = self._narrow
        return matrix @ x if isinstance(matrix, Tensor) else torch.from_numpy(matrix @ x.numpy())

    @cached_property
    def _bags(self) -> SparseMatrix:
        return SparseMatrix.of(self._matrix, self._device)

    @cached_property
    def _narrow(self) -> Tensor | sp.csr_array:
        return _of_torch(self._matrix)


def _of_torch(matrix: sp.csr_array) -> Tensor | sp.csr_array:
    """On a CPU: torch's product uses all threads, where it is built with MKL; entries are counted in 32 bits there."""
    mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if not mkl or not 0 < matrix.nnz <= MOST_ENTRIES:
        return matrix
    indptr, indices = (part.astype(np.int32, copy=False) for part in (matrix.indptr, matrix.indices))
    parts = (read_only(indptr), read_only(indices), read_only(matrix.data))
    with warnings.catch_warnings():
        # That CSR is in beta, and that invariants are not checked: they hold by construction.
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")
        return torch.sparse_csr_tensor(parts[0], parts[1], parts[2], size=matrix.shape, check_invariants=False)
