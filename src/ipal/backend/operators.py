"""What an encoder needs of a graph: the edges of every layer, and features in the form that its first layer uses.

Encoders are written against `LayerInput` alone. Here it has tensors behind it, with gradients, of a whole graph or of
a sample; `nn.embed` gives the rows of a graph in pieces, and `deploy.export` has what torch can trace to ONNX.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.attention import Edges, attention
from ipal.backend.propagated import Propagated
from ipal.backend.runtime import Runtime
from ipal.backend.sparse import SparseMatrix, SparsePair, sparse_matmul
from ipal.data.csr import Norm
from ipal.data.graph import Graph
from ipal.data.task import Task

# Multiply-adds of a dense product that cost as much as one of a sparse product (measured: benchmarks/).
DENSE_PER_SPARSE = 8
VALUES_AT_ONCE = 2**24

Need = Norm | Literal["own", "attention"] | Propagated
"""What an encoder may need of a graph: sums over neighbours, a node's own values, attention over its edges.

Or propagated features in place of all these: its first layer has these as a node's own values.
"""


@dataclass(frozen=True, eq=False)
class Block:
    """The edges of one layer: from the nodes whose values it reads to those that it computes."""

    aggregation: Mapping[Norm, SparsePair]
    own: SparsePair | None = None
    """Picks the nodes that are computed among those that are read; None where they are the same."""
    edges: Edges | None = None
    """For attention: a node's own loop among them."""


