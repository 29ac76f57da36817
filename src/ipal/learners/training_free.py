"""Methods that train nothing: class statistics of features that were propagated over the graph."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.config import Hops
from ipal.data.graph import Features, Graph
from ipal.data.streams import Task
from ipal.errors import NonFiniteError
from ipal.learners.analytic.ridge import SUMS
from ipal.learners.base import Learner, Remembered, Terms
from ipal.learners.checks import Shapes, check_counts, check_type
from ipal.nn.embed import fits
from ipal.system import memory_budget
from ipal.system.tracing import spanned

COLUMNS_AT_ONCE = 32
"""Where memory is short, so many columns of features are propagated together."""


@spanned("propagation")
def propagated(graph: Graph, hops: int) -> Features:
    r"""Features after so many graph convolutions without weights, sparse where they are; the newest are kept.

    .. math:: \hat A^{h} X

    Source: Wu et al. 2019, "Simplifying Graph Convolutional Networks", Eq. 8.
    """
    return graph.derived("propagated", hops, lambda: _propagated(graph, hops), most=1)


def _propagated(graph: Graph, hops: int) -> Features:
    x = graph.x
    if hops == 0 or fits(graph):
        return _along(graph, x, hops)
    # A dense array, in a file where it does not fit: sparse features are hardly sparse after some hops.
    by_column: Any = x.tocsc() if isinstance(x, sp.csr_array) else x
    found = memory_budget.current().room((graph.num_nodes, graph.num_features), np.float32)
    for begin in range(0, graph.num_features, COLUMNS_AT_ONCE):
        some = by_column[:, begin : begin + COLUMNS_AT_ONCE]
        columns = some.toarray(order="C") if isinstance(x, sp.csr_array) else np.ascontiguousarray(some)
        found[:, begin : begin + COLUMNS_AT_ONCE] = _along(graph, columns, hops)
    return found


@dataclass(kw_only=True, eq=False)
class TrainingFree(Learner):
    """Sums over propagated features, one row a class; one pass, no network, no order of classes."""

    hops: Hops = 2
    """How many times features are propagated."""

    keeps: ClassVar[dict[str, str]] = Learner.keeps | {
        "sums": "per class: sum of its propagated features, number of nodes behind it",
    }

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        device = self.generator_.device
        self.sum_ = torch.zeros(0, num_features, device=device)
        self.count_ = torch.zeros(0, dtype=torch.int64, device=device)

    def teach(self, task: Task, first_epoch: int) -> Iterator[Terms]:
        self._take_in(task)
        yield from ()

    @spanned("sums")
    def _take_in(self, task: Task) -> None:
        rows = self.rows(task.labels).cpu().numpy()
        ones = np.ones(len(rows), dtype=np.float32)
        members = sp.csr_array((ones, (task.nodes, rows)), shape=(task.graph.num_nodes, len(self.labels_))).toarray()
        more, device = len(self.labels_) - len(self.sum_), self.generator_.device
        # M (A^h X) as (M A^h) X: to propagate members is a matter of classes, not of features.
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large is refused with a sentence
            sums = (task.graph.x.T @ _along(task.graph, members, self.hops, turned=True)).T
            squares = np.square(sums).sum(axis=1)
        if not np.isfinite(squares).all():
            raise NonFiniteError(f"{SUMS} are NaN, infinite or too large to be squared")
        sums = torch.from_numpy(np.ascontiguousarray(sums, dtype=np.float32)).to(device)
        self.sum_ = torch.nn.functional.pad(self.sum_, (0, 0, 0, more)) + sums
        counts = torch.from_numpy(np.bincount(rows, minlength=len(self.labels_))).to(device)
        self.count_ = torch.nn.functional.pad(self.count_, (0, more)) + counts
        self.absorb(task, rows)

    @abstractmethod
    def absorb(self, task: Task, rows: NDArray[Any]) -> None:
        """Take in what more a method keeps of a task; `rows` are its labels in the learner's own numbers."""

    @property
    def mean_(self) -> Tensor:
        """(classes, features)"""
        return self.sum_ / self.count_[:, None]

    @property
    def reach(self) -> int:
        return self.hops

    def represent(self, graph: Graph) -> Tensor:
        return dense(propagated(graph, self.hops)).to(self.generator_.device)

    def products(self, graph: Graph, weights: Tensor) -> Tensor:
        """Propagated features times (classes x features) weights; (A^h X) W as A^h (X W), again for speed."""
        with np.errstate(over="ignore", invalid="ignore"):  # scores that are no numbers are refused as such
            products = _along(graph, graph.x @ weights.T.cpu().numpy(), self.hops)
        return torch.from_numpy(np.ascontiguousarray(products)).to(weights.device)

    def nodes_behind_class(self) -> dict[str, int]:
        return dict(zip(map(str, self.labels_), self.count_.tolist(), strict=True))

    def remembered(self) -> dict[str, Remembered]:
        counts = self.nodes_behind_class().items()
        return {name: Remembered(n, mean) for (name, n), mean in zip(counts, self.mean_, strict=True)}

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"sums.sum": self.sum_, "sums.count": self.count_}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        super().load_tensors(tensors)
        device = self.generator_.device
        self.sum_, self.count_ = tensors["sums.sum"].to(device), tensors["sums.count"].to(device)

    def shapes(self, facts: Mapping[str, Any]) -> Shapes:
        yield from super().shapes(facts)
        yield "sums.sum", (len(facts["labels"]), facts["num_features"])
        yield "sums.count", (len(facts["labels"]),)

    def check(self, whole: bool) -> None:
        super().check(whole)
        check_type(torch.float32, self.sum_)
        check_counts(self.count_, "sums.count")


@spanned("propagation")
def _along(graph: Graph, columns: Features, hops: int, *, turned: bool = False) -> Features:
    """The propagation matrix, or its transpose, times columns, so many times; in pieces where it is not to be whole."""
    for _ in range(hops):
        if fits(graph):
            columns = (graph.normalised.T if turned else graph.normalised) @ columns
        else:
            columns = _in_pieces(graph, columns, turned=turned and not graph.symmetric)
    return columns


def _in_pieces(graph: Graph, columns: NDArray[Any], *, turned: bool) -> NDArray[Any]:
    found = np.zeros_like(columns)
    for begin, end in graph.neighbours.chunks():
        rows = graph.propagation_rows(begin, end)
        if turned:
            found += rows.T @ columns[begin:end]
        else:
            found[begin:end] = rows @ columns
    return found


def dense(x: Features) -> Tensor:
    """Features as a dense tensor."""
    return torch.from_numpy(x.toarray() if isinstance(x, sp.csr_array) else np.ascontiguousarray(x))
