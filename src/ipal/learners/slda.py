"""SLDA: streaming linear discriminant analysis on propagated features. No training.

Hayes & Kanan 2020, "Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis",
https://arxiv.org/abs/1909.01520: running class means and one shared covariance. Differences from the paper: features
propagated over the graph instead of a network's; the covariance is exact, from sums, not updated node by node.
"""

import dataclasses
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.data.graph import Graph, some_features
from ipal.data.streams import Task
from ipal.errors import DataError
from ipal.learners.analytic.ridge import mean_diagonal, shifted_cholesky
from ipal.learners.checks import check_symmetric
from ipal.learners.kept import Kept
from ipal.learners.state import laid_out
from ipal.learners.training_free import TrainingFree, dense, spread
from ipal.learners.values import Extents, Remembered
from ipal.system import free_memory


@dataclasses.dataclass(frozen=True, eq=False)
class Discriminant:
    """A linear function of features for every class."""

    weights: Tensor
    """(classes, features)"""
    offsets: Tensor
    """(classes,)"""


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
    weights = laid_out(torch.cholesky_solve(mean.T, root).T)
    return weights, -0.5 * (mean * weights).sum(dim=1)


@dataclass(kw_only=True, eq=False)
class SLDA(TrainingFree):
    """Streaming linear discriminant analysis on propagated features; nothing is trained."""

    shrinkage: float = Field(1e-2, gt=0, le=1)
    """Share of the identity in the covariance, the paper's epsilon."""

    name = "slda"
    title = "SLDA"
    kept = (
        Kept(
            "scatter",
            "sum of products of features within classes, one matrix for all",
            shape=("features", "features"),
            check=lambda learner, scatter, whole: check_symmetric(scatter, "scatter"),
        ),
        Kept(
            "discriminant",
            "weights and offset of every class",
            shape={"weights": ("classes", "features"), "offsets": ("classes",)},
        ),
    )

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        device = self.generator_.device
        if device.type == "cpu":
            free_memory.need(8 * num_features**2, f"The covariance of {num_features} features", "use fewer features")
        self.scatter_ = torch.zeros(num_features, num_features, device=device)
        self.discriminant_ = Discriminant(torch.zeros(0, num_features, device=device), torch.zeros(0, device=device))

    def absorb(self, task: Task, rows: NDArray[Any]) -> None:
        """Scatter around the class means, and between the parts of a class that comes again."""
        budget = self.runtime_.budget
        x = some_features(self.propagated(task.graph), task.nodes, budget)
        scatter = self.scatter_.clone()
        for row in np.unique(rows):
            own = np.flatnonzero(rows == row)
            mean = torch.from_numpy(np.asarray(some_features(x, own, budget).mean(axis=0)).reshape(-1)).to(scatter)
            for begin in range(0, len(own), 4096):
                part = dense(x[own[begin : begin + 4096]]).to(scatter.device) - mean
                scatter.addmm_(part.T, part)
            before = int(self.sums_.count[row]) - len(own)
            if before:
                apart = mean - (self.sums_.sum[row] - len(own) * mean) / before
                scatter.addr_(apart, apart, alpha=before * len(own) / (before + len(own)))
        freedom = max(1, int(self.sums_.count.sum()) - len(self.sums_.count))
        self.discriminant_ = Discriminant(*discriminant(self.sums_.mean, scatter / freedom, self.shrinkage))
        self.scatter_ = scatter

    def scores(self, graph: Graph) -> Tensor:
        return self.products(graph, self.discriminant_.weights) + self.discriminant_.offsets

    def exported(self, rows: Any) -> tuple[Any, Any]:
        scores = spread(rows @ self.discriminant_.weights.T, self.hops) + self.discriminant_.offsets
        return scores, scores.softmax()

    @classmethod
    def working_memory(cls, extents: Extents) -> tuple[int, int]:
        at_once, in_pieces = super().working_memory(extents)
        covariance = 24 * extents.features**2  # and its factor
        rows = 4 * extents.features * (extents.tested_nodes + 2 * extents.task_nodes)  # propagated
        return at_once + rows + covariance, in_pieces + covariance

    def remembered(self) -> dict[str, Remembered]:
        kept = super().remembered()
        return {name: dataclasses.replace(one, shared=self._products) for name, one in kept.items()}

    def _products(self) -> Tensor:
        """Sum of products of all rows: what scatters around the class means, and the means."""
        return self.scatter_ + self.sums_.sum.T @ self.sums_.mean
