"""SLDA: streaming linear discriminant analysis on propagated features. No training.

Hayes & Kanan 2020, "Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis",
https://arxiv.org/abs/1909.01520: running class means and one shared covariance. Differences from the paper: features
propagated over the graph instead of a network's, unit rows with restarts (Gasteiger et al. 2019); the covariance is
exact, from sums, not updated node by node.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from ipal.backend.checks import check_symmetric
from ipal.data.graph import Graph, some_features
from ipal.data.task import Task
from ipal.errors import DataError
from ipal.methods.base import Compute, Extents, Remembered, Space, TaskContext
from ipal.methods.shared.propagated_features import FeatureSums, PropagatedFeatures, picked
from ipal.nn.cholesky import mean_diagonal, shifted_cholesky
from ipal.system import free_memory
from ipal.system.memory_budget import Budget

ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class ScatterMemory:
    """Never changed in place: learning gives another one."""

    sums: FeatureSums
    """per class: sum of its propagated features, number of nodes behind it"""
    scatter: Tensor
    """sum of products of features within classes, one matrix for all"""

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        self.sums.check(classes, parameters, whole)
        check_symmetric(self.scatter, "scatter")

    def finite_parts(self) -> dict[str, Tensor]:
        """No product is larger than two squares."""
        return {"scatter": self.scatter.diagonal(), "sums": self.sums.sum}

    @property
    def covariance(self) -> Tensor:
        """Of all classes together."""
        return self.scatter / max(1, int(self.sums.count.sum()) - len(self.sums.count))

    def learned(self, sums: FeatureSums, rows: Iterable[tuple[bool, Tensor]]) -> "ScatterMemory":
        """With further rows around their class means (see `centred`)."""
        scatter, parts = self.scatter.clone(), list[Tensor]()
        for comes_again, part in rows:
            parts.append(part)
            # To add many small parts one by one would pass over the whole matrix for each.
            if not comes_again or sum(map(len, parts)) >= ROWS_AT_ONCE:
                _add(scatter, parts)
                parts = []
        _add(scatter, parts)
        return ScatterMemory(sums, scatter)

    def regrouped(self, sums: FeatureSums) -> "ScatterMemory":
        """With the same nodes in other classes.

        Products of all rows stay the same: what leaves the means is in the scatter, and the other way round.
        """
        before, after = (one.sum.double().T @ one.mean.double() for one in (self.sums, sums))
        return ScatterMemory(sums, (self.scatter.double() + before - after).to(self.scatter))

    def without(self, sums: FeatureSums, rows: Iterable[Tensor]) -> "ScatterMemory":
        """Without some rows; `sums` are those of the others."""
        products = self.scatter.double() + self.sums.sum.double().T @ self.sums.mean.double()
        for part in rows:
            some = part.to(products)
            products -= some.T @ some
        products -= sums.sum.double().T @ (sums.sum.double() / sums.count.clamp_min(1)[:, None])
        return ScatterMemory(sums, products.to(self.scatter))

    def products(self) -> Tensor:
        """Sum of products of all rows: what scatters around the class means, and the means."""
        return self.scatter + self.sums.sum.T @ self.sums.mean


def centred(
    propagated: NDArray[np.float32], task: Task, sums: FeatureSums, budget: Budget
) -> Iterator[tuple[bool, Tensor]]:
    """Rows of a task around their class means, and whether their class comes again; new ones first.

    Of a class that comes again also one that scatters as its old and its new part do around their common mean.
    `sums` are those with the task.
    """
    x, rows = some_features(propagated, task.nodes, budget), task.labels
    new = np.bincount(rows, minlength=len(sums.count))
    old = sums.count.cpu().numpy() - new
    for row in sorted(np.unique(rows).tolist(), key=lambda row: old[row] > 0):
        own = np.flatnonzero(rows == row)
        found = np.asarray(some_features(x, own, budget).mean(axis=0)).reshape(-1)
        mean = torch.from_numpy(found).to(sums.sum)
        if n := int(old[row]):
            apart = mean - (sums.sum[row] - len(own) * mean) / n
            yield True, ((n * len(own) / (n + len(own))) ** 0.5 * apart)[None]
        for begin in range(0, len(own), ROWS_AT_ONCE):
            yield n > 0, torch.from_numpy(x[own[begin : begin + ROWS_AT_ONCE]]).to(sums.sum.device) - mean


def _add(scatter: Tensor, parts: list[Tensor]) -> None:
    """Add the products of all rows to a matrix, in place."""
    if parts:
        rows = torch.cat(parts)
        scatter.addmm_(rows.T, rows)


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
        runtime = context.compute.runtime
        sums = memory.sums.plus(*self.sums_of(context.task, context.classes, context.compute))
        rows = self.propagated(context.task.graph, context.compute)
        return memory.learned(sums, centred(rows, context.task, sums, runtime.budget))

    def solved(self, memory: ScatterMemory) -> tuple[Tensor, Tensor]:
        """Weights and offsets of the classes; solved when they are first asked for."""
        return memory.sums.derived(
            "discriminant", None, lambda: discriminant(memory.sums.mean, memory.covariance, self.shrinkage)
        )

    def forward(self, memory: Any, graph: Graph, compute: Compute, nodes: Tensor | None = None) -> Tensor:
        weights, offsets = self.solved(memory)
        return picked(self.products(graph, weights, compute) + offsets, nodes)

    def mean_logs(self, memory: ScatterMemory) -> Tensor:
        weights, offsets = self.solved(memory)
        return memory.sums.mean @ weights.T + offsets

    def working_memory(self, extents: Extents) -> tuple[int, int]:
        at_once, in_pieces = super().working_memory(extents)
        covariance = 24 * extents.features**2  # and its factor
        rows = 4 * extents.features * (extents.tested_nodes + 2 * extents.task_nodes)  # propagated
        return at_once + rows + covariance, in_pieces + covariance

    def statistics(self, memory: ScatterMemory) -> FeatureSums:
        return memory.sums

    def remembered(self, memory: ScatterMemory) -> list[Remembered]:
        return [replace(one, shared=memory.products) for one in super().remembered(memory)]

    def merge_classes(self, memory: ScatterMemory, places: Tensor, classes: int) -> ScatterMemory:
        return memory.regrouped(memory.sums.merged(places, classes))

    def without_tasks(self, memory: Any, tasks: Sequence[Task], first: int, compute: Compute) -> ScatterMemory:
        rows = [self.propagated(task.graph, compute)[task.nodes] for task in tasks]
        found: ScatterMemory = memory.without(self.less(memory.sums, tasks, compute), map(torch.from_numpy, rows))
        return found

    def of_classes(self, memory: ScatterMemory, classes: Sequence[int]) -> ScatterMemory:
        return ScatterMemory(memory.sums.of_classes(classes), memory.scatter)
