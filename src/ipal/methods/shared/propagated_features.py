"""Methods that train nothing: class statistics of unit rows of features that were propagated over the graph."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.checks import check_counts, check_taught, require
from ipal.backend.propagated import unit_rows, walked_rows
from ipal.backend.runtime import Runtime
from ipal.config import Hops, Restart
from ipal.data.derived import Derives
from ipal.data.graph import Features, Graph
from ipal.data.task import Task
from ipal.methods.base import Compute, OnePass
from ipal.nn.embed import fits

COLUMNS_AT_ONCE = 64
"""Columns of features that are propagated together."""
VALUES_AT_ONCE = 2**22


def propagated(graph: Graph, steps: int, restart: float, runtime: Runtime) -> NDArray[np.float32]:
    """Unit rows of features after so many steps over the graph (see `walked`); the newest are kept."""

    def made() -> NDArray[np.float32]:
        found = runtime.budget.room((graph.num_nodes, graph.num_features), np.float32)
        for begin, block in _blocks(graph, steps, restart, runtime):
            found[:, begin : begin + COLUMNS_AT_ONCE] = block
        return found

    return graph.derived("propagated", (steps, restart), made, most=1)


def lengths(graph: Graph, steps: int, restart: float, runtime: Runtime) -> NDArray[np.float32]:
    """Of the rows that `propagated` would give, without these; at least 1e-12."""

    def made() -> NDArray[np.float32]:
        squares = np.zeros(graph.num_nodes)
        for _, block in _blocks(graph, steps, restart, runtime):
            squares += np.einsum("ij,ij->i", block, block)
        return np.sqrt(squares).clip(min=1e-12).astype(np.float32)

    return graph.derived("lengths", (steps, restart), made, most=1)


def walked(
    graph: Graph, start: NDArray[np.float32], steps: int, restart: float, runtime: Runtime, *, turned: bool = False
) -> NDArray[np.float32]:
    r"""Personalised PageRank by power iteration: a polynomial of the propagation matrix, or of its transpose, times H.

    .. math:: \Big[ (1 - r)^K \hat A^K + r \sum_{k < K} (1 - r)^k \hat A^k \Big] H

    Source: Gasteiger et al. 2019, "Predict then Propagate: Graph Neural Networks meet Personalized PageRank", Eq. 4.
    """
    found = start
    with runtime.tracer.span("propagation"):
        for _ in range(steps):
            found = _spread(graph, found, runtime, turned=turned)
            found *= np.float32(1 - restart)
            found += np.float32(restart) * start
    return found


def _spread(graph: Graph, columns: NDArray[np.float32], runtime: Runtime, *, turned: bool) -> NDArray[np.float32]:
    """The propagation matrix, or its transpose, times columns; in pieces where it is not to be there as a whole."""
    if fits(graph, runtime.budget):
        return np.asarray((graph.normalised.T if turned else graph.normalised) @ columns)
    turned = turned and not graph.symmetric
    found = np.zeros_like(columns)
    for begin, end in graph.neighbours.chunks():
        rows = graph.aggregation_rows(begin, end)
        if turned:
            found += rows.T @ columns[begin:end]
        else:
            found[begin:end] = rows @ columns
    return found


def _unit_rows(x: Features) -> Iterator[tuple[slice, Features]]:
    """Features divided by the lengths of their rows: all at once where they are sparse, else some rows at a time."""
    if isinstance(x, sp.csr_array):
        yield slice(None), unit_rows(x).astype(np.float32)
        return
    step = max(1, VALUES_AT_ONCE // x.shape[1])
    for begin in range(0, len(x), step):
        some = x[begin : begin + step].astype(np.float64)
        yield slice(begin, begin + step), (some / _lengths(some)).astype(np.float32)


def _lengths(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of rows, (rows, 1); one for a row of zeros."""
    found = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.where(found > 0, found, 1.0)


