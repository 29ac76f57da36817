"""Scores of a node, computed so that they can be divided among the features that they were made of.

A method says in `Learner.exported` how scores follow from rows. Here rows are read as mixtures, `mix @ rows`: what is
linear changes the mixture alone, so that a prediction by propagated features reads one mixture of features a hop. What
was read is kept, and gradients with respect to it divide a score among the features of all nodes.

Lengths and deviations by which rows are divided, and attention, are held fixed, as edges are: through them every
feature would take from the others what it adds.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import layer_norm

from ipal.backend.attention import SLOPE
from ipal.backend.sparse import SparsePair, sparse_matmul
from ipal.data.csr import Norm
from ipal.data.graph import Graph
from ipal.system import free_memory

CPU = torch.device("cpu")
LEAST = 1e-12
VALUES_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class EvidenceRows:
    """One row of values for every node of a graph, read as mixtures of them."""

    graph: Graph
    read: Callable[[sp.csr_array], Tensor]
    """Mixtures (mixtures x nodes) to values (mixtures x width), in double precision."""

    def __matmul__(self, weights: Tensor | NDArray[Any]) -> "EvidenceRows":
        w = torch.as_tensor(weights).detach().cpu()
        return self._each(lambda values: (values.to(w.dtype) @ w).double())

    def __add__(self, other: "Tensor | EvidenceRows") -> "EvidenceRows":
        if isinstance(other, EvidenceRows):
            return EvidenceRows(self.graph, lambda mix: self.read(mix) + other.read(mix))
        offsets = _double(other)
        return EvidenceRows(
            self.graph, lambda mix: self.read(mix) + torch.from_numpy(mix.sum(axis=1))[:, None] * offsets
        )

    add_ = __add__

    def __sub__(self, other: "Tensor | EvidenceRows") -> "EvidenceRows":
        return self + other * -1

    def __mul__(self, other: "float | Tensor | EvidenceRows") -> "EvidenceRows":
        if isinstance(other, EvidenceRows):
            return by_row(torch.mul, self, other)
        factor = _double(other)
        return self._each(lambda values: values * factor)

    def __truediv__(self, other: "float | EvidenceRows") -> "EvidenceRows":
        if not isinstance(other, EvidenceRows):
            return self * (1 / other)

        def read(mix: sp.csr_array) -> Tensor:
            at = np.unique(mix.indices)
            by = np.ones(self.graph.num_nodes)
            by[at] = other.read(self._these(at)).detach().numpy()[:, 0]
            return self.read(_with_values(mix, mix.data / by[mix.indices]))

        return EvidenceRows(self.graph, read)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> "EvidenceRows":
        """What an activation or a layer norm does to a node's values."""
        rows, *others = args
        if function is layer_norm:
            function = _normalised
        named = {name: _double(one) for name, one in (kwargs or {}).items()}
        return by_row(lambda values: function(values, *map(_double, others), **named), rows)

    def relu(self) -> "EvidenceRows":
        return by_row(torch.relu, self)

    def softmax(self) -> "EvidenceRows":
        return by_row(lambda values: values.softmax(dim=-1), self)

    def lengths(self, least: float = LEAST) -> "EvidenceRows":
        """Norms of the rows, at least `least`."""
        return by_row(lambda values: values.norm(dim=1, keepdim=True).clamp_min(least), self)

    def unit(self) -> "EvidenceRows":
        """Rows divided by their norms."""
        return self / self.lengths()

    def within_one(self) -> "EvidenceRows":
        """The rows themselves: squares of single precision neither overflow nor vanish in double precision."""
        return self

    def beside(self, *others: "EvidenceRows") -> "EvidenceRows":
        """Concatenated columns."""
        return EvidenceRows(self.graph, lambda mix: torch.cat([rows.read(mix) for rows in (self, *others)], dim=1))

    def spread(self, norm: Norm = "symmetric") -> "EvidenceRows":
        """One propagation step: sums over neighbours."""
        return EvidenceRows(self.graph, lambda mix: self.read((mix @ self.graph.aggregation(norm)).tocsr()))

    def attended(self, query: Tensor, key: Tensor) -> "EvidenceRows":
        """Means over a node and its neighbours, by one head of attention (see `backend.attention`), which is fixed."""

        def read(mix: sp.csr_array) -> Tensor:
            at = np.unique(mix.indices)
            edges = self.graph.with_loops[at]
            near, place = np.unique(edges.indices, return_inverse=True)
            values = self.read(self._these(near)).detach()
            to, by = ((values @ _double(a)).numpy() for a in (query, key))
            each = np.repeat(np.arange(len(at)), np.diff(edges.indptr))
            e = to[np.searchsorted(near, at)][each] + by[place]
            e = np.where(e > 0, e, SLOPE * e)
            raised = edges.data * np.exp(e - np.maximum.reduceat(e, edges.indptr[:-1])[each])
            shares = raised / np.add.reduceat(raised, edges.indptr[:-1])[each]
            return self.read((mix[:, at] @ _with_values(edges, shares)).tocsr())

        return EvidenceRows(self.graph, read)

    def _each(self, function: Callable[[Tensor], Tensor]) -> "EvidenceRows":
        """A linear function of every row: of a mixture it is the mixture of what it makes of rows."""
        return EvidenceRows(self.graph, lambda mix: function(self.read(mix)))

    def _these(self, nodes: NDArray[Any]) -> sp.csr_array:
        """The mixtures that are single nodes."""
        entries = np.ones(len(nodes)), nodes, np.arange(len(nodes) + 1)
        return sp.csr_array(entries, shape=(len(nodes), self.graph.num_nodes))

    def at(self, node: int) -> Tensor:
        """The row of a node."""
        return self.read(self._these(np.array([node])))[0]


