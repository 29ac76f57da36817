"""How the closed form chooses its own settings, from training nodes alone, by leave-one-out error in closed form.

Hops, restart and expansion, on the first task, which is rehearsed as a stream in small (see rehearsal.py). Of single
hops, without an expansion, those with the least log-loss are taken; others stand beside them only where that lowers it
by more than twice its standard error. An expansion is wider than the features, and is used where the narrowest lowers
the squared error by more than the standard error of the difference. Then it is as wide as the first task has rows, for
more directions only come closer to their kernel, and hops are compared anew with it.

The ridge, at every task, from the nodes just learned and the losses of earlier tasks: the smallest whose leave-one-out
log-loss is within a few percent of the least. (The squared error counts uniform shrinkage as a fault, which the best
class does not feel: it takes other ridges, which are less accurate.) Wide models are judged by a corner of their sums,
which are exactly the sums of a narrower model.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ipal.config import TestGraph
from ipal.data.streams import Task
from ipal.errors import NonFiniteError
from ipal.learners.analytic.feature_map import FeatureMap, Propagation
from ipal.learners.analytic.rehearsal import COLUMNS, Loss, Rehearsal, balanced_mean, sample
from ipal.learners.analytic.ridge import (
    Diagonal,
    Factor,
    Spectrum,
    best_scale,
    left_out_residual,
    leverage,
    log_loss,
    ridge_weights,
)
from ipal.learners.analytic.rows import Rows
from ipal.learners.analytic.spread import Spread

RESTARTS = (0.1, 0.2, 0.4)
SPREADS = (
    *(Spread((hop,)) for hop in (0, 1, 2, 3, 4, 6, 8)),
    *(Spread((hop,), restart) for restart in RESTARTS for hop in (2, 3, 6)),
    *(Spread(hops) for hops in ((0, 1), (0, 2), (1, 2), (2, 3), (0, 1, 2), (1, 2, 3))),
)
DEFAULT = Spread((3,), 0.1)
RIDGES = tuple(float(f"{10 ** (power / 2):.2g}") for power in range(-6, 4))
NEAR = 1.02
"""An error of so many times the least is as good."""
CORNER = 2048
"""Width at which ridges are compared."""
LEFT_OUT_ROWS = 1024
ROUNDS = 2
"""Hops are compared anew with the expansion that was chosen, if one was."""
CLEARLY = 2
"""Standard errors by which hops side by side must be better, for they keep more."""
FEW_COLUMNS = 512
"""With fewer, features are expanded where nothing can be compared."""
FEWEST_ROWS, FEW_ROWS = 64, 256
"""Fewer rows than these, as in a small first batch, are not asked; few leave the default unless others are clearly
better. On graphs where tasks mix it is left where it is as good as the best: the first task, with a part of all
classes, does not show how much they mix."""

FARTHEST = 4
"""Mean steps on graphs with edges between tasks."""
FEWEST_MIXED = 3
"""Fewer classes are too few to mix as those of two tasks do."""

Key = TypeVar("Key")


@dataclass(frozen=True)
class Choice:
    """Hops, restart and expansion, and why."""

    hops: list[int]
    restart: float
    sketch: int
    """Columns of each, where features are projected."""
    expansion: int
    reason: str
    hops_errors: dict[str, float]
    """Rehearsed leave-one-out log-loss of each candidate."""
    hops_error_deviation: float
    """Standard error of the least of them."""
    expansion_errors: dict[str, float]
    """The rehearsed squared error of the expansions that were tried with the chosen hops."""


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Rows by which the ridge is judged."""

    rows: Tensor
    """(rows, width), float64"""
    labels: Tensor
    weights: Tensor
    """1 / n of each row's class, as in the sums."""

    def scores(self, factor: Factor | Diagonal, cross: Tensor) -> Tensor:
        """Of every row by the model that never saw it."""
        rows = self.rows[:, : len(cross)].to(cross.dtype)
        half = factor.half(rows.T)
        targets = torch.nn.functional.one_hot(self.labels, cross.shape[1]).to(cross.dtype)
        predicted = rows @ ridge_weights(factor, cross)
        return targets - left_out_residual(targets, predicted, leverage(half, half, self.weights))

    def error(self, factor: Factor | Diagonal, cross: Tensor) -> float:
        """Mean over the classes just learned of the log-loss, with the best scale."""
        scores, weights = self.scores(factor, cross), self.weights / self.weights.sum()
        return log_loss(scores, self.labels, weights, best_scale(scores, self.labels, weights))

    def best_scale(self, factor: Factor, cross: Tensor) -> float:
        """The factor that makes the softmax of leave-one-out scores best calibrated."""
        return best_scale(self.scores(factor, cross), self.labels, self.weights)


