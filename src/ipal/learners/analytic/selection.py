"""How the closed form chooses its own settings, from training nodes alone, by leave-one-out error in closed form.

Hops and expansion, on the first task. A task is learned from its own graph, but may be tested among all others, where a
node has neighbours that it did not have when it was learned. Both are rehearsed (`Rehearsal`): training nodes are
learned with the edges inside their class only, or with the edges among all of them, and recognised, each by the model
that was not shown it, with the edges among all of them. The mean of both errors counts, or the one that fits the graphs
on which a learner will predict, where that is known. Of single hops, without an expansion, the fewest are taken that
none is clearly better than, by twice the standard error of the difference of squared errors; of more than two hops also
by the standard error of the least, unless each task is tested on its own graph: with every hop more classes mix on the
graph of all tasks. Others stand beside them only where that lowers the log-loss, which counts nodes between two classes
more, by more than twice its standard error. An expansion is wider than the features, and is used where the narrowest
lowers the squared error by more than the standard error of the difference. Then it is as wide as the first task has
rows, for more directions only come closer to their kernel, and hops are compared anew with it.

The ridge, at every task, from the nodes just learned and the errors of earlier tasks: the smallest whose leave-one-out
squared error is within a few percent of the least. The error counts uniform shrinkage as a fault, which the best class
does not feel, so that its least is at a ridge somewhat too large. Wide models are judged by a corner of their sums,
which are exactly the sums of a narrower model.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ipal.config import TestGraph
from ipal.data.csr import Neighbours
from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.errors import NonFiniteError
from ipal.learners.analytic.feature_map import FeatureMap, Place, Propagation
from ipal.learners.analytic.ridge import (
    Diagonal,
    Factor,
    Spectrum,
    best_scale,
    left_out_prediction,
    left_out_residual,
    leverage,
    ridge_weights,
)
from ipal.learners.analytic.rows import Rows

SINGLE = tuple((hop,) for hop in range(7))
HOPS: tuple[tuple[int, ...], ...] = (*SINGLE, (0, 1), (0, 2), (1, 2), (2, 3), (0, 1, 2), (1, 2, 3))
RIDGES = tuple(float(f"{10 ** (power / 2):.2g}") for power in range(-6, 4))
NEAR = 1.02
"""An error of so many times the least is as good."""
CORNER = 2048
"""Width at which ridges are compared."""
REHEARSED_RIDGES = RIDGES[::2]
REHEARSED_ROWS = 768
LEFT_OUT_ROWS = 1024
DEFAULT_HOPS = (2,)
ROUNDS = 2
"""Hops are compared anew with the expansion that was chosen, if one was."""
CLEARLY = 2
"""Standard errors by which more hops, or hops side by side, must be better: they mix more, or keep more."""
FEW_COLUMNS = 512
"""With fewer, features are expanded where nothing can be compared."""
FEWEST_ROWS, FEW_ROWS = 64, 256
"""Fewer rows than these, as in a small first batch, are not asked; few leave the default unless others are clearly
better, for fewer hops are level with more where errors are large."""

Key = TypeVar("Key")


@dataclass(frozen=True)
class Choice:
    """Hops and expansion, and why."""

    hops: list[int]
    sketch: int
    """Columns of each, where features are projected."""
    expansion: int
    reason: str
    hops_errors: dict[str, float]
    """Rehearsed leave-one-out error of each candidate."""
    hops_error_deviation: float
    """Standard error of the least of them."""
    expansion_errors: dict[str, float]
    """The same of the expansions that were tried with the chosen hops."""


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Rows by which the ridge is judged."""

    rows: Tensor
    """(rows, width), float64"""
    labels: Tensor
    weights: Tensor
    """1 / n of each row's class, as in the sums."""

    def residuals(self, factor: Factor | Diagonal, cross: Tensor) -> tuple[Tensor, Tensor]:
        """Targets, and what is missed of them by the model that never saw the row."""
        rows = self.rows[:, : len(cross)].to(cross.dtype)
        half = factor.half(rows.T)
        targets = torch.nn.functional.one_hot(self.labels, cross.shape[1]).to(cross.dtype)
        predicted = rows @ ridge_weights(factor, cross)
        return targets, left_out_residual(targets, predicted, leverage(half, half, self.weights))

    def error(self, factor: Factor | Diagonal, cross: Tensor) -> float:
        """Mean over the classes just learned of the squared error."""
        _, residual = self.residuals(factor, cross)
        return float((residual.square().sum(dim=1) * self.weights).sum() / self.weights.sum())

    def best_scale(self, factor: Factor, cross: Tensor) -> float:
        """The factor that makes the softmax of leave-one-out scores best calibrated."""
        targets, residual = self.residuals(factor, cross)
        return best_scale(targets - residual, self.labels, self.weights)


