"""How the closed form chooses its own settings, from training nodes alone, by leave-one-out error in closed form.

Hops and expansion, on the first task. A task is learned from its own graph, but may be tested among all others, where
a node has neighbours that it did not have when it was learned. That is rehearsed: the training nodes are learned with
the edges inside their class only, and recognised, each by the model that was not shown it, with the edges among all of
them. The harder of the two test graphs decides; what does well there does well on the easy one too.

The ridge, at every task, from the nodes just learned: the smallest whose leave-one-out squared error is within a few
percent of the least. The error counts uniform shrinkage as a fault, which the best class does not feel, so that its
least is at a ridge somewhat too large. Wide models are judged by a corner of their sums, which are exactly the sums of
a narrower model.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.errors import NonFiniteError
from ipal.learners.analytic.class_sums import Rows
from ipal.learners.analytic.feature_map import FeatureMap, Propagation, side_by_side
from ipal.learners.analytic.ridge import (
    Factor,
    best_scale,
    factorise,
    left_out_prediction,
    left_out_residual,
    leverage,
    ridge_weights,
)

HOPS: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,), (3,), (4,), (5,), (6,), (0, 1), (1, 2), (2, 3), (1, 2, 3))
RIDGES = tuple(float(f"{10 ** (power / 2):.2g}") for power in range(-6, 1))
NEAR = 1.02
"""An error of so many times the least is as good."""
CORNER = 2048
"""Width at which ridges are compared."""
PROBE_RIDGES = (1e-2, 1e-1, 1.0)
PROBE_EXPANSION = 1024
PROBE_ROWS = 3000
LEFT_OUT_ROWS = 1024
DEFAULT_HOPS = (2,)

Key = TypeVar("Key")


@dataclass(frozen=True)
class Choice:
    """Hops and expansion, and why."""

    hops: list[int]
    expansion: int
    reason: str
    hops_errors: dict[str, float]
    """Rehearsed leave-one-out error of each candidate."""
    expansion_errors: dict[str, float]


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Rows by which the ridge is judged."""

    rows: Tensor
    """(rows, width), float64"""
    labels: Tensor
    weights: Tensor
    """1 / n of each row's class, as in the sums."""

    @classmethod
    def of(cls, rows: Rows, count: Tensor, generator: torch.Generator) -> "LeftOut":
        """Some of the rows just learned. The only node of a class cannot be left out."""
        able = torch.nonzero(count[rows.labels] > 1).flatten()
        some = able[sample(rows.labels[able], LEFT_OUT_ROWS, generator)]
        labels = rows.labels[some]
        return cls(rows.expand(rows.taken(some)), labels, count.double().reciprocal()[labels])

    def residuals(self, factor: Factor, cross: Tensor) -> tuple[Tensor, Tensor]:
        """Targets, and what is missed of them by the model that never saw the row."""
        rows = self.rows[:, : len(cross)].to(cross.dtype)
        half = factor.half(rows.T)
        targets = torch.nn.functional.one_hot(self.labels, cross.shape[1]).to(cross.dtype)
        predicted = rows @ ridge_weights(factor, cross)
        return targets, left_out_residual(targets, predicted, leverage(half, half, self.weights))

    def error(self, factor: Factor, cross: Tensor) -> float:
        """Mean over the classes just learned of the squared error."""
        _, residual = self.residuals(factor, cross)
        return float((residual.square().sum(dim=1) * self.weights).sum() / self.weights.sum())

    def best_scale(self, factor: Factor, cross: Tensor) -> float:
        """The factor that makes the softmax of leave-one-out scores best calibrated."""
        targets, residual = self.residuals(factor, cross)
        return best_scale(targets - residual, self.labels, self.weights)


