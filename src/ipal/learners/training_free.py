"""Methods that train nothing: class statistics of features that were propagated over the graph."""

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

from ipal.backend.runtime import Runtime
from ipal.config import Hops
from ipal.data.graph import Features, Graph, Nodes
from ipal.data.streams import Task
from ipal.errors import NonFiniteError
from ipal.learners.analytic.ridge import SUMS
from ipal.learners.base import Learner
from ipal.learners.checks import check_counts, check_taught
from ipal.learners.kept import Kept
from ipal.learners.values import Terms
from ipal.nn.embed import fits
from ipal.system.tracing import spanned

COLUMNS_AT_ONCE = 32
"""Where memory is short, so many columns of features are propagated together."""


def propagated(graph: Graph, hops: int, runtime: Runtime) -> Features:
    r"""Features after so many graph convolutions without weights, sparse where they are; the newest are kept.

    .. math:: \hat A^{h} X

    Source: Wu et al. 2019, "Simplifying Graph Convolutional Networks", Eq. 8.
    """
    with runtime.tracer.span("propagation"):
        return graph.derived("propagated", hops, lambda: _propagated(graph, hops, runtime), most=1)


def _propagated(graph: Graph, hops: int, runtime: Runtime) -> Features:
    x = graph.x
    if hops == 0 or fits(graph, runtime.budget):
        return _along(graph, x, hops, runtime)
    # A dense array, in a file where it does not fit: sparse features are hardly sparse after some hops.
    by_column: Any = x.tocsc() if isinstance(x, sp.csr_array) else x
    found = runtime.budget.room((graph.num_nodes, graph.num_features), np.float32)
    for begin in range(0, graph.num_features, COLUMNS_AT_ONCE):
        some = by_column[:, begin : begin + COLUMNS_AT_ONCE]
        columns = some.toarray(order="C") if isinstance(x, sp.csr_array) else np.ascontiguousarray(some)
        found[:, begin : begin + COLUMNS_AT_ONCE] = _along(graph, columns, hops, runtime)
    return found


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

    hops: Hops = 2
    """How many times features are propagated."""

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
        # M (A^h X) as (M A^h) X: to propagate members is a matter of classes, not of features.
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large is refused with a sentence
            sums = (graph.x.T @ _along(graph, members, self.hops, self.runtime_, turned=True)).T
            squares = np.square(sums).sum(axis=1)
        if not np.isfinite(squares).all():
            raise NonFiniteError(f"{SUMS} are NaN, infinite or too large to be squared")
        counts = np.bincount(rows, weights, minlength=len(self.labels_)).astype(np.int64)
        found, device = np.ascontiguousarray(sums, dtype=np.float32), self.generator_.device
        return torch.from_numpy(found).to(device), torch.from_numpy(counts).to(device)

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
        return self.hops

    def propagated(self, graph: Graph) -> Features:
        """Features after the learner's hops."""
        return propagated(graph, self.hops, self.runtime_)

    def represent(self, graph: Graph) -> Tensor:
        return dense(self.propagated(graph)).to(self.generator_.device)

    def products(self, graph: Graph, weights: Tensor) -> Tensor:
        """Propagated features times (classes x features) weights; (A^h X) W as A^h (X W), again for speed."""
        with np.errstate(over="ignore", invalid="ignore"):  # scores that are no numbers are refused as such
            products = _along(graph, graph.x @ weights.T.cpu().numpy(), self.hops, self.runtime_)
        return torch.from_numpy(np.ascontiguousarray(products)).to(weights.device)


def _along(graph: Graph, columns: Features, hops: int, runtime: Runtime, *, turned: bool = False) -> Features:
    """The propagation matrix, or its transpose, times columns, so many times; in pieces where it is not to be whole."""
    with runtime.tracer.span("propagation"):
        for _ in range(hops):
            if fits(graph, runtime.budget):
                columns = (graph.normalised.T if turned else graph.normalised) @ columns
            else:
                columns = _in_pieces(graph, columns, turned=turned and not graph.symmetric)
    return columns


def _in_pieces(graph: Graph, columns: NDArray[Any], *, turned: bool) -> NDArray[Any]:
    found = np.zeros_like(columns)
    for begin, end in graph.neighbours.chunks():
        rows = graph.aggregation_rows(begin, end)
        if turned:
            found += rows.T @ columns[begin:end]
        else:
            found[begin:end] = rows @ columns
    return found


def spread(rows: Any, hops: int) -> Any:
    """Rows of an exported program, so many hops over the graph."""
    for _ in range(hops):
        rows = rows.spread()
    return rows


def dense(x: Features) -> Tensor:
    """Features as a dense tensor."""
    return torch.from_numpy(x.toarray() if isinstance(x, sp.csr_array) else np.ascontiguousarray(x))
