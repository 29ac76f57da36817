"""NCM: nearest class mean on propagated features. No training: the reference that every table should have.

Mensink et al. 2013, "Distance-Based Image Classification", with a fixed representation: features propagated over the
graph. Differences from the paper: nearness is a cosine; no metric is learned. Features are
scaled to unit length, and propagated with restarts (Gasteiger et al. 2019).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ipal.config import Positive, Restart
from ipal.data.graph import Graph
from ipal.methods.base import Compute, Space, TaskContext
from ipal.methods.shared.propagated_features import FeatureSums, PropagatedFeatures, picked
from ipal.nn import losses


@dataclass(frozen=True, kw_only=True)
class NCM(PropagatedFeatures):
    """Nearest class mean on propagated features; nothing is trained."""

    restart: Restart = 0.3
    """Share of a node's own features in every step."""
    tau: Positive = 0.07
    """Temperature of `predict_proba`."""

    name = "ncm"
    title = "NCM"

    def init(self, space: Space) -> FeatureSums:
        return FeatureSums.empty(space.num_features, space.device)

    def end_task(self, network: None, memory: FeatureSums, context: TaskContext, rng: torch.Generator) -> FeatureSums:
        return memory.plus(*self.sums_of(context.task, context.classes, context.compute))

    def forward(self, memory: FeatureSums, graph: Graph, compute: Compute, nodes: Tensor | None = None) -> Tensor:
        """Cosines times the node's own length: the same order of classes, without that length."""
        return picked(compute.products(graph, losses.unit(memory.mean), self.steps, self.restart), nodes)

    def probabilities(self, memory: Any, scores: Tensor, graph: Graph, compute: Compute, nodes: Any = None) -> Tensor:
        lengths = picked(compute.lengths(graph, self.steps, self.restart), nodes)
        return (scores / lengths[:, None] / self.tau).softmax(dim=-1)

    def mean_logs(self, memory: FeatureSums) -> Tensor:
        return losses.cosine(memory.mean, memory.mean) / self.tau
