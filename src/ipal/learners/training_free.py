"""Methods that train nothing: class statistics of unit rows of features that were propagated over the graph."""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.propagated import unit_rows, walked_rows
from ipal.backend.runtime import Runtime
from ipal.config import Hops, Restart
from ipal.data.graph import Features, Graph, Nodes
from ipal.data.streams import Task
from ipal.learners.base import Learner
from ipal.learners.checks import check_counts, check_taught
from ipal.learners.kept import Kept
from ipal.learners.values import Terms
from ipal.nn.embed import fits
from ipal.system.tracing import spanned

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


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureSums:
    """Sums of propagated features, by class, in the order in which classes came."""

    sum: Tensor
    """(classes, features)"""
    count: Tensor
    """(classes,), the number of training nodes behind each."""

    @classmethod
    def empty(cls, num_features: int, device: torch.device) -> "FeatureSums":
        return cls(torch.zeros(0, num_features, device=device), torch.zeros(0, dtype=torch.int64, device=device))

    @property
    def mean(self) -> Tensor:
        """(classes, features)"""
        return self.sum / self.count[:, None]

    def plus(self, sums: Tensor, counts: Tensor) -> "FeatureSums":
        """With more nodes of all classes known by now."""
        more, pad = len(sums) - len(self.sum), torch.nn.functional.pad
        return FeatureSums(pad(self.sum, (0, 0, 0, more)) + sums, pad(self.count, (0, more)) + counts)


@dataclass(kw_only=True, eq=False)
class TrainingFree(Learner):
    """Sums over propagated features, one row a class; one pass, no network, no order of classes."""

    steps: Hops = 10
    """How many times features are propagated."""
    restart: Restart = 0.15
    """Share of a node's own features in every step."""

    kept: ClassVar[tuple[Kept, ...]] = (
        Kept(
            "sums",
            "per class: sum of its propagated features, number of nodes behind it",
            shape={"sum": ("classes", "features"), "count": ("classes",)},
            check=lambda learner, sums, whole: check_counts(sums.count, "sums.count"),
        ),
    )

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.sums_ = FeatureSums.empty(num_features, self.generator_.device)

    def teach(self, task: Task, first_epoch: int) -> Iterator[Terms]:
        self._take_in(task)
        yield from ()

    @spanned("sums")
    def _take_in(self, task: Task) -> None:
        rows = self.rows(task.labels).cpu().numpy()
        self.sums_ = self.sums_.plus(*self._sums_of(task.graph, task.nodes, rows, np.ones(len(rows), dtype=np.float32)))
        self.absorb(task, rows)

    def _sums_of(
        self, graph: Graph, nodes: Nodes, rows: NDArray[Any], weights: NDArray[np.float32]
    ) -> tuple[Tensor, Tensor]:
        """Sums of propagated features, and numbers of nodes, of every class: added up, or taken away (weight -1)."""
        members = sp.csr_array((weights, (nodes, rows)), shape=(graph.num_nodes, len(self.labels_))).toarray()
        # M (P X) as (M P) X: to propagate members is a matter of classes, not of features.
        members = walked(graph, members, self.steps, self.restart, self.runtime_, turned=True)
        sums = np.zeros((len(self.labels_), graph.num_features), dtype=np.float32)
        for some, unit in _unit_rows(graph.x):
            sums += (unit.T @ members[some]).T
        counts = np.bincount(rows, weights, minlength=len(self.labels_)).astype(np.int64)
        device = self.generator_.device
        return torch.from_numpy(sums).to(device), torch.from_numpy(counts).to(device)

    @abstractmethod
    def absorb(self, task: Task, rows: NDArray[Any]) -> None:
        """Take in what more a method keeps of a task; `rows` are its labels in the learner's own numbers."""

    def unite(self, places: Tensor, classes: int) -> None:
        empty = self.sums_.sum.new_zeros(classes, self.num_features_), self.sums_.count.new_zeros(classes)
        sums, count = (one.index_add(0, places, old) for one, old in zip(empty, vars(self.sums_).values(), strict=True))
        self.regroup(FeatureSums(sums, count))

    def correct(self, task: Task, labels: Tensor) -> None:
        old, new = self.rows(task.labels), labels
        check_taught(self.sums_.count, old, list(map(str, self.labels_)))
        moved = (old != new).cpu().numpy()
        nodes, rows = np.tile(task.nodes[moved], 2), torch.cat([old, new]).cpu().numpy()[np.tile(moved, 2)]
        signs = np.repeat(np.array([-1, 1], dtype=np.float32), moved.sum())
        sums = self.sums_.plus(*self._sums_of(self.checked(task.graph), nodes, rows, signs))
        left = torch.nonzero(sums.count).flatten()
        self.labels_ = [self.labels_[c] for c in left.tolist()]
        self.calibration_ = self.calibration_.of_classes(left)
        self.regroup(FeatureSums(sums.sum[left], sums.count[left]))

    def regroup(self, sums: FeatureSums) -> None:
        """Go on with the same nodes in other classes."""
        self.sums_ = sums

    @property
    def reach(self) -> int:
        return self.steps

    def propagated(self, graph: Graph) -> NDArray[np.float32]:
        """Unit rows of features after the learner's steps."""
        return propagated(graph, self.steps, self.restart, self.runtime_)

    def lengths(self, graph: Graph) -> NDArray[np.float32]:
        """Of propagated features."""
        return lengths(graph, self.steps, self.restart, self.runtime_)

    def represent(self, graph: Graph) -> Tensor:
        return torch.from_numpy(self.propagated(graph)).to(self.generator_.device)

    def products(self, graph: Graph, weights: Tensor) -> Tensor:
        """Propagated features times (classes x features) weights; (P X) W as P (X W), again for speed."""
        by = weights.T.cpu().numpy()
        start = np.concatenate([unit @ by for _, unit in _unit_rows(graph.x)])
        return torch.from_numpy(walked(graph, start, self.steps, self.restart, self.runtime_)).to(weights.device)

    def spread(self, rows: Any) -> Any:
        """Rows of an exported program, propagated."""
        return walked_rows(rows, self.steps, self.restart)