def choose_features(
    task: Task,
    labels: Tensor,
    propagation: Propagation,
    options: Mapping[Spread, Sequence[int]],
    generator: torch.Generator,
    *,
    divided: bool = False,
    test_graph: TestGraph = "both",
) -> Choice:
    """How features are propagated, and an expansion that is possible with it: one only where it is clearly better.

    `divided`: hops side by side share the columns to which wide features are projected.
    """
    classes, too_few, few = len(torch.unique(labels)), len(labels) < FEWEST_ROWS, len(labels) < FEW_ROWS
    one_class, unmixed = classes < 2, classes < FEWEST_MIXED and test_graph != "isolated"
    farthest = math.inf if test_graph == "isolated" else DEFAULT.steps if unmixed else FARTHEST
    options = {spread: some for spread, some in options.items() if spread.steps <= farthest} or options
    if one_class or too_few or [len(sizes) for sizes in options.values()] == [1]:
        chosen = DEFAULT if DEFAULT in options else next(iter(options))
        # Few features are hardly ever told apart by lines.
        size = next(
            (size for size in options[chosen] if (size or propagation.columns) >= FEW_COLUMNS), options[chosen][-1]
        )
        why = "with one class there is nothing to compare; " * one_class
        why += f"fewer than {FEWEST_ROWS} training nodes say too little; " * too_few
        why += "hops and expansion as set or by default"
        return Choice(list(chosen.hops), chosen.restart, propagation.sketch, size, why, {}, 0.0, {})
    default_within = CLEARLY if few else int(test_graph != "isolated")
    rehearsal = Rehearsal.of(task, labels, propagation, list(options), generator, test_graph)

    projected = propagation.columns < propagation.num_features

    def features(spread: Spread, size: int, most: int = propagation.sketch) -> FeatureMap:
        columns = propagation.sketch // (len(propagation.places(spread)) if divided and projected else 1)
        return FeatureMap(replace(propagation, sketch=min(columns, most) if projected else columns), spread, size)

    size, tried, by_expansion = 0, dict[Spread, Loss](), dict[str, float]()
    for _ in range(ROUNDS):
        sizes = {spread: size if size in some else some[0] for spread, some in options.items()}
        maps = {spread: features(spread, columns, COLUMNS) for spread, columns in sizes.items()}
        chosen, tried = choose_spread(rehearsal, maps, default_within)
        size = sizes[chosen]
        unexpanded = propagation.num_features * len(propagation.places(chosen))
        wider = [columns for columns in options[chosen] if columns > unexpanded]
        if size or not wider:
            break
        without, found = (rehearsal.loss(features(chosen, columns)).squared for columns in (size, wider[0]))
        for columns, squared in ((size, without), (wider[0], found)):
            by_expansion[str(columns)] = balanced_mean(squared, rehearsal.labels)[0]
        gain, deviation = balanced_mean(without - found, rehearsal.labels)
        if gain <= deviation:
            break
        size = wider[-1]
    reason = (
        "the least log-loss of training nodes, each left out, with some classes learned as if they came later "
        f"({test_graph} test graphs); more columns only where they are better by more than chance"
        + f"; the default where none is better by {default_within} standard error(s)"
        * bool(default_within)
    )
    if unmixed:
        reason += f"; fewer than {FEWEST_MIXED} classes do not show how tasks mix: not farther than by default"
    sketch = features(chosen, size).propagation.sketch
    named = {str(spread): found.mean for spread, found in tried.items()}
    deviation = tried[least({spread: found.mean for spread, found in tried.items()})].deviation
    return Choice(list(chosen.hops), chosen.restart, sketch, size, reason, named, deviation, by_expansion)