def _blocks(graph: Graph, steps: int, restart: float, runtime: Runtime) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Propagated unit rows: some columns at a time, and the first of them."""
    x = graph.x
    if isinstance(x, sp.csr_array):
        by_column: Any = unit_rows(x).tocsc()
        length = np.ones((1, 1))
    else:
        step = max(1, VALUES_AT_ONCE // x.shape[1])
        parts = [_lengths(x[begin : begin + step].astype(np.float64)) for begin in range(0, len(x), step)]
        by_column, length = x, np.concatenate(parts)
    for begin in range(0, graph.num_features, COLUMNS_AT_ONCE):
        some = by_column[:, begin : begin + COLUMNS_AT_ONCE]
        columns = some.toarray(order="C") if isinstance(x, sp.csr_array) else some
        yield begin, walked(graph, (columns / length).astype(np.float32), steps, restart, runtime)


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
        return self.weighted_sums(task, np.ones(len(task.nodes), dtype=np.float32), classes, compute)

    def weighted_sums(
        self, task: Task, weights: NDArray[np.float32], classes: int, compute: Compute
    ) -> tuple[Tensor, Tensor]:
        """The same with a weight of each training node: added up (1), or taken away (-1)."""
        graph, rows, runtime = task.graph, task.labels, compute.runtime
        members = sp.csr_array((weights, (task.nodes, rows)), shape=(graph.num_nodes, classes)).toarray()
        # M (P X) as (M P) X: to propagate members is a matter of classes, not of features.
        members = walked(graph, members, self.steps, self.restart, runtime, turned=True)
        sums = np.zeros((classes, graph.num_features), dtype=np.float32)
        for some, unit in _unit_rows(graph.x):
            sums += (unit.T @ members[some]).T
        counts = np.bincount(rows, weights, minlength=classes).astype(np.int64)
        return torch.from_numpy(sums).to(compute.device), torch.from_numpy(counts).to(compute.device)

    def corrected(
        self, sums: FeatureSums, task: Task, labels: Tensor, names: Sequence[str], compute: Compute
    ) -> FeatureSums:
        """With training nodes of a task moved from the classes that they taught to others."""
        old, new = torch.from_numpy(task.labels), labels.cpu()
        check_taught(sums.count.cpu(), old, names)
        moved = (old != new).numpy()
        both = torch.cat([old, new]).numpy()[np.tile(moved, 2)]
        signs = np.repeat(np.array([-1, 1], dtype=np.float32), moved.sum())
        changed = Task(task.graph, np.tile(task.nodes[moved], 2), both)
        return sums.plus(*self.weighted_sums(changed, signs, len(names), compute))

    def propagated(self, graph: Graph, compute: Compute) -> NDArray[np.float32]:
        """Unit rows of features after the method's steps."""
        return propagated(graph, self.steps, self.restart, compute.runtime)

    def lengths(self, graph: Graph, compute: Compute) -> NDArray[np.float32]:
        """Of propagated features."""
        return lengths(graph, self.steps, self.restart, compute.runtime)

    def embed(self, memory: Any, graph: Graph, compute: Compute) -> Tensor:
        return torch.from_numpy(self.propagated(graph, compute)).to(compute.device)

    def products(self, graph: Graph, weights: Tensor, compute: Compute) -> Tensor:
        """Propagated features times (classes x features) weights; (P X) W as P (X W), again for speed."""
        by = weights.T.cpu().numpy()
        start = np.concatenate([unit @ by for _, unit in _unit_rows(graph.x)])
        return torch.from_numpy(walked(graph, start, self.steps, self.restart, compute.runtime)).to(weights.device)

    def spread(self, rows: Any) -> Any:
        """Rows of an exported program, propagated."""
        return walked_rows(rows, self.steps, self.restart)


def picked(scores: Tensor, nodes: Tensor | None) -> Tensor:
    """Rows of some nodes, or all."""
    return scores if nodes is None else scores[nodes.to(scores.device)]
