"""Analytic: the closed form. Its memory is a set of sums over nodes, so that nothing is forgotten, in any order.

A fixed map of propagated features (feature_map.py), sums over rows (sums.py), and a class-balanced ridge regression
solved from them. One pass, no gradient, nothing chosen but the ridge. What adds up can also be merged and taken away.

Related: McDonnell et al. 2023 (RanPAC: random projections and a ridge from sums, for images), Zhuang et al. 2022
(ACIL: recursive least squares), Gasteiger et al. 2019 (APPNP: propagation with restart).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from ipal.backend.checks import check_counts, check_taught, require
from ipal.backend.propagated import DEFAULTS
from ipal.closed_form.feature_map import FeatureMap, pieces, take
from ipal.closed_form.left_out import RIDGES, LeftOut
from ipal.closed_form.metric import Mahalanobis
from ipal.closed_form.ridge import factorise, ridge_weights, weights_without
from ipal.closed_form.rows import Rows, rounded
from ipal.closed_form.sums import Kind, Sums
from ipal.config import MOST_LAYERS, Positive, Restart, TestGraph
from ipal.data.derived import Derives
from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.errors import CapacityError, ConfigError, DataError
from ipal.methods.base import Compute, Distances, Extents, OnePass, Remembered, Space, TaskContext

GIB = 2**30
MEASURED = 1024
"""Distances are measured with about so many columns."""
LEAST_RIDGE = 0.1
"""Of the mean diagonal, where distances are measured: directions in which few rows, by chance, hardly vary."""
SQUARES = 4
"""Square matrices of the width that are there at once, at most, besides the sums."""


@dataclass(frozen=True, eq=False)
class Solved:
    """What follows from the sums."""

    weights: Tensor
    """(width, classes)"""
    ridge: float
    scale: float
    """Of scores before the softmax."""


@dataclass(frozen=True, eq=False)
class SumsMemory(Derives):
    """Sums over rows. Never changed in place; the weights follow from the rest."""

    map: FeatureMap
    sums: Sums
    """per class: number of nodes and sum of their rows; sums of products of rows"""
    left_out: LeftOut
    """leave-one-out log-losses, summed by class, ridge and scale"""
    weights: Tensor | None
    """weights of every class, solved from the sums"""

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        sizes = {len(part) for part in (self.sums.count, self.left_out.count, self.left_out.loss)}
        require(sizes == {classes}, "it has not one sum for every class")
        check_counts(self.sums.count, "sums.count")
        require((self.left_out.count >= 0).all(), "'left_out.count' holds negative numbers")
        if self.weights is not None:
            shape, dtype = (self.sums.width, classes), torch.float64
            require(tuple(self.weights.shape) == shape, f"'weights' has another shape than {shape}")
            require(self.weights.dtype == dtype, f"'weights' holds {self.weights.dtype} instead of {dtype}")

    def finite_parts(self) -> dict[str, Tensor]:
        """Rows on a grid have finite products."""
        return {"sums.total": self.sums.total, "left_out.loss": self.left_out.loss}

    def with_sums(self, sums: Sums) -> "SumsMemory":
        """With other sums, from which the weights are solved anew."""
        return replace(self, sums=sums, weights=None)


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
    ridge: Positive | None = None
    """None: by leave-one-out log-loss over all that was learned."""
    sums: Kind = "pooled"
    """pooled: one matrix for all classes. per-class: one for each: a class can be forgotten without its nodes."""
    memory: Positive = 1.0
    """Most that the sums may take in a saved model, in GiB."""

    name = "analytic"
    title = "analytic"

    # ------------------------------------------------------------------ learning

    def init(self, space: Space) -> SumsMemory:
        self._check_width(space.test_graph, space.edge_types)
        runtime = space.compute.runtime
        steps, restarts = self._walk(space.test_graph)
        made = FeatureMap(space.num_features, self.width, steps, restarts, space.seed, runtime, space.edge_types)
        empty = LeftOut.empty(len(self.ridges), space.device)
        return SumsMemory(made, Sums.empty(self.sums, self.width, space.device), empty, None)

    def end_task(self, network: None, memory: SumsMemory, context: TaskContext, rng: torch.Generator) -> SumsMemory:
        self.check_classes(context.classes)
        rows, team, tracer = self._rows(memory, context.task), context.compute.runtime.team, memory.map.runtime.tracer
        with tracer.span("sums"):
            sums = memory.sums.grown(context.classes).changed(1, rows, team)
        with tracer.span("ridge"):
            return replace(memory.with_sums(sums), left_out=memory.left_out.plus(sums, rows, self.ridges))

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
        if memory.weights is not None:
            return Solved(memory.weights, ridge, scale)
        with memory.map.runtime.tracer.span("solve"):
            normal = memory.sums.normal()
            factor = factorise(normal.gram, ridge)
            weights = ridge_weights(factor, normal.mean).clone(memory_format=torch.contiguous_format)
            return Solved(weights, factor.ridge, scale)

    def complete(self, memory: SumsMemory) -> SumsMemory:
        return replace(memory, weights=self.solved(memory).weights)

    def chosen(self, memory: SumsMemory) -> dict[str, Any]:
        return {"steps": memory.map.steps, "restart": memory.map.restarts, "ridge": self.solved(memory).ridge}

    def identity(self, memory: SumsMemory) -> str:
        return memory.map.fingerprint

    @property
    def ridges(self) -> Sequence[float]:
        """Ridges that are compared."""
        return RIDGES if self.ridge is None else (self.ridge,)

    def _walk(self, test_graph: TestGraph) -> tuple[int, tuple[float, ...]]:
        """Steps and restarts."""
        steps, restarts = DEFAULTS[test_graph]
        given = (self.restart,) if isinstance(self.restart, float | int) else self.restart
        return steps if self.steps is None else self.steps, restarts if given is None else given

    # ------------------------------------------------------------------ limits

    def check_classes(self, classes: int) -> None:
        if classes > self.width:
            raise ConfigError(
                f"analytic.width={self.width} is too few columns for {classes} classes: set at least {classes}.",
                "analytic.width",
            )
        needed = 4 * int(np.prod(Sums.saved_shape(self.sums, self.width, classes)))
        if needed > self.memory * GIB:
            per_class = self.sums == "per-class"
            fits = int((self.memory * GIB / (classes if per_class else 1) / 2.2) ** 0.5)
            instead = ["raise it", *["set analytic.sums=pooled"] * per_class]
            instead += [f"set a width of at most {fits}"] * (fits >= classes)
            raise CapacityError(
                f"Sums of {self.width} columns for {classes} classes take {needed / GIB:.2g} GiB, and "
                f"analytic.memory={self.memory:g} allows less: {', or '.join(instead)}."
            )

    def _check_width(self, test_graph: TestGraph, edge_types: int) -> None:
        parts = len(self._walk(test_graph)[1]) * edge_types
        if self.width < 4 * parts:
            raise ConfigError(
                f"analytic.width={self.width} is too few columns for {parts} restarts and types of edges: set at least "
                f"{4 * parts}.",
                "analytic.width",
            )

    def check_setup(self, test_graph: TestGraph) -> None:
        self._check_width(test_graph, edge_types=1)

    def working_memory(self, extents: Extents) -> tuple[int, int]:
        # With two restarts, each has half of the width, and half of that is linear.
        columns = 2 * extents.features if extents.features <= self.width // 4 else self.width
        rows = 4 * extents.tested_nodes * columns
        sums = 8 * SQUARES * self.width**2
        return 2 * rows + sums, rows // 4 + sums

    # ------------------------------------------------------------------ prediction

    def reach(self, memory: SumsMemory) -> int:
        return memory.map.steps

    def embed(self, memory: SumsMemory, graph: Graph, compute: Compute) -> Tensor:
        # As they are added up: an audit looks for these rows in the sums.
        rows = pieces(memory.map.propagated(graph))
        return torch.cat([rounded(memory.map.expanded(some)).float() for some in rows])

    def forward(self, memory: SumsMemory, graph: Graph, compute: Compute, nodes: Tensor | None = None) -> Tensor:
        """Scores, of which each process finds its share."""
        rows, team = memory.map.propagated(graph), compute.runtime.team
        rows = rows if nodes is None else take(rows, nodes)
        share, weights = team.share(len(rows)), self.solved(memory).weights.float()
        mine = [memory.map.expanded(piece, torch.float32) @ weights for piece in pieces(share.of(rows))]
        return team.gathered(torch.cat(mine), share)

    def probabilities(
        self, memory: SumsMemory, scores: Tensor, graph: Graph, compute: Compute, nodes: Tensor | None = None
    ) -> Tensor:
        return (self.solved(memory).scale * scores).softmax(dim=-1)

    def distances(self, memory: SumsMemory, graph: Graph, rows: Tensor | None, compute: Compute) -> Distances:
        step = max(1, self.width // MEASURED)
        metric = Mahalanobis.of(memory.sums.normal(step), LEAST_RIDGE, self.solved(memory).ridge)
        some = pieces(memory.map.propagated(graph))
        expand = partial(memory.map.expanded, dtype=torch.float32)
        return partial(
            metric.distances, torch.cat([metric.products(expand(piece)[:, ::step] * step**0.5) for piece in some])
        )

    def separation(self, memory: SumsMemory) -> float:
        return self.solved(memory).scale

    def mean_scores(self, memory: SumsMemory) -> Tensor:
        solved = self.solved(memory)
        return solved.scale * (memory.sums.mean @ solved.weights)

    def exported(self, memory: SumsMemory, rows: Any) -> tuple[Any, Any]:
        solved = self.solved(memory)
        scores = memory.map.exported(rows) @ solved.weights
        return scores, (scores * solved.scale).softmax()

    def statistics(self, memory: SumsMemory) -> Sums:
        return memory.sums

    def remembered(self, memory: SumsMemory) -> list[Remembered]:
        sums, kept = memory.sums, super().remembered(memory)
        if sums.kind == "per-class":
            return [replace(one, second=partial(sums.products, c)) for c, one in enumerate(kept)]
        return [replace(one, shared=partial(sums.products, 0)) for one in kept]

    # ------------------------------------------------------------------ what sums allow, all exact

    def addressed(self, memory: SumsMemory) -> dict[str, Any]:
        """Settings that must agree for sums to be added; defaults as they came out."""
        walk = {"steps": memory.map.steps, "restart": memory.map.restarts}
        return {"sums": self.sums, "width": self.width, **walk, "ridge": self.ridge}

    def merged(self, memory: SumsMemory, other: SumsMemory, places: Tensor, classes: int) -> SumsMemory:
        """With the sums of another model, whose classes are to be at these places."""
        self.check_classes(classes)
        device = memory.sums.count.device
        theirs = LeftOut(other.left_out.loss.to(device), other.left_out.count.to(device))
        left_out = memory.left_out.merged(theirs, places, classes)
        return replace(memory.with_sums(memory.sums.merged(other.sums.to(device), places, classes)), left_out=left_out)

    def merge_classes(self, memory: SumsMemory, places: Tensor, classes: int) -> SumsMemory:
        empty = LeftOut.empty(len(self.ridges), places.device)
        left_out = empty.merged(memory.left_out, places, classes)
        return replace(memory.with_sums(memory.sums.united(places, classes)), left_out=left_out)

    def of_classes(self, memory: SumsMemory, classes: Sequence[int]) -> SumsMemory:
        """Some classes, in this order; the others must be empty."""
        left_out = memory.left_out.of_classes(classes)
        return replace(memory.with_sums(memory.sums.of_classes(classes)), left_out=left_out)

    def without_class(self, memory: SumsMemory, place: int, names: Sequence[str]) -> SumsMemory:
        return memory.with_sums(memory.sums.without(place, names))

    def without_rows(
        self, memory: SumsMemory, task: Task, leaving: NDArray[np.bool_], names: Sequence[str], compute: Compute
    ) -> SumsMemory:
        check_taught(memory.sums.count, torch.from_numpy(task.labels).to(memory.sums.count), names)
        rows = self._rows(memory, task).where(leaving)
        return memory.with_sums(memory.sums.exchanged(rows, None, names, compute.runtime.team))

    def without_nodes(
        self, memory: SumsMemory, task: Task, gone: NDArray[np.int64], names: Sequence[str], compute: Compute
    ) -> SumsMemory:
        check_taught(memory.sums.count, torch.from_numpy(task.labels).to(memory.sums.count), names)
        stay = np.setdiff1d(np.arange(task.graph.num_nodes), gone)
        stays = ~np.isin(task.nodes, gone)
        before = self._rows(memory, task)
        # Where nobody stays, nothing is looked up.
        rest = task.graph.induced(stay, compute.runtime.budget) if stays.any() else task.graph
        after = self._rows(memory, Task(rest, np.searchsorted(stay, task.nodes[stays]), task.labels[stays]))
        moved = np.ones(len(task.nodes), dtype=bool)
        device = before.labels.device
        stayed, everyone = torch.from_numpy(np.flatnonzero(stays)).to(device), torch.arange(len(after), device=device)
        same = (before.taken(stayed) == after.taken(everyone)).all(dim=1).cpu().numpy()
        moved[np.flatnonzero(stays)[same]] = False
        old, new = before.where(moved), after.where(moved[stays])
        return memory.with_sums(memory.sums.exchanged(old, new, names, compute.runtime.team))

    def correct_labels(
        self, memory: SumsMemory, task: Task, labels: Tensor, names: Sequence[str], compute: Compute
    ) -> tuple[SumsMemory, list[int]]:
        self.check_classes(len(names))
        sums, left_out = memory.sums.grown(len(names)), memory.left_out.grown(len(names))
        taught = self._rows(memory, task)
        check_taught(sums.count, taught.labels, names)
        moved = (taught.labels != labels).cpu().numpy()
        leaving, coming = (rows.where(moved) for rows in (taught, replace(taught, labels=labels)))
        sums = sums.exchanged(leaving, coming, names, compute.runtime.team)
        left = torch.nonzero(sums.count).flatten().tolist()
        return self.of_classes(replace(memory.with_sums(sums), left_out=left_out), left), left

    # ------------------------------------------------------------------ copies to try out

    def trial_without_rows(
        self, memory: SumsMemory, task: Task, leaving: NDArray[np.bool_], compute: Compute
    ) -> SumsMemory:
        """As if some training nodes of the task just learned had not taught; ridge and scale stay as they are."""
        rows = self._rows(memory, task).where(leaving)
        return memory.with_sums(memory.sums.changed(-1, rows, compute.runtime.team))

    def trial_without_class(self, memory: SumsMemory, place: int) -> SumsMemory:
        """As if a class had not been learned: nearly exact, and at once, where its own products are not known."""
        classes = len(memory.sums.count)
        others = [c for c in range(classes) if c != place]
        if not others:
            raise DataError("Nothing would be left: a model needs at least one class.")
        found = self.of_classes(memory.with_sums(memory.sums.about_without(place)), others)
        if memory.sums.kind != "pooled":
            return found
        weights = weights_without(self.solved(memory).weights, memory.sums.mean.T, place)
        trial = replace(found, weights=weights.clone(memory_format=torch.contiguous_format))
        ridge = self.solved(memory).ridge * (classes - 1) / classes
        _, scale = found.left_out.best(self.ridges)
        trial.derived("solved", None, lambda: Solved(trial.weights, ridge, scale))  # type: ignore[arg-type]
        return trial
