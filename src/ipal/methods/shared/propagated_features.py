"""Methods that train nothing: class statistics of unit rows of features that were propagated over the graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ipal.backend.checks import check_counts, require
from ipal.config import Hops, Restart
from ipal.data.graph import Derives, Graph
from ipal.data.task import Task
from ipal.methods.base import Compute, OnePass, relative_distance, with_middle


@dataclass(frozen=True, eq=False)
class FeatureSums(Derives):
    """Sums of propagated features, by class, in the order in which classes came."""

    sum: Tensor
    """per class: sum of its propagated features"""
    count: Tensor
    """number of training nodes of every class"""

    @classmethod
    def empty(cls, num_features: int, device: torch.device) -> "FeatureSums":
        return cls(torch.zeros(0, num_features, device=device), torch.zeros(0, dtype=torch.int64, device=device))

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        require(len(self.sum) == len(self.count) == classes, "it has not one sum for every class")
        check_counts(self.count, "count")

    @property
    def mean(self) -> Tensor:
        """(classes, features)"""
        return self.sum / self.count[:, None]

    def plus(self, sums: Tensor, counts: Tensor) -> "FeatureSums":
        """With more nodes of all classes known by now."""
        more, pad = len(sums) - len(self.sum), torch.nn.functional.pad
        return FeatureSums(pad(self.sum, (0, 0, 0, more)) + sums, pad(self.count, (0, more)) + counts)

    def merged(self, places: Tensor, classes: int) -> "FeatureSums":
        """Class i becomes a part of class `places[i]` of so many."""
        total, count = self.sum.new_zeros(classes, self.sum.shape[1]), self.count.new_zeros(classes)
        return FeatureSums(total.index_add(0, places, self.sum), count.index_add(0, places, self.count))

    def of_classes(self, classes: Sequence[int]) -> "FeatureSums":
        """Some classes, in this order."""
        return FeatureSums(self.sum[list(classes)], self.count[list(classes)])


@dataclass(frozen=True, kw_only=True)
class PropagatedFeatures(OnePass):
    """Sums over propagated features, one row a class; one pass, no network, no order of classes."""

    steps: Hops = 10
    """How many times features are propagated."""
    restart: Restart = 0.15
    """Share of a node's own features in every step."""

    def reach(self, memory: Any) -> int:
        return self.steps

    def sums_of(self, task: Task, classes: int, compute: Compute) -> tuple[Tensor, Tensor]:
        """Sums of propagated features, and numbers of nodes, of every class."""
        counts = torch.bincount(compute.labels(task), minlength=classes)
        return compute.class_sums(task, classes, self.steps, self.restart), counts

    def embed(self, memory: Any, graph: Graph, compute: Compute) -> Tensor:
        return torch.from_numpy(compute.propagated(graph, self.steps, self.restart)).to(compute.device)

    def novelty(self, memory: Any, scores: Tensor, graph: Graph, rows: Tensor | None, compute: Compute) -> Tensor:
        kept = self.statistics(memory)
        assert kept is not None, "sums are kept"
        products = compute.products(graph, with_middle(kept.mean), self.steps, self.restart)
        return relative_distance(products / compute.lengths(graph, self.steps, self.restart)[:, None])

    def merge_classes(self, memory: Any, places: Tensor, classes: int) -> Any:
        return memory.merged(places, classes)

    def without_tasks(self, memory: Any, tasks: Sequence[Task], first: int, compute: Compute) -> Any:
        for task in tasks:
            taken, counts = self.sums_of(task, len(memory.count), compute)
            memory = memory.plus(-taken, -counts)
        return memory


def picked(scores: Tensor, nodes: Tensor | None) -> Tensor:
    """Rows of some nodes, or all."""
    return scores if nodes is None else scores[nodes.to(scores.device)]