def choose_spread(
    rehearsal: Rehearsal, options: Mapping[Spread, FeatureMap], default_within: int = 0
) -> tuple[Spread, dict[Spread, Loss]]:
    """The hops and restart with the least log-loss, others beside them where that is clearly less; and what was tried.

    The default, where none is better than it by more than so many standard errors.
    """
    tried: dict[Spread, Loss] = {}
    for spread in in_turn(options, tried):
        tried[spread] = rehearsal.loss(options[spread])
    chosen = least({spread: found.mean for spread, found in tried.items()})
    if default_within and DEFAULT in tried:
        excess, deviation = balanced_mean(tried[DEFAULT].rows - tried[chosen].rows, rehearsal.labels)
        chosen = DEFAULT if excess <= default_within * deviation else chosen
    for together in (2, 3):
        more = [
            spread
            for spread in options
            if len(spread.hops) == together and set(spread.hops) > set(chosen.hops) and spread.restart == chosen.restart
        ]
        tried |= {spread: rehearsal.loss(options[spread]) for spread in more}
        beside = least({spread: tried[spread].mean for spread in (chosen, *more)})
        if tried[chosen].mean <= tried[beside].mean + CLEARLY * tried[beside].deviation:
            break
        chosen = beside
    return chosen, tried


def in_turn(options: Iterable[Spread], tried: Mapping[Spread, Loss]) -> Iterator[Spread]:
    """Single hops to try (or what there is): none; then for each restart up and down as long as the loss falls.

    Restarts grow as long as the loss falls.
    """
    single = sorted(spread for spread in options if len(spread.hops) == 1) or list(options)
    yield single[0]
    best = math.inf
    for restart in sorted({spread.restart for spread in single}):
        ways = [spread for spread in single if spread.restart == restart]
        hops = [spread.hops for spread in ways]
        middle = hops.index(DEFAULT.hops) if DEFAULT.hops in hops else 0
        for way in (ways[middle:], ways[middle::-1]):
            here = math.inf
            for spread in way:
                if spread not in tried:
                    yield spread
                if tried[spread].mean > here:
                    break
                here = tried[spread].mean
        found = min(tried[spread].mean for spread in ways if spread in tried)
        if found > best:
            break
        best = found


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
    known = cross.shape[1]
    record: dict[str, Any] = {"log_losses": errors, "classes": len(torch.unique(judges.labels)), "known": known}
    told = [one for one in before if one.get("log_losses", {}).keys() == errors.keys()]
    classes = sum(one.get("classes", 1) for one in told)
    share = still_spoken_for(classes, known, record["classes"]) / max(1, classes)
    says = [(share * one["classes"], as_of(one["log_losses"], known / one["known"])) for one in told]
    says.append((record["classes"], errors))
    mean = {ridge: sum(weight * one[ridge] for weight, one in says) for ridge in errors}
    enough = NEAR * mean[least(mean)]
    chosen = min(float(ridge) for ridge, error in mean.items() if error <= enough)
    return chosen, {"chosen": chosen, **record}


def as_of(losses: Mapping[str, float], times: float) -> dict[str, float]:
    """Losses by ridge that were measured with fewer classes, now that there are so many times as many.

    G adds up over classes, and its mean diagonal with it: the same ridge is relatively smaller with more of them.
    Between the ridges that were tried losses are interpolated, by the logarithm of the ridge.
    """
    logs = [math.log(float(ridge)) for ridge in losses]
    found = np.interp([one + math.log(times) for one in logs], logs, list(losses.values()))
    return dict(zip(losses, found.tolist(), strict=True))


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
