"""SLDA: streaming linear discriminant analysis on propagated features. No training.

Hayes & Kanan 2020, "Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis",
https://arxiv.org/abs/1909.01520: running class means and one shared covariance. Differences from the paper: features
propagated over the graph instead of a network's, unit rows with restarts (Gasteiger et al. 2019); the covariance is
exact, from sums, not updated node by node.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.errors import DataError
from ipal.methods.base import Compute, Space, TaskContext
from ipal.methods.shared.propagated_features import FeatureSums, PropagatedFeatures, picked
from ipal.methods.shared.scatter import ScatterMemory, centred
from ipal.nn.cholesky import mean_diagonal, shifted_cholesky
from ipal.system import free_memory


def discriminant(mean: Tensor, covariance: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
    r"""Weights and offsets of the linear discriminant of each class.

    .. math:: w_k = \Lambda \mu_k, \quad b_k = -\tfrac12 \mu_k \cdot \Lambda \mu_k, \quad
        \Lambda = \big[ (1 - \epsilon) \Sigma + \epsilon I \big]^{-1}

    Source: Hayes & Kanan 2020, Eq. 2 and 3. The identity is scaled by the mean variance, so that epsilon does
    not depend on the scale of features.
    """
    scale = mean_diagonal(covariance)  # without any variance one: the nearest mean
    root, failed = shifted_cholesky((1 - shrinkage) * covariance, shrinkage * scale)
    if failed:
        raise DataError(f"The covariance has no inverse with slda.shrinkage={shrinkage:g}: set a larger one.")
    weights = torch.cholesky_solve(mean.T, root).T.clone(memory_format=torch.contiguous_format)
    return weights, -0.5 * (mean * weights).sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class SLDA(PropagatedFeatures):
    """Streaming linear discriminant analysis on propagated features; nothing is trained."""

    shrinkage: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the identity in the covariance, the paper's epsilon."""

    name = "slda"
    title = "SLDA"

    def init(self, space: Space) -> ScatterMemory:
        n, device = space.num_features, space.device
        if device.type == "cpu":
            free_memory.need(8 * n**2, f"The covariance of {n} features", "use fewer features")
        return ScatterMemory(FeatureSums.empty(n, device), torch.zeros(n, n, device=device))

    def end_task(self, network: None, memory: Any, context: TaskContext, rng: torch.Generator) -> Any:
        task, compute = context.task, context.compute
        sums = memory.sums.plus(*self.sums_of(task, context.classes, compute))
        rows = compute.propagated(task.graph, self.steps, self.restart)
        return memory.learned(sums, centred(rows, task, sums, compute.runtime.budget))

    def solved(self, memory: ScatterMemory) -> tuple[Tensor, Tensor]:
        """Weights and offsets of the classes; solved when they are first asked for."""
        return memory.sums.derived(
            "discriminant", None, lambda: discriminant(memory.sums.mean, memory.covariance, self.shrinkage)
        )

    def forward(self, memory: Any, graph: Graph, compute: Compute, nodes: Tensor | None = None) -> Tensor:
        weights, offsets = self.solved(memory)
        return picked(compute.products(graph, weights, self.steps, self.restart) + offsets, nodes)

    def mean_logs(self, memory: ScatterMemory) -> Tensor:
        weights, offsets = self.solved(memory)
        return memory.sums.mean @ weights.T + offsets

    def working_memory(self, features: int, classes: int, nodes: int, piece: int) -> int:
        return super().working_memory(features, classes, nodes, piece) + 24 * features**2  # the covariance, its factor

    def statistics(self, memory: ScatterMemory) -> FeatureSums:
        return memory.sums

    def without_tasks(self, memory: Any, tasks: Sequence[Task], first: int, compute: Compute) -> Any:
        rows = [compute.propagated(task.graph, self.steps, self.restart)[task.nodes] for task in tasks]
        sums = super().without_tasks(memory.sums, tasks, first, compute)
        return memory.without(sums, map(torch.from_numpy, rows))
