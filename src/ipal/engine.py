"""Sparse products that are fast in both directions, and the plan of a graph's first layer.

Autograd's own backward of a sparse product transposes the matrix at every step. Here a matrix travels with
its transpose (itself, where it is symmetric), so that a backward is just another product. The same pair
serves the propagation matrix and bag-of-words features, which are never made dense.
"""

import warnings
import weakref
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.graph import Graph, normalised_adjacency

# Multiply-adds of a dense product that cost as much as one of a sparse product (measured: benchmarks/).
DENSE_PER_SPARSE = 8


@dataclass(frozen=True, eq=False)
class SparsePair:
    """A sparse matrix in CSR form together with its transpose."""

    matrix: Tensor
    transpose: Tensor

    @property
    def T(self) -> "SparsePair":
        return SparsePair(self.transpose, self.matrix)


class _SparseMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, pair: SparsePair) -> Tensor:
        ctx.pair = pair
        return pair.matrix @ dense

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        # Through `apply` again, so that second derivatives exist too.
        return sparse_matmul(ctx.pair.T, grads[0].contiguous()), None


def sparse_matmul(pair: SparsePair, dense: Tensor) -> Tensor:
    """`pair.matrix @ dense`, with a backward that uses the stored transpose."""
    return cast(Tensor, _SparseMatmul.apply(dense, pair))  # type: ignore[no-untyped-call]


def sparse_pair(matrix: sp.csr_array, device: torch.device, *, symmetric: bool = False) -> SparsePair:
    forward = to_torch(matrix, device)
    if symmetric:
        return SparsePair(forward, forward)
    return SparsePair(forward, to_torch(matrix.T.tocsr(), device))


def to_torch(matrix: sp.csr_array, device: torch.device) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int32)),
            torch.from_numpy(matrix.indices.astype(np.int32)),
            torch.from_numpy(np.ascontiguousarray(matrix.data)),
            size=matrix.shape,
            device=device,
        )


@dataclass(frozen=True, eq=False)
class Operators:
    """What an encoder needs of a graph, ready on a device."""

    propagation: SparsePair
    """D^-1/2 (A + I) D^-1/2."""
    features: SparsePair | Tensor
    """X, or propagation times X where `hoisted`."""
    hoisted: bool

    def first_layer(self, weight: Tensor) -> Tensor:
        """Propagation times X times `weight`, in whichever order is cheapest."""
        if isinstance(self.features, SparsePair):
            product = sparse_matmul(self.features, weight)
        else:
            product = self.features @ weight
        return product if self.hoisted else self.propagate(product)

    def propagate(self, hidden: Tensor) -> Tensor:
        return sparse_matmul(self.propagation, hidden)


_ready: "weakref.WeakKeyDictionary[Graph, dict[torch.device, Operators]]" = weakref.WeakKeyDictionary()


def operators(graph: Graph, device: torch.device) -> Operators:
    """The operators of a graph: made once, kept as long as the graph lives."""
    by_device = _ready.setdefault(graph, {})
    if device not in by_device:
        by_device[device] = make_operators(graph, device)
    return by_device[device]


def make_operators(graph: Graph, device: torch.device) -> Operators:
    """Choose the form of the first layer by counting multiply-adds per output column.

    The propagated features never change while a task is learned, so they can be computed once ("hoisted"):
    always right for dense features, and for sparse ones that are dense enough. Bag-of-words features stay
    sparse, where X W and then the propagation cost nnz(X) + nnz(A).
    """
    a = normalised_adjacency(graph.adjacency)
    symmetric = (abs(a - a.T) > 1e-7).nnz == 0
    propagation = sparse_pair(a, device, symmetric=symmetric)
    x = graph.x
    if isinstance(x, sp.csr_array):
        sparse_cost = (x.nnz + a.nnz) * DENSE_PER_SPARSE
        if sparse_cost <= x.shape[0] * x.shape[1]:
            return Operators(propagation, sparse_pair(x, device), hoisted=False)
        hoisted = (a @ x).toarray()
    else:
        hoisted = a @ x
    return Operators(propagation, torch.from_numpy(hoisted).to(device), hoisted=True)