def by_row(function: Callable[..., Tensor], *rows: EvidenceRows) -> EvidenceRows:
    """Any function of a node's own values: computed once for the nodes that are needed, then mixed."""
    made: dict[bytes, Tensor] = {}

    def read(mix: sp.csr_array) -> Tensor:
        at = np.unique(mix.indices)
        if at.tobytes() not in made:
            made[at.tobytes()] = function(*(one.read(one._these(at)) for one in rows))
        return sparse_matmul(SparsePair.of(mix[:, at], CPU), made[at.tobytes()])

    return EvidenceRows(rows[0].graph, read)


def contribution(x: NDArray[Any], gradient: NDArray[Any]) -> NDArray[Any]:
    r"""What a feature of a node contributes to a score: its value times the gradient of the score.

    .. math:: c_{jf} = x_{jf} \, \partial s / \partial x_{jf}

    Source: Shrikumar et al. 2016, "Not Just a Black Box: Interpretable Deep Learning by Propagating Activation
    Differences", Sec. 3. Contributions add up to the score where it is linear in the features, or made of linear pieces
    without an offset, as by a ReLU.
    """
    return np.asarray(x * gradient)


@dataclass(frozen=True, eq=False)
class FeatureRows(EvidenceRows):
    """The features of a graph; what is read of them is kept."""

    x: sp.csr_array
    """Of all nodes."""
    kept: list[tuple[sp.csr_array, Tensor]] = field(default_factory=list)
    """Mixtures that were read, and their values."""

    @classmethod
    def of(cls, graph: Graph) -> "FeatureRows":
        values = graph.x.nnz if isinstance(graph.x, sp.csr_array) else graph.x.size
        _need(64 * values, graph)
        x = sp.csr_array(graph.x).astype(np.float64)
        x.eliminate_zeros()
        kept = list[tuple[sp.csr_array, Tensor]]()

        def read(mix: sp.csr_array) -> Tensor:
            _need(32 * mix.shape[0] * x.shape[1], graph)
            values = torch.from_numpy((mix @ x).toarray()).requires_grad_()
            kept.append((mix, values))
            return values

        return cls(graph, read, x, kept)

    def lengths(self, least: float = LEAST) -> EvidenceRows:
        """Norms of the rows, however small; one for a row of zeros."""
        found = np.sqrt(self.x.power(2).sum(axis=1))[:, None]
        found[found == 0] = 1
        return EvidenceRows(self.graph, lambda mix: torch.from_numpy(mix @ found))

    def shares(self, score: Tensor) -> sp.csr_array:
        """What every feature of every node contributes to a score (see `contribution`)."""
        values = [values for _, values in self.kept]
        gradients = torch.autograd.grad(score, values, allow_unused=True) if score.requires_grad else []
        pairs = [
            (mix.T.tocsr(), gradient.numpy())
            for (mix, _), gradient in zip(self.kept, gradients, strict=False)
            if gradient is not None
        ]
        return _with_values(self.x, np.concatenate([[], *self._products(pairs)]))

    def _products(self, pairs: list[tuple[sp.csr_array, NDArray[Any]]]) -> Iterable[NDArray[Any]]:
        """Features times gradients, where features are not zero; some nodes at a time."""
        n, width = self.x.shape
        step = max(1, VALUES_AT_ONCE // width)
        for begin in range(0, n, step):
            some = self.x[begin : begin + step]
            row = np.repeat(np.arange(some.shape[0]), np.diff(some.indptr))
            by = sum((mix[begin : begin + step] @ gradient for mix, gradient in pairs), np.zeros(some.shape))
            yield contribution(some.data, by[row, some.indices])


def _need(bytes: int, graph: Graph) -> None:
    what = f"The explanation of a node with {graph.num_nodes} nodes within reach"
    free_memory.need(bytes, what, "explain one with fewer neighbours")


def _normalised(values: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """A layer norm by a deviation that is held fixed."""
    centred = values - values.mean(dim=1, keepdim=True)
    deviation = (centred.square().mean(dim=1, keepdim=True) + eps).sqrt().detach()
    return centred / deviation * weight + bias


def _double(value: Any) -> Any:
    """A tensor as rows are computed with it; all else as it is."""
    return value.detach().cpu().double() if isinstance(value, Tensor) else value


def _with_values(matrix: sp.csr_array, values: NDArray[Any]) -> sp.csr_array:
    return sp.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)
