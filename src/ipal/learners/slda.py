"""SLDA: streaming linear discriminant analysis on propagated features. No training.

Hayes & Kanan 2020, "Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis",
https://arxiv.org/abs/1909.01520: running class means and one shared covariance. Differences from the paper: features
propagated over the graph instead of a network's, unit rows with restarts (Gasteiger et al. 2019); the covariance is
exact, from sums, not updated node by node.
"""

import dataclasses
from collections.abc import Iterator
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
from ipal.learners.training_free import FeatureSums, TrainingFree
from ipal.learners.values import Extents, Remembered
from ipal.system import free_memory

ROWS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class Discriminant:
    """A linear function of features for every class."""

    weights: Tensor
    """(classes, features)"""
    offsets: Tensor
    """(classes,)"""


@dataclasses.dataclass(frozen=True, eq=False)
class Scatter:
    """Never changed in place: learning replaces it."""

    matrix: Tensor
    """(features, features)"""


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


def _add(scatter: Tensor, parts: list[Tensor]) -> None:
    """Add the products of all rows to a matrix, in place."""
    if parts:
        rows = torch.cat(parts)
        scatter.addmm_(rows.T, rows)


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
            look=lambda learner: {"scatter": learner.scatter_.diagonal()},  # no product is larger than two squares
        ),
        Kept(
            "discriminant",
            "weights and offset of every class",
            shape={"weights": ("classes", "features"), "offsets": ("classes",)},
            look=lambda learner: {},  # not solved before it is asked for
        ),
    )

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        device = self.generator_.device
        if device.type == "cpu":
            free_memory.need(8 * num_features**2, f"The covariance of {num_features} features", "use fewer features")
        self.scatter_ = torch.zeros(num_features, num_features, device=device)
        self.solved_: Discriminant | None
        self.discriminant_ = Discriminant(torch.zeros(0, num_features, device=device), torch.zeros(0, device=device))

    def absorb(self, task: Task, rows: NDArray[Any]) -> None:
        scatter, parts = self.scatter_.clone(), list[Tensor]()
        for comes_again, part in self._centred(task, rows):
            parts.append(part)
            # To add many small parts one by one would pass over the whole matrix for each.
            if not comes_again or sum(map(len, parts)) >= ROWS_AT_ONCE:
                _add(scatter, parts)
                parts = []
        _add(scatter, parts)
        self.scatter_, self.solved_ = scatter, None

    def regroup(self, sums: FeatureSums) -> None:
        # Products of all rows stay the same: what leaves the means is in the scatter, and the other way round.
        before, after = (one.sum.double().T @ one.mean.double() for one in (self.sums_, sums))
        self.scatter_, self.solved_ = (self.scatter_.double() + before - after).to(self.scatter_), None
        super().regroup(sums)

    def _centred(self, task: Task, rows: NDArray[Any]) -> Iterator[tuple[bool, Tensor]]:
        """Rows around their class means, and whether their class comes again; new ones first.

        Of a class that comes again also one that scatters as its old and its new part do around their common mean.
        """
        budget, device = self.runtime_.budget, self.scatter_.device
        x = some_features(self.propagated(task.graph), task.nodes, budget)
        new = np.bincount(rows, minlength=len(self.sums_.count))
        old = self.sums_.count.cpu().numpy() - new
        for row in sorted(np.unique(rows).tolist(), key=lambda row: old[row] > 0):
            own = np.flatnonzero(rows == row)
            found = np.asarray(some_features(x, own, budget).mean(axis=0)).reshape(-1)
            mean = torch.from_numpy(found).to(self.scatter_)
            if n := int(old[row]):
                apart = mean - (self.sums_.sum[row] - len(own) * mean) / n
                yield True, ((n * len(own) / (n + len(own))) ** 0.5 * apart)[None]
            for begin in range(0, len(own), ROWS_AT_ONCE):
                yield n > 0, torch.from_numpy(x[own[begin : begin + ROWS_AT_ONCE]]).to(device) - mean

    @property
    def scatter_(self) -> Tensor:
        return self.within_.matrix

    @scatter_.setter
    def scatter_(self, matrix: Tensor) -> None:
        self.within_ = Scatter(matrix)

    @property
    def discriminant_(self) -> Discriminant:
        """Solved when it is asked for, and kept until something is learned."""
        if self.solved_ is None:
            freedom = max(1, int(self.sums_.count.sum()) - len(self.sums_.count))
            self.solved_ = Discriminant(*discriminant(self.sums_.mean, self.scatter_ / freedom, self.shrinkage))
        return self.solved_

    @discriminant_.setter
    def discriminant_(self, found: Discriminant) -> None:
        self.solved_ = found

    def scores(self, graph: Graph) -> Tensor:
        return self.products(graph, self.discriminant_.weights) + self.discriminant_.offsets

    @property
    def separation(self) -> float:
        """Squared Mahalanobis distance of a class mean from the nearest other, the median of all classes.

        The fewer nodes, the larger, where features are many; a small class far from all others changes little.
        """
        products = self.discriminant_.weights @ self.sums_.mean.T
        own = products.diagonal()
        apart = own[:, None] + own - products - products.T
        nearest = apart.fill_diagonal_(torch.inf).amin(dim=1)
        return max(float(nearest.median()), 1e-12) if len(own) > 1 else 1e-12

    def exported(self, rows: Any) -> tuple[Any, Any]:
        unit = rows.within_one().unit()
        scores = self.spread(unit @ self.discriminant_.weights.T) + self.discriminant_.offsets
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