class LayerInput(ABC):
    """What a layer is computed from: the values of nodes, and how they reach those that are computed.

    Layers are written with these three alone, each of which multiplies values with the layer's weights, in whichever
    order is cheapest.
    """

    @abstractmethod
    def aggregated(self, weight: Tensor, norm: Norm = "symmetric") -> Tensor:
        """Values of a node's neighbours added up, times `weight`."""

    @abstractmethod
    def own(self, weight: Tensor) -> Tensor:
        """A node's own values times `weight`."""

    @abstractmethod
    def attended(self, weight: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Values times `weight`, averaged over a node and its neighbours by attention (see `attention`)."""


@dataclass(frozen=True, eq=False)
class TensorInput(LayerInput):
    """Values as tensors, with gradients: of a whole graph, or of a sample."""

    block: Block

    @abstractmethod
    def projected(self, weight: Tensor) -> Tensor:
        """Values of all nodes that are read, times `weight`."""

    def attended(self, weight: Tensor, query: Tensor, key: Tensor) -> Tensor:
        z = self.projected(weight)
        assert self.block.edges is not None, "attention was asked for"
        return attention(self.block.edges, z, self.picked(z), query, key)

    def picked(self, z: Tensor) -> Tensor:
        """Of values of all nodes that are read, those of the nodes that are computed."""
        return z if self.block.own is None else sparse_matmul(self.block.own, z)


@dataclass(frozen=True, eq=False)
class Hidden(TensorInput):
    """What the layer before has computed."""

    values: Tensor

    def projected(self, weight: Tensor) -> Tensor:
        return self.values @ weight

    def aggregated(self, weight: Tensor, norm: Norm = "symmetric") -> Tensor:
        return sparse_matmul(self.block.aggregation[norm], self.values) @ weight

    def own(self, weight: Tensor) -> Tensor:
        return self.picked(self.values) @ weight


@dataclass(frozen=True, eq=False)
class Features:
    """The features of nodes in the forms in which a first layer uses them, none of which ever changes."""

    x: SparsePair | Tensor | None
    """Of all nodes that are read; None where the others suffice."""
    aggregated: Mapping[Norm, Tensor]
    """Added up over neighbours, where that is dense: nothing is learned about it."""
    own: Tensor | None = None
    """Of the nodes that are computed, where these are fewer than those read."""


@dataclass(frozen=True, eq=False)
class FirstInput(TensorInput):
    """What the first layer is computed from: features."""

    features: Features

    def projected(self, weight: Tensor) -> Tensor:
        x = self.features.x
        assert x is not None, "the encoder says that it needs them"
        return x @ weight if isinstance(x, Tensor) else sparse_matmul(x, weight)

    def aggregated(self, weight: Tensor, norm: Norm = "symmetric") -> Tensor:
        if norm in self.features.aggregated:
            return self.features.aggregated[norm] @ weight
        return sparse_matmul(self.block.aggregation[norm], self.projected(weight))

    def own(self, weight: Tensor) -> Tensor:
        return self.picked(self.projected(weight)) if self.features.own is None else self.features.own @ weight


@dataclass(frozen=True, eq=False)
class Operators:
    """What an encoder needs of the nodes that it is to embed, ready on a device."""

    features: Features
    blocks: tuple[Block, ...]
    """One a layer from the first on; where there are fewer than layers, the last but one is repeated."""

    @property
    def first(self) -> FirstInput:
        """What the first layer is computed from."""
        return FirstInput(self.blocks[0], self.features)

    def later(self, layers: int) -> Sequence[Callable[[Tensor], LayerInput]]:
        """What each of so many later layers is computed from, given the values of the layer before."""
        missing = layers + 1 - len(self.blocks)
        blocks = (*self.blocks[1:-1], *self.blocks[-2:-1] * missing, self.blocks[-1]) if layers else ()
        return [partial(Hidden, block) for block in blocks]


def operators(of: Graph | Task, runtime: Runtime, needs: Sequence[Need] = ("symmetric",)) -> Operators:
    """The operators of a graph, or of a task (which gives the embeddings of its training nodes alone).

    `needs` are those of the encoder. Made once, and kept as long as the graph or task lives.
    """
    make = _graph_operators if isinstance(of, Graph) else _task_operators
    return of.derived("operators", (runtime, *needs), partial(make, of, runtime, needs))  # type: ignore[arg-type]


def _task_operators(task: Task, runtime: Runtime, needs: Sequence[Need]) -> Operators:
    rows = propagated_rows(task.graph, runtime, needs)
    if rows is not None:
        return of_rows(picked(rows, torch.from_numpy(task.nodes), runtime.device))
    whole = operators(task.graph, runtime, needs)
    return Operators(whole.features, (whole.blocks[0], _block(task.graph, runtime.device, needs, task.nodes)))


def propagated_rows(graph: Graph, runtime: Runtime, needs: Sequence[Need]) -> Tensor | None:
    """Propagated features of all nodes, where they are what an encoder needs; perhaps on the host (see `picked`)."""
    return next((need.of(graph, runtime) for need in needs if isinstance(need, Propagated)), None)


def picked(rows: Tensor, nodes: Tensor, device: torch.device) -> Tensor:
    """The rows of some nodes, on a device."""
    return rows[nodes.to(rows.device)].to(device)


def of_rows(rows: Tensor) -> Operators:
    """What embeds nodes by rows of their own alone."""
    return Operators(Features(None, {}, rows), (Block({}), Block({})))


def norms(needs: Sequence[Need]) -> list[Norm]:
    """The sums over neighbours among what an encoder needs."""
    return [need for need in needs if isinstance(need, str) and need != "own" and need != "attention"]


def _block(graph: Graph, device: torch.device, needs: Sequence[Need], rows: NDArray[np.int64] | None = None) -> Block:
    """The edges to all nodes of a graph, or to some."""

    def some(matrix: sp.csr_array) -> sp.csr_array:
        return matrix if rows is None else matrix[rows]

    aggregation = {
        norm: SparsePair.of(
            some(graph.aggregation(norm)), device, symmetric=rows is None and norm != "mean" and graph.symmetric
        )
        for norm in norms(needs)
    }
    edges = None
    if "attention" in needs:
        matrix = SparseMatrix.of(some(graph.with_loops), device)
        edges = Edges.of(matrix, weights=matrix.values if graph.neighbours.weights is not None else None)
    if rows is None or not {"own", "attention"} & set(needs):
        return Block(aggregation, None, edges)
    entries = (np.ones(len(rows), dtype=np.float32), rows, np.arange(len(rows) + 1))
    own = sp.csr_array(entries, shape=(len(rows), graph.num_nodes))
    return Block(aggregation, SparsePair.of(own, device), edges)


def _graph_operators(graph: Graph, runtime: Runtime, needs: Sequence[Need]) -> Operators:
    """Choose the form of the first layer by counting multiply-adds per output column.

    The aggregated features never change while a task is learned, so they can be computed once: always right
    for dense features, and for sparse ones that are dense enough. Bag-of-words features stay sparse, where
    X W and then the aggregation cost nnz(X) + nnz(A).
    """
    device, x = runtime.device, graph.x
    rows = propagated_rows(graph, runtime, needs)
    if rows is not None:
        return of_rows(rows.to(device))
    block = _block(graph, device, needs)
    entries = graph.num_edges + graph.num_nodes
    if isinstance(x, sp.csr_array) and (x.nnz + entries) * DENSE_PER_SPARSE <= x.shape[0] * x.shape[1]:
        features = Features(SparsePair.of(x, device), {})
    else:
        aggregated = {norm: _product(graph.aggregation(norm), x).to(device) for norm in norms(needs)}
        raw = None
        if {"own", "attention"} & set(needs):
            raw = torch.tensor(x.toarray() if isinstance(x, sp.csr_array) else x, device=device)
        features = Features(raw, aggregated)
    return Operators(features, (block, block))


def _product(matrix: sp.csr_array, x: Any) -> Tensor:
    """In torch's own memory: the bits of a product may depend on where NumPy's happens to begin."""
    found = torch.empty(matrix.shape[0], x.shape[1])
    step = max(1, VALUES_AT_ONCE // x.shape[1])
    for begin in range(0, matrix.shape[0], step):
        some = matrix[begin : begin + step] @ x
        found.numpy()[begin : begin + step] = some.toarray() if isinstance(some, sp.csr_array) else some
    return found
