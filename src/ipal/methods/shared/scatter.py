"""Sums of features by class, and one matrix of how features scatter within classes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

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

    def learned(self, sums: FeatureSums, rows: Iterable[Tensor]) -> "ScatterMemory":
        """With further rows around their class means (see `centred`)."""
        scatter = self.scatter.clone()
        for part in rows:
            scatter.addmm_(part.T, part)
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

    def products_of_all(self) -> Tensor:
        """Sum of products of all rows: what scatters around the class means, and the means."""
        return self.scatter + self.sums.sum.T @ self.sums.mean


def centred(propagated: NDArray[np.float32], task: Task, sums: FeatureSums, budget: Budget) -> Iterator[Tensor]:
    """Rows of a task around their class means, some at a time; those of new classes first.

    Of a class that comes again also one that scatters as its old and its new part do around their common mean.
    `sums` are those with the task.
    """
    x, rows = some_features(propagated, task.nodes, budget), task.labels
    new = np.bincount(rows, minlength=len(sums.count))
    old = sums.count.cpu().numpy() - new
    again = list[Tensor]()  # of small parts together: each that is added passes over the whole matrix
    for row in sorted(np.unique(rows).tolist(), key=lambda row: old[row] > 0):
        own = np.flatnonzero(rows == row)
        found = np.asarray(some_features(x, own, budget).mean(axis=0)).reshape(-1)
        mean = torch.from_numpy(found).to(sums.sum)
        begins, n = range(0, len(own), ROWS_AT_ONCE), int(old[row])
        parts = (torch.from_numpy(x[own[b : b + ROWS_AT_ONCE]]).to(sums.sum.device) - mean for b in begins)
        if n == 0:
            yield from parts
            continue
        apart = mean - (sums.sum[row] - len(own) * mean) / n
        for part in chain([((n * len(own) / (n + len(own))) ** 0.5 * apart)[None]], parts):
            again.append(part)
            if sum(map(len, again)) >= ROWS_AT_ONCE:
                yield torch.cat(again)
                again = []
    if again:
        yield torch.cat(again)
