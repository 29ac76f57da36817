"""What methods compute on whole tasks and graphs, on the device of a run."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.operators import of_rows, operators
from ipal.backend.propagated import Columns, Propagated, RowSource
from ipal.backend.runtime import Runtime
from ipal.backend.sparse import SparseMatrix
from ipal.data.graph import Features, Graph
from ipal.data.task import Task
from ipal.errors import ConfigError
from ipal.nn import propagated_features
from ipal.nn.embed import embeddings
from ipal.nn.encoders import Encoder
from ipal.nn.network import Network
from ipal.nn.per_node_gradients import Size, network_importance, whole_propagation

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

    def encode(self, network: Network, task: Task) -> Tensor:
        """Embeddings of a task's training nodes, with gradient."""
        found: Tensor = network.encoder(operators(task, self.runtime, network.encoder.needs))
        return found

    def outputs(self, network: Network, task: Task) -> Tensor:
        """Outputs of the head for a task's training nodes, with gradient."""
        found: Tensor = network.classifier(self.encode(network, task))
        return found

    def labels(self, task: Task) -> Tensor:
        """Class numbers of a task's training nodes."""
        return task.derived("labels", self.device, lambda: torch.from_numpy(task.labels).to(self.device))

    def importance(self, network: Network, task: Task, output_gradient: Tensor, size: Size) -> dict[str, Tensor]:
        """Mean size of each training node's own gradient, for every parameter (see `network_importance`)."""
        return network_importance(network, task, output_gradient, size, self.runtime)

    def propagated(self, graph: Graph, steps: int, restart: float) -> NDArray[np.float32]:
        """Unit rows of features after so many steps over the graph."""
        return propagated_features.propagated(graph, steps, restart, self.runtime)

    def lengths(self, graph: Graph, steps: int, restart: float) -> Tensor:
        """Of the rows that `propagated` gives, without making all of them."""
        return torch.tensor(propagated_features.lengths(graph, steps, restart, self.runtime), device=self.device)

    def products(self, graph: Graph, weights: Tensor, steps: int, restart: float) -> Tensor:
        """The rows that `propagated` gives times (classes x features) weights; (P X) W as P (X W), for speed."""
        by = weights.T.cpu().numpy()
        start = np.concatenate([unit @ by for _, unit in self.unit_rows(graph)])
        return torch.from_numpy(self.walked(graph, start, steps, restart)).to(weights.device)

    def rows(self, graph: Graph, source: RowSource) -> Tensor:
        """Fixed rows of propagated and projected features."""
        return source.propagated(graph)

    def by_rows(self, function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """A function of single rows, some rows at a time."""
        pieces = [rows[begin : begin + ROWS_AT_ONCE] for begin in range(0, max(1, len(rows)), ROWS_AT_ONCE)]
        return torch.cat([function(piece) for piece in pieces])

    def walked(
        self, graph: Graph, start: NDArray[np.float32], steps: int, restart: float, *, turned: bool = False
    ) -> NDArray[np.float32]:
        """Columns propagated over the graph, or (`turned`) over its transpose."""
        return propagated_features.walked(graph, start, steps, restart, self.runtime, turned=turned)

    def unit_rows(self, graph: Graph) -> Iterator[tuple[slice, Features]]:
        """Features scaled to unit length, some rows at a time."""
        return propagated_features.unit_pieces(graph.x)

    def first_layer(self, network: Network, graph: Graph) -> Tensor:
        """What the first layer gives for every node of a graph, before its activation; with gradient."""
        return network.encoder.first_layer(operators(graph, self.runtime, network.encoder.needs))

    def propagation(self, graph: Graph) -> SparseMatrix:
        """The propagation matrix of a graph."""
        return whole_propagation(graph, self.runtime)


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
            "The method cannot be exported or explained: its predictions use `propagated`, `walked` or `unit_rows`, "
            "which give no tensors."
        )

    walked = unit_rows = propagation = outputs = labels = propagated


def row_lengths(rows: Tensor) -> Tensor:
    """(rows, 1)"""
    found: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return found.clamp_min(1e-12)