def choose_features(
    task: Task,
    labels: Tensor,
    propagation: Propagation,
    options: Mapping[tuple[int, ...], Sequence[int]],
    generator: torch.Generator,
) -> Choice:
    """Hops, and an expansion that is possible with them, with the lowest rehearsed error."""
    if len(torch.unique(labels)) < 2 or [len(sizes) for sizes in options.values()] == [1]:
        chosen = DEFAULT_HOPS if DEFAULT_HOPS in options else next(iter(options))
        one_class = "with one class there is nothing to compare; " * (len(torch.unique(labels)) < 2)
        return Choice(list(chosen), options[chosen][-1], one_class + "hops and expansion as set or by default", {}, {})
    rehearsal = Rehearsal.of(task, labels, propagation, max(chain(*options)), generator)
    tried = {
        hops: rehearsal.errors(propagation, hops, min(PROBE_EXPANSION, max(sizes)), PROBE_RIDGES)
        for hops, sizes in options.items()
    }
    by_hops = {candidate: errors[least(errors)] for candidate, errors in tried.items()}
    best = least(by_hops)
    ridge = least(tried[best])
    by_expansion = {}
    for size in options[best]:
        # The ridge of the probe serves wider expansions; narrower ones may want another, and are quickly tried.
        ridges = (ridge,) if size > PROBE_EXPANSION else PROBE_RIDGES
        errors = rehearsal.errors(propagation, best, size, ridges)
        by_expansion[size] = errors[least(errors)]
    size = least(by_expansion)
    reason = (
        "lowest leave-one-out squared error of training nodes learned with the edges inside their class "
        "and recognised with the edges among all of them"
    )
    named = {"+".join(map(str, hops)): error for hops, error in by_hops.items()}
    return Choice(list(best), size, reason, named, {str(size): error for size, error in by_expansion.items()})


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """Some training nodes in two views: learned apart (edges inside classes), recognised together (all edges)."""

    apart: Sequence[Tensor]
    together: Sequence[Tensor]
    """Unit rows after 0, 1, … hops."""
    labels: Tensor

    @classmethod
    def of(
        cls, task: Task, labels: Tensor, propagation: Propagation, most: int, generator: torch.Generator
    ) -> "Rehearsal":
        graph = task.graph.induced(task.nodes, propagation.runtime.budget)
        own = labels.cpu().numpy()
        views = (Graph.of(graph.x, graph.neighbours.within(own), symmetric=graph.symmetric or None), graph)
        some = sample(labels, PROBE_ROWS, generator)
        # One view after the other, and of each only the rows that are looked at.
        blocks = [propagation.rows(view, range(most + 1), at=some) for view in views]
        apart, together = (block.chunk(most + 1, dim=1) for block in blocks)
        return cls(apart, together, torch.unique(labels[some], return_inverse=True)[1])

    def errors(
        self, propagation: Propagation, hops: tuple[int, ...], expansion: int, ridges: Sequence[float]
    ) -> dict[float, float]:
        """Mean over classes of the squared error, by ridge. In single precision: good to three digits, and fast."""
        to_rows = FeatureMap(propagation, hops, expansion).expanded
        phi, psi = (to_rows(side_by_side(view, hops), torch.float32) for view in (self.apart, self.together))
        count = torch.bincount(self.labels)
        weights = count.float().reciprocal()[self.labels]
        targets = torch.nn.functional.one_hot(self.labels).float()
        weighted = phi * weights.sqrt()[:, None]
        gram, cross = weighted.T @ weighted, phi.T @ (targets * weights[:, None])
        errors = {}
        for ridge in ridges:
            factor = factorise(gram, ridge)
            w = ridge_weights(factor, cross)
            half_phi, half_psi = factor.half(phi.T), factor.half(psi.T)
            residual = left_out_residual(targets, phi @ w, leverage(half_phi, half_phi, weights))
            predicted = left_out_prediction(psi @ w, leverage(half_phi, half_psi, weights), residual)
            errors[ridge] = float(((targets - predicted).square().sum(dim=1) * weights).sum() / len(count))
        return errors


def choose_ridge(gram: Tensor, cross: Tensor, judges: LeftOut) -> tuple[float, dict[str, float]]:
    """The smallest ridge that is about as good as the best, and the error of each."""
    gram, cross = gram[:CORNER, :CORNER].float(), cross[:CORNER].float()  # good to three digits, and fast
    errors = {ridge: judges.error(factorise(gram, ridge), cross) for ridge in RIDGES}
    enough = NEAR * errors[least(errors)]
    chosen = min(ridge for ridge, error in errors.items() if error <= enough)
    return chosen, {f"{ridge:g}": error for ridge, error in errors.items()}


def least(errors: Mapping[Key, float]) -> Key:
    """The first of those with the least error; an error that is no number is none."""
    numbers = {key: error for key, error in errors.items() if math.isfinite(error)}
    if not numbers:
        raise NonFiniteError("the leave-one-out errors of training nodes are NaN or infinite")
    return min(numbers, key=numbers.__getitem__)


def sample(labels: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """About `most` positions, every class with the same number as far as it has them."""
    order = torch.randperm(len(labels), generator=generator, device=labels.device)
    share = max(10, most // max(1, len(torch.unique(labels))))
    kept = [order[labels[order] == c][:share] for c in torch.unique(labels)]
    return torch.cat(kept) if kept else order
