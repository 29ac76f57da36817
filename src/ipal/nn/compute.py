"""What methods compute on whole tasks and graphs, on the device of a run."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.operators import of_rows, operators
from ipal.backend.propagated import Columns, Propagated, RowSource, Spreading, blocks, unit_rows, walk
from ipal.backend.runtime import Runtime
from ipal.backend.sparse import SparseMatrix
from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.errors import ConfigError
from ipal.nn.embed import embeddings
from ipal.nn.encoders import Encoder
from ipal.nn.network import Network
from ipal.nn.per_node_gradients import Size, network_importance

ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class GraphCompute:
    """Handed to methods, which know no device, no processes and no memory limits."""

    runtime: Runtime

    @property
    def device(self) -> torch.device:
        return self.runtime.device

    def embeddings(self, network: Network, of: Graph | Task) -> Tensor:
        """Of all nodes of a graph, or of a task's training nodes; without gradient, in pieces where memory is short."""
        return embeddings(network.encoder, of, self.runtime)

    def outputs(self, network: Network, task: Task) -> Tensor:
        """Outputs of the head for a task's training nodes, with gradient."""
        found: Tensor = network(operators(task, self.runtime, network.encoder.needs))
        return found

    def labels(self, task: Task) -> Tensor:
        """Class numbers of a task's training nodes."""
        return task.derived("labels", self.device, lambda: torch.from_numpy(task.labels).to(self.device))

    def importance(self, network: Network, task: Task, output_gradient: Tensor, size: Size) -> dict[str, Tensor]:
        """Mean size of each training node's own gradient, for every parameter (see `network_importance`)."""
        return network_importance(network, task, output_gradient, size, self.runtime)

    def propagated(self, graph: Graph, steps: int, restart: float) -> NDArray[np.float32]:
        """Unit rows of features after so many steps over the graph; the newest are kept."""

        def made() -> NDArray[np.float32]:
            found = self.runtime.budget.room((graph.num_nodes, graph.num_features), np.float32)
            for begin, block in blocks(graph, steps, restart, self.runtime, dtype=torch.float32):
                found[:, begin : begin + block.shape[1]] = block.cpu()
            return found

        return graph.derived("propagated", (self.runtime, steps, restart), made, most=1)

    def lengths(self, graph: Graph, steps: int, restart: float) -> Tensor:
        """Of the rows that `propagated` gives, at least 1e-12, without making all of them."""

        def made() -> Tensor:
            squares = torch.zeros(graph.num_nodes, dtype=torch.float64, device=self.device)
            for _, block in blocks(graph, steps, restart, self.runtime, dtype=torch.float32):
                squares += block.square().sum(dim=1)
            return squares.sqrt_().clamp_min_(1e-12).float()

        return graph.derived("lengths", (self.runtime, steps, restart), made, most=1)

    def products(self, graph: Graph, weights: Tensor, steps: int, restart: float) -> Tensor:
        """The rows that `propagated` gives times (classes x features) weights; (P X) W as P (X W), for speed."""
        found = blocks(graph, steps, restart, self.runtime, weights.T, torch.float32)
        return torch.cat([block for _, block in found], dim=1)

    def class_sums(self, task: Task, classes: int, steps: int, restart: float) -> Tensor:
        """Sums by class of the rows that `propagated` gives for a task's training nodes, (classes, features).

        M (P X) as (M P) X: to propagate members is a matter of classes, not of features.
        """
        graph, labels = task.graph, self.labels(task)
        members = torch.zeros(graph.num_nodes, classes, device=self.device)
        members[torch.from_numpy(task.nodes).to(self.device), labels] = 1
        turned = replace(graph.by_source, whole_degree=graph.neighbours.degree)
        weights = walk(members, Spreading(turned, self.device, members.dtype), steps, restart).double().cpu().numpy()
        if isinstance(graph.x, sp.csr_array):
            sums = unit_rows(graph.x).T @ weights
        else:
            sums = np.zeros((graph.num_features, classes))
            for begin in range(0, graph.num_nodes, ROWS_AT_ONCE):
                some = graph.x[begin : begin + ROWS_AT_ONCE].astype(np.float64)
                lengths = np.linalg.norm(some, axis=1, keepdims=True)
                sums += some.T @ (weights[begin : begin + ROWS_AT_ONCE] / np.where(lengths > 0, lengths, 1))
        return torch.from_numpy(sums.T).float().contiguous().to(self.device)

    def rows(self, graph: Graph, source: RowSource) -> Tensor:
        """Fixed rows of propagated and projected features."""
        return source.propagated(graph)

    def by_rows(self, function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """A function of single rows, some rows at a time."""
        return torch.cat([function(piece) for piece in torch.split(rows, ROWS_AT_ONCE)])

    def first_layer(self, network: Network, graph: Graph) -> Tensor:
        """What the first layer gives for every node of a graph, before its activation; with gradient."""
        encoder = network.encoder
        return encoder.layer(operators(graph, self.runtime, encoder.needs).first, encoder.layers()[0])

    def propagation(self, graph: Graph) -> SparseMatrix:
        """D^-1/2 (A + I) D^-1/2 of all nodes."""
        return operators(graph, self.runtime).blocks[0].aggregation["symmetric"].matrix


class TensorCompute(ABC):
    """What predictions alone are computed with, as functions of tensors: to be traced, or differentiated."""

    @abstractmethod
    def _encoded(self, encoder: Encoder) -> Tensor:
        """Embeddings."""

    @abstractmethod
    def _walked(self, steps: int, restart: float, weights: Tensor | None = None) -> Tensor:
        """Unit rows of features, times weights if given, after so many steps over the graph."""

    def embeddings(self, network: Network, graph: Any) -> Tensor:
        for need in network.encoder.needs:
            if isinstance(need, Propagated):
                return network.encoder(of_rows(self._columns(need.columns)))  # type: ignore[no-any-return]
        return self._encoded(network.encoder)

    def lengths(self, graph: Any, steps: int, restart: float) -> Tensor:
        return row_lengths(self._walked(steps, restart))[:, 0].float()

    def products(self, graph: Any, weights: Tensor, steps: int, restart: float) -> Tensor:
        return self._walked(steps, restart, weights.T)

    def rows(self, graph: Any, source: RowSource) -> Tensor:
        return self._columns(source.columns)

    def by_rows(self, function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        return function(rows)

    def _columns(self, columns: Sequence[Columns]) -> Tensor:
        """As `backend.propagated.propagated`."""
        found = []
        for part in columns:
            projection = torch.from_numpy(part.projection) if part.is_projected else None
            walked = self._walked(part.steps, part.restart, projection)
            found.append((walked / row_lengths(walked[:, : part.linear])).float())
        return torch.cat(found, dim=1)

    def propagated(self, *given: Any, **options: Any) -> NoReturn:
        raise ConfigError(
            "The method cannot be exported or explained: its predictions use `propagated`, which gives no tensors."
        )

    propagation = outputs = labels = class_sums = propagated


def row_lengths(rows: Tensor) -> Tensor:
    """(rows, 1)"""
    found: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return found.clamp_min(1e-12)
