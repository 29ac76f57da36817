"""Analytic: the closed form. Its memory is a set of sums over nodes, so that nothing is forgotten, in any order.

A fixed map of propagated features (feature_map.py), sums over rows (sums.py), and a class-balanced ridge regression
solved from them. One pass, no gradient, nothing chosen but the ridge. What adds up can also be merged and taken away.

Related: McDonnell et al. 2023 (RanPAC: random projections and a ridge from sums, for images), Zhuang et al. 2022
(ACIL: recursive least squares), Gasteiger et al. 2019 (APPNP: propagation with restart).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ipal.backend.checks import check_counts, require
from ipal.backend.propagated import settled
from ipal.closed_form.feature_map import FeatureMap
from ipal.closed_form.ridge import RIDGES, LeftOut, factorise, left_out_scores, products_by_factor, ridge_weights
from ipal.closed_form.sums import Normal, Rows, Sums, mirrored, rounded
from ipal.config import MOST_LAYERS, Restart, TestGraph
from ipal.data.graph import Derives, Graph
from ipal.data.task import Task
from ipal.errors import ConfigError
from ipal.methods.base import Compute, OnePass, Space, TaskContext, UsualMargins
from ipal.methods.shared.propagated_features import picked
from ipal.nn.margins import margins
from ipal.system import free_memory

MOST_LEVERAGE = 0.9
"""More would be told by chance: rows that the sums know by heart say nothing of others."""
LEAST_SPREAD = 1e-6
"""Of scores, which are about one."""
SQUARES = 4
"""Square matrices of the width that are there at once, at most, besides the sums."""


class Solved(NamedTuple):
    """What follows from the sums."""

    weights: Tensor
    """(width, classes)"""
    ridge: float
    scale: float
    """Of scores before the softmax."""


class Usual(NamedTuple):
    """What the scores of unseen nodes are like, class by class."""

    mean: Tensor
    """(classes, classes): scores of class means."""
    spread: Tensor
    """(classes,): about how much the scores of nodes for their own class differ."""


def usual_scores(normal: Normal, weights: Tensor, leverage: float) -> Usual:
    r"""Means, and about the standard deviations, of scores of unseen nodes for their own class.

    .. math:: m_c = \mu_c^\top W, \quad s_c = \frac{\sqrt{w_c^\top B w_c}}{1 - h}, \quad B = A - M M^\top

    B is the scatter within all classes, which in the direction of w_c is nearly that of class c alone. Training rows
    scatter less than unseen ones, by their mean leverage h. What the truth differs by is a factor of about one for each
    class, which hardly changes as classes come.

    Source: Cook & Weisberg 1982, "Residuals and Influence in Regression", Sec. 2.2 (the residual of a row that is left
    out), with the mean leverage of all rows.
    """
    mean = normal.mean
    own = (weights * (mirrored(normal.gram) @ weights)).sum(dim=0) - (mean.T @ weights).square().sum(dim=0)
    return Usual(mean.T @ weights, (own.clamp_min(0).sqrt() / (1 - leverage)).clamp_min(LEAST_SPREAD))


def mean_leverage(normal: Normal, ridge: float) -> float:
    r"""How much of its own score a training row makes, in the mean.

    .. math:: h = \frac{1}{N} \, \mathrm{tr} \big( A (A + \lambda I)^{-1} \big)

    Source: Golub et al. 1979, "Generalized Cross-Validation as a Method for Choosing a Good Ridge Parameter",
    Sec. 1.
    """
    inverse = torch.cholesky_inverse(factorise(normal.gram, ridge))
    freedom = len(inverse) - ridge * float(inverse.diagonal().sum())
    return min(MOST_LEVERAGE, max(0.0, freedom / int(normal.count.sum())))


@dataclass(frozen=True, eq=False)
class SumsMemory(Derives):
    """Sums over rows. Never changed in place; the weights follow from them."""

    map: FeatureMap
    sums: Sums
    """per class: number of nodes and sum of their rows; sums of products of rows"""
    left_out: LeftOut
    """leave-one-out log-losses, summed by task, class, ridge and scale"""
    tasks: int
    """number of tasks that were learned"""

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        require(len(self.sums.count) == classes, "it has not one sum for every class")
        check_counts(self.sums.count, "sums.count")
        self.left_out.check(classes, self.tasks)

    def finite_parts(self) -> dict[str, Tensor]:
        """Rows on a grid have finite products."""
        return {"sums.total": self.sums.total, "left_out.loss": self.left_out.loss}

    def products_of_all(self) -> Tensor:
        return self.sums.products

    def of_classes(self, classes: Sequence[int]) -> "SumsMemory":
        places = torch.zeros_like(self.sums.count)  # of the others, too: they are empty, and add nothing
        places[list(classes)] = torch.arange(len(classes), device=places.device)
        return self.united(places, len(classes))

    def united(self, places: Tensor, classes: int) -> "SumsMemory":
        """So many classes, drawn together: class i is a part of class `places[i]`."""
        return replace(self, sums=self.sums.united(places, classes), left_out=self.left_out.moved(places))


@dataclass(frozen=True, kw_only=True)
class Analytic(OnePass):
    """The closed form: class-balanced ridge regression on propagated features, from sums, exact in any order."""

    width: Annotated[int, Field(ge=4, le=2**17)] = 4096
    """Columns of the feature map. More columns are more accurate where features are many; sums grow with the square."""
    steps: Annotated[int, Field(ge=0, le=MOST_LAYERS)] | None = None
    """Steps of propagation. None: 16 where each task is tested on a graph of its own, else 10."""
    restart: Restart | Annotated[tuple[Restart, ...], Field(min_length=1, max_length=8)] | None = None
    """Share of a node's own features that returns at every step; several share the columns. None: 0.02 and 0.3 where
    each task is tested on a graph of its own, else 0.2."""
    ridge: Annotated[float, Field(ge=1e-9, allow_inf_nan=False)] | None = None
    """None: by leave-one-out log-loss over all that was learned."""

    name = "analytic"
    title = "analytic"

    # ------------------------------------------------------------------ learning

    def init(self, space: Space) -> SumsMemory:
        if space.device.type == "cpu":
            squares = 16 * self.width**2  # the matrix that is solved, and its factor
            free_memory.need(squares, f"A closed form of {self.width} columns", "set a smaller analytic.width")
        steps, restarts = settled(self.steps, self.restart, space.test_graph)
        made = FeatureMap(space.num_features, self.width, steps, restarts, space.seed, space.compute.runtime)
        empty = LeftOut.empty(len(self.ridges), space.device)
        return SumsMemory(made, Sums.empty(self.width, space.device), empty, 0)

    def end_task(self, network: None, memory: SumsMemory, context: TaskContext, rng: torch.Generator) -> SumsMemory:
        rows = self._rows(memory, context.task)
        sums = memory.sums.grown(context.classes).changed(1, rows)
        left_out = memory.left_out.plus(sums, rows, memory.tasks, self.ridges)
        return replace(memory, sums=sums, left_out=left_out, tasks=memory.tasks + 1)

    def _rows(self, memory: SumsMemory, task: Task) -> Rows:
        """Rows of a task's training nodes, to be added or taken away."""
        device = memory.sums.count.device
        nodes, labels = (torch.from_numpy(np.asarray(part)).to(device) for part in (task.nodes, task.labels))
        return Rows(memory.map.propagated(task.graph), labels, memory.map.expanded, nodes)

    def solved(self, memory: SumsMemory) -> Solved:
        """Solved when it is first asked for. Asking changes nothing."""
        return memory.derived("solved", None, lambda: self._solve(memory))

    def _solve(self, memory: SumsMemory) -> Solved:
        ridge, scale = memory.left_out.best(self.ridges)
        normal = memory.sums.normal()
        weights = ridge_weights(factorise(normal.gram, ridge), normal.mean)
        return Solved(weights.clone(memory_format=torch.contiguous_format), ridge, scale)

    def usual(self, memory: SumsMemory) -> Usual:
        """What scores of unseen nodes are like by the sums alone; see `usual_scores`."""
        return memory.derived("usual", None, lambda: self._usual(memory))

    def _usual(self, memory: SumsMemory) -> Usual:
        solved, sums = self.solved(memory), memory.sums
        leverage = mean_leverage(sums.normal(sums.step), solved.ridge)  # of the narrower model, which is faster
        return usual_scores(sums.normal(), solved.weights, leverage)

    def chosen(self, memory: SumsMemory) -> dict[str, Any]:
        return {"steps": memory.map.steps, "restart": memory.map.restarts, "ridge": self.solved(memory).ridge}

    def identity(self, memory: SumsMemory) -> str:
        return memory.map.fingerprint

    @property
    def ridges(self) -> Sequence[float]:
        """Ridges that are compared."""
        return RIDGES if self.ridge is None else (self.ridge,)

    # ------------------------------------------------------------------ limits

    def check_classes(self, classes: int) -> None:
        if classes > self.width:
            raise ConfigError(
                f"analytic.width={self.width} is too few columns for {classes} classes: set at least {classes}."
            )

    def check_setup(self, test_graph: TestGraph) -> None:
        parts = len(settled(self.steps, self.restart, test_graph)[1])
        if self.width < 4 * parts:
            raise ConfigError(
                f"analytic.width={self.width} is too few columns for {parts} restarts: set at least {4 * parts}."
            )

    def working_memory(self, features: int, classes: int, nodes: int, piece: int) -> int:
        # With two restarts, each has half of the width, and half of that is linear.
        columns = 2 * features if features <= self.width // 4 else self.width
        sums = 8 * (SQUARES + 1) * self.width**2  # those before a task and after it are half a square each
        return nodes * columns + sums

    # ------------------------------------------------------------------ prediction

    def reach(self, memory: SumsMemory) -> int:
        return memory.map.steps

    def embed(self, memory: SumsMemory, graph: Graph, compute: Compute) -> Tensor:
        # As they are added up: an audit looks for these rows in the sums.
        rows = memory.map.propagated(graph)
        return compute.by_rows(lambda some: rounded(memory.map.expanded(some)).float(), rows)

    def forward(self, memory: SumsMemory, graph: Graph, compute: Compute, nodes: Tensor | None = None) -> Tensor:
        rows, weights = compute.rows(graph, memory.map), self.solved(memory).weights.float()
        return compute.by_rows(lambda some: memory.map.expanded(some, torch.float32) @ weights, picked(rows, nodes))

    def probabilities(
        self, memory: SumsMemory, scores: Tensor, graph: Graph, compute: Compute, nodes: Tensor | None = None
    ) -> Tensor:
        return (self.solved(memory).scale * scores).softmax(dim=-1)

    def usual_margins(self, memory: SumsMemory) -> UsualMargins:
        usual, scale = self.usual(memory), self.solved(memory).scale
        return UsualMargins(scale * margins(usual.mean).diagonal(), scale * usual.spread)

    def novelty(
        self, memory: SumsMemory, scores: Tensor, graph: Graph, rows: Tensor | None, compute: Compute
    ) -> Tensor:
        """How far the highest score is below what is usual for nodes of its class, in usual spreads."""
        usual, (top, best) = self.usual(memory), scores.double().max(dim=1)
        return (usual.mean.diagonal()[best] - top) / usual.spread[best]

    def left_out(self, memory: SumsMemory, task: Task, some: Tensor, compute: Compute) -> Tensor:
        rows, normal = self._rows(memory, task), memory.sums.normal()
        some = some.to(rows.labels.device)
        left = torch.cat([piece for piece, _ in rows.pieces(some)])
        products = products_by_factor(left, normal, factorise(normal.gram, self.solved(memory).ridge))
        return left_out_scores(products, rows.labels[some], normal)

    def statistics(self, memory: SumsMemory) -> Sums:
        return memory.sums

    # ------------------------------------------------------------------ what sums allow, all exact

    def addressed(self, memory: SumsMemory) -> dict[str, Any]:
        walk = {"steps": memory.map.steps, "restart": memory.map.restarts}
        return {"width": self.width, **walk, "ridge": self.ridge}

    def merged(self, memory: SumsMemory, other: SumsMemory, places: Tensor, classes: int) -> SumsMemory:
        self.check_classes(classes)
        sums = memory.sums.merged(other.sums, places, classes)
        left_out = memory.left_out.merged(other.left_out, places, memory.tasks)
        return replace(memory, sums=sums, left_out=left_out, tasks=memory.tasks + other.tasks)

    def merge_classes(self, memory: SumsMemory, places: Tensor, classes: int) -> SumsMemory:
        return memory.united(places, classes)

    def without_tasks(self, memory: SumsMemory, tasks: Sequence[Task], first: int, compute: Compute) -> SumsMemory:
        sums = memory.sums
        for task in tasks:
            sums = sums.changed(-1, self._rows(memory, task))
        return replace(memory, sums=sums, left_out=memory.left_out.before(first), tasks=first)