@dataclass(frozen=True, eq=False)
class Loss:
    """Mean over classes of the squared error of left-out rows, at the ridge where it is least."""

    mean: float
    deviation: float
    """Its standard error."""
    ridge: float
    rows: Tensor
    """Of each row."""
    log_rows: Tensor
    """The log-loss of each row, with the best scale."""


def choose_features(
    task: Task,
    labels: Tensor,
    propagation: Propagation,
    options: Mapping[tuple[int, ...], Sequence[int]],
    generator: torch.Generator,
    *,
    divided: bool = False,
    test_graph: TestGraph = "both",
) -> Choice:
    """Hops, and an expansion that is possible with them: more of either only where it is better by more than chance.

    `divided`: hops side by side share the columns to which wide features are projected.
    """
    test_graph = "isolated" if len(task.graph.others) else test_graph  # others have no class to be learned apart by
    one_class, too_few, few = len(torch.unique(labels)) < 2, len(labels) < FEWEST_ROWS, len(labels) < FEW_ROWS
    if one_class or too_few or [len(sizes) for sizes in options.values()] == [1]:
        chosen = DEFAULT_HOPS if DEFAULT_HOPS in options else next(iter(options))
        # Few features are hardly ever told apart by lines.
        size = next(
            (size for size in options[chosen] if (size or propagation.columns) >= FEW_COLUMNS), options[chosen][-1]
        )
        why = "with one class there is nothing to compare; " * one_class
        why += f"fewer than {FEWEST_ROWS} training nodes say too little; " * too_few
        why += "hops and expansion as set or by default"
        return Choice(list(chosen), propagation.sketch, size, why, {}, 0.0, {})
    rehearsal = Rehearsal.of(task, labels, propagation, max(chain(*options)), generator, test_graph)

    def features(hops: tuple[int, ...], size: int) -> FeatureMap:
        share = len(propagation.places(hops)) if divided and propagation.columns < propagation.num_features else 1
        return FeatureMap(replace(propagation, sketch=propagation.sketch // share), hops, size)

    size, tried, by_expansion = 0, dict[tuple[int, ...], Loss](), dict[str, float]()
    for _ in range(ROUNDS):
        sizes = {hops: size if size in some else some[0] for hops, some in options.items()}
        maps = {hops: features(hops, columns) for hops, columns in sizes.items()}
        chosen, tried = choose_hops(rehearsal, maps, few=few)
        size = sizes[chosen]
        by_expansion[str(size)] = tried[chosen].mean
        unexpanded = propagation.num_features * len(propagation.places(chosen))
        wider = [columns for columns in options[chosen] if columns > unexpanded]
        if size or not wider:
            break
        found = rehearsal.loss(features(chosen, wider[0]))
        by_expansion[str(wider[0])] = found.mean
        gain, deviation = balanced_mean(tried[chosen].rows - found.rows, rehearsal.labels)
        if gain <= deviation:
            break
        size = wider[-1]
    reason = (
        "the fewest hops, and the smallest model, that none is better than by more than chance in leave-one-out error "
        f"of training nodes, with edges as on test graphs ({test_graph})"
    )
    if few:
        reason += f"; of fewer than {FEW_ROWS} training nodes two hops, unless others are clearly better"
    named = {"+".join(map(str, hops)): found.mean for hops, found in tried.items()}
    sketch = features(chosen, size).propagation.sketch
    deviation = tried[least({hops: found.mean for hops, found in tried.items()})].deviation
    return Choice(list(chosen), sketch, size, reason, named, deviation, by_expansion)


def choose_hops(
    rehearsal: "Rehearsal", options: Mapping[tuple[int, ...], FeatureMap], *, few: bool = False
) -> tuple[tuple[int, ...], dict[tuple[int, ...], Loss]]:
    """The fewest single hops that none is clearly better than, others beside them; and what was tried.

    By few rows the default is chosen where none is clearly better than it.
    """
    tried: dict[tuple[int, ...], Loss] = {}
    for hops in in_turn(options, tried):
        tried[hops] = rehearsal.loss(options[hops])
    best = tried[least({hops: found.mean for hops, found in tried.items()})]
    level = [hops for hops in tried if rehearsal.is_level(tried[hops], best, hops)]
    if few:
        return DEFAULT_HOPS if DEFAULT_HOPS in level else min(level, key=max), tried
    chosen = min(level, key=max)
    for together in (2, 3):
        more = [hops for hops in options if len(hops) == together and set(hops) > set(chosen)]
        tried |= {hops: rehearsal.loss(options[hops]) for hops in more}
        logs = {hops: balanced_mean(tried[hops].log_rows, rehearsal.labels) for hops in (chosen, *more)}
        beside = least({hops: mean for hops, (mean, _) in logs.items()})
        mean, deviation = logs[beside]
        if logs[chosen][0] <= mean + CLEARLY * deviation:
            break
        chosen = beside
    return chosen, tried


def in_turn(options: Iterable[tuple[int, ...]], tried: Mapping[tuple[int, ...], Loss]) -> Iterator[tuple[int, ...]]:
    """Single hops to try (or what there is): up and down from the default as long as the error falls, and none."""
    single: list[tuple[int, ...]] = sorted(hops for hops in options if len(hops) == 1) or list(options)
    middle = single.index(DEFAULT_HOPS) if DEFAULT_HOPS in single else 0
    for way in (single[middle:], single[middle::-1], single[:1]):
        best = math.inf
        for hops in way:
            if hops not in tried:
                yield hops
            if tried[hops].mean > best:
                break
            best = tried[hops].mean


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """Some training nodes: learned apart (edges inside classes) or together (all edges), recognised together."""

    together: Mapping[Place, Tensor]
    """Unit rows after 0, 1, … hops."""
    apart: Mapping[Place, Tensor]
    """The same; none where graphs with edges between tasks do not count."""
    labels: Tensor
    test_graph: TestGraph = "both"

    @classmethod
    def of(
        cls,
        task: Task,
        labels: Tensor,
        propagation: Propagation,
        most: int,
        generator: torch.Generator,
        test_graph: TestGraph = "both",
    ) -> "Rehearsal":
        nodes = np.concatenate([task.nodes, task.graph.others])  # without others, some would have no edges
        graph = task.graph.induced(nodes, propagation.runtime.budget)
        some = sample(labels, REHEARSED_ROWS, generator)

        def rows(view: Graph) -> Mapping[Place, Tensor]:
            return propagation.by_place(view, range(most + 1), some)

        within = partial(Neighbours.within, groups=labels.cpu().numpy())
        apart = {} if test_graph == "isolated" else rows(graph.changed(within, symmetric=graph.symmetric or None))
        return cls(rows(graph), apart, torch.unique(labels[some], return_inverse=True)[1], test_graph)

    def is_level(self, found: Loss, best: Loss, hops: tuple[int, ...]) -> bool:
        """Whether a squared error is not clearly above the least, row by row.

        More hops than by default must be better than that, where they mix tasks: by a standard error of the least.
        """
        excess, deviation = balanced_mean(found.rows - best.rows, self.labels)
        mixes = hops >= DEFAULT_HOPS and self.test_graph != "isolated"
        return excess <= max(CLEARLY * deviation, best.deviation * mixes)

    @property
    def weights(self) -> Tensor:
        """1 / n of each row's class."""
        return torch.bincount(self.labels).float().reciprocal()[self.labels]

    def loss(self, features: FeatureMap) -> Loss:
        """Of a feature map, in the mean of the test graphs that count."""
        columns = features.propagation.columns

        def mapped(view: Mapping[Place, Tensor]) -> Tensor:
            rows = [unit(view[place][:, :columns]) for place in features.places]
            return features.expanded(torch.cat(rows, dim=1), torch.float32)

        together, scores = mapped(self.together), []
        if self.test_graph != "isolated":
            scores.append(self.predicted(mapped(self.apart), together))
        if self.test_graph != "seen":
            scores.append(self.predicted(together))
        targets = torch.nn.functional.one_hot(self.labels).float()
        found = {}
        for ridge in REHEARSED_RIDGES:
            errors = [(targets - view[ridge]).square().sum(dim=1) for view in scores]
            found[ridge] = torch.stack(errors).mean(dim=0)
        means = {ridge: balanced_mean(rows, self.labels) for ridge, rows in found.items()}
        ridge = least({ridge: mean for ridge, (mean, _) in means.items()})
        logs = [log_losses(view[ridge], self.labels, self.weights) for view in scores]
        return Loss(*means[ridge], ridge, found[ridge], torch.stack(logs).mean(dim=0))

    def predicted(self, phi: Tensor, psi: Tensor | None = None) -> dict[float, Tensor]:
        """By ridge: scores of each node in the view psi, by the model that learned all others in the view phi.

        The same view where psi is None. In single precision: good to three digits, and fast.
        """
        weights, targets = self.weights, torch.nn.functional.one_hot(self.labels).float()
        root = weights.sqrt()[:, None]
        spectrum, weighted, other = Spectrum.of_rows(phi * root, psi)
        phi = weighted / root
        psi = phi if psi is None else other
        cross = weighted.T @ (targets * root)
        found = {}
        for ridge in REHEARSED_RIDGES:
            factor = spectrum.at(ridge)
            w = ridge_weights(factor, cross)
            half_phi, half_psi = factor.half(phi.T), factor.half(psi.T)
            residual = left_out_residual(targets, phi @ w, leverage(half_phi, half_phi, weights))
            found[ridge] = left_out_prediction(psi @ w, leverage(half_phi, half_psi, weights), residual)
        return found


def unit(rows: Tensor) -> Tensor:
    """Rows of length one; the first columns of a projection are a narrower one."""
    return torch.nn.functional.normalize(rows)


def log_losses(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy of each row, with the scale that makes the whole best calibrated."""
    scale = best_scale(scores, labels, weights)
    return torch.nn.functional.cross_entropy(scale * scores, labels, reduction="none")


def balanced_mean(errors: Tensor, labels: Tensor) -> tuple[float, float]:
    r"""Mean over classes of the mean error of their rows, and its standard error.

    .. math:: \bar e = \frac{1}{C} \sum_c \bar e_c, \quad
        \mathrm{SE} = \frac{1}{C} \sqrt{\sum_c \frac{s_c^2}{n_c}}

    Source: Cochran 1977, "Sampling Techniques", Eq. 5.7: a stratified sample, every stratum with the same weight;
    s_c is the sample standard deviation of class c, zero where it has one row.
    """
    count = torch.bincount(labels).to(errors.dtype)
    mean = torch.zeros_like(count).index_add_(0, labels, errors) / count
    squares = torch.zeros_like(count).index_add_(0, labels, (errors - mean[labels]).square())
    variance = squares / (count - 1).clamp_min(1)
    return float(mean.mean()), float((variance / count).sum().sqrt() / len(count))


def choose_ridge(
    gram: Tensor, cross: Tensor, judges: LeftOut, before: Sequence[Mapping[str, Any]] = ()
) -> tuple[float, dict[str, Any]]:
    """The smallest ridge that is about as good as the best, and a record of the errors behind it.

    Each task shows its own classes only: all of them so far have a say, by their number, through the records `before`.
    """
    gram, cross = gram[:CORNER, :CORNER].float(), cross[:CORNER].float()  # good to three digits, and fast
    spectrum, vectors = Spectrum.of_gram(gram)
    turned, cross = replace(judges, rows=judges.rows[:, : len(cross)].float() @ vectors), vectors.T @ cross
    errors = {f"{ridge:g}": turned.error(spectrum.at(ridge), cross) for ridge in RIDGES}
    record: dict[str, Any] = {"errors": errors, "classes": len(torch.unique(judges.labels))}
    told = [one for one in before if one["errors"].keys() == errors.keys()]
    classes = sum(one.get("classes", 1) for one in told)
    share = still_spoken_for(classes, cross.shape[1], record["classes"]) / max(1, classes)
    says = [(share * one.get("classes", 1), one["errors"]) for one in told] + [(record["classes"], errors)]
    mean = {ridge: sum(weight * one[ridge] / one[least(one)] for weight, one in says) for ridge in errors}
    enough = NEAR * mean[least(mean)]
    chosen = min(float(ridge) for ridge, error in mean.items() if error <= enough)
    return chosen, {"chosen": chosen, **record}


def still_spoken_for(judged: int, known: int, judging: int) -> int:
    """For how many classes earlier judges still speak: a class that comes again to judge speaks for itself."""
    return min(judged, known - judging)


def least(errors: Mapping[Key, float]) -> Key:
    """The first of those with the least error; an error that is no number is none."""
    numbers = {key: error for key, error in errors.items() if math.isfinite(error)}
    if not numbers:
        raise NonFiniteError("the leave-one-out errors of training nodes are NaN or infinite")
    return min(numbers, key=numbers.__getitem__)


def left_out_rows(rows: Rows, count: Tensor, generator: torch.Generator) -> Tensor:
    """Which of the rows just learned are to judge: some. The only node of a class cannot be left out."""
    able = torch.nonzero(count[rows.labels] > 1).flatten()
    return able[sample(rows.labels[able], LEFT_OUT_ROWS, generator)]


def sample(labels: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """About `most` positions, every class with the same number as far as it has them."""
    order = torch.randperm(len(labels), generator=generator, device=labels.device)
    share = max(10, most // max(1, len(torch.unique(labels))))
    kept = [order[labels[order] == c][:share] for c in torch.unique(labels)]
    return torch.cat(kept) if kept else order
