"""SLDA: streaming linear discriminant analysis on propagated features. No training.

Hayes & Kanan 2020, "Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis",
https://arxiv.org/abs/1909.01520: running class means and one shared covariance. Differences from the paper: features
propagated over the graph instead of a network's; the covariance is exact, from sums, not updated node by node.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

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
from ipal.learners.base import Remembered
from ipal.learners.checks import Shapes, check_symmetric, check_type
from ipal.learners.state import laid_out
from ipal.learners.training_free import TrainingFree, dense, propagated
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
    weights = laid_out(torch.cholesky_solve(mean.T, root).T)
    return weights, -0.5 * (mean * weights).sum(dim=1)


@dataclass(kw_only=True, eq=False)
class SLDA(TrainingFree):
    """Streaming linear discriminant analysis on propagated features; nothing is trained."""

    shrinkage: float = Field(1e-2, gt=0, le=1)
    """Share of the identity in the covariance, the paper's epsilon."""

    name: ClassVar[str] = "slda"
    keeps: ClassVar[dict[str, str]] = TrainingFree.keeps | {
        "scatter": "sum of products of features within classes, one matrix for all",
        "discriminant": "weights and offset of every class",
    }

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        device = self.generator_.device
        if device.type == "cpu":
            free_memory.need(8 * num_features**2, f"The covariance of {num_features} features", "use fewer features")
        self.scatter_ = torch.zeros(num_features, num_features, device=device)
        self.weights_, self.offsets_ = torch.zeros(0, num_features, device=device), torch.zeros(0, device=device)

    def absorb(self, task: Task, rows: NDArray[Any]) -> None:
        """Scatter around the class means, and between the parts of a class that comes again."""
        x = some_features(propagated(task.graph, self.hops), task.nodes)
        scatter = self.scatter_.clone()
        for row in np.unique(rows):
            own = np.flatnonzero(rows == row)
            mean = torch.from_numpy(np.asarray(some_features(x, own).mean(axis=0)).reshape(-1)).to(scatter)
            for begin in range(0, len(own), 4096):
                part = dense(x[own[begin : begin + 4096]]).to(scatter.device) - mean
                scatter.addmm_(part.T, part)
            before = int(self.count_[row]) - len(own)
            if before:
                apart = mean - (self.sum_[row] - len(own) * mean) / before
                scatter.addr_(apart, apart, alpha=before * len(own) / (before + len(own)))
        freedom = max(1, int(self.count_.sum()) - len(self.count_))
        self.weights_, self.offsets_ = discriminant(self.mean_, scatter / freedom, self.shrinkage)
        self.scatter_ = scatter

    def scores(self, graph: Graph) -> Tensor:
        return self.products(graph, self.weights_) + self.offsets_

    def remembered(self) -> dict[str, Remembered]:
        kept = super().remembered()
        return {name: dataclasses.replace(one, shared=self._products) for name, one in kept.items()}

    def _products(self) -> Tensor:
        """Sum of products of all rows: what scatters around the class means, and the means."""
        return self.scatter_ + self.sum_.T @ self.mean_

    def tensors(self) -> dict[str, Tensor]:
        own = {"discriminant.weights": self.weights_, "discriminant.offsets": self.offsets_}
        return super().tensors() | {"scatter": self.scatter_} | own

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        super().load_tensors(tensors)
        device = self.generator_.device
        self.scatter_ = tensors["scatter"].to(device)
        self.weights_ = tensors["discriminant.weights"].to(device)
        self.offsets_ = tensors["discriminant.offsets"].to(device)

    def shapes(self, facts: Mapping[str, Any]) -> Shapes:
        yield from super().shapes(facts)
        classes, width = len(facts["labels"]), facts["num_features"]
        yield "scatter", (width, width)
        yield "discriminant.weights", (classes, width)
        yield "discriminant.offsets", (classes,)

    def check(self, whole: bool) -> None:
        super().check(whole)
        check_type(torch.float32, self.scatter_, self.weights_, self.offsets_)
        check_symmetric(self.scatter_, "scatter")
