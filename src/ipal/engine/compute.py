"""What methods compute on whole tasks and graphs, on the device of a run."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ipal.backend.operators import operators
from ipal.backend.runtime import Runtime
from ipal.backend.sparse import SparseMatrix
from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.nn.embed import embeddings
from ipal.nn.network import Network
from ipal.nn.per_node_gradients import network_importance, whole_propagation
from ipal.nn.slope_patterns import Size


@dataclass(frozen=True)
class Compute:
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

    def first_layer(self, network: Network, graph: Graph) -> Tensor:
        """What the first layer gives for every node of a graph, before its activation; with gradient."""
        return network.encoder.first_layer(operators(graph, self.runtime, network.encoder.needs))

    def propagation(self, graph: Graph) -> SparseMatrix:
        """The propagation matrix of a graph."""
        return whole_propagation(graph, self.runtime)
