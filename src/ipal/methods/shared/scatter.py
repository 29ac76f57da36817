"""Sums of features by class, and one matrix of how features scatter within classes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.checks import check_symmetric
from ipal.data.graph import some_features
from ipal.data.task import Task
from ipal.methods.shared.propagated_features import FeatureSums
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

    def of_classes(self, classes: Sequence[int]) -> "ScatterMemory":
        """Some classes, in this order."""
        return ScatterMemory(self.sums.of_classes(classes), self.scatter)

    def merged(self, places: Tensor, classes: int) -> "ScatterMemory":
        """Class i becomes a part of class `places[i]` of so many.

        Products of all rows stay the same: what leaves the means is in the scatter, and the other way round.
        """
        sums = self.sums.merged(places, classes)
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
