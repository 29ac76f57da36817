"""How sure a model may be: found with training nodes that are set aside, and kept as quantiles of a few scores.

When a task begins, some of its training nodes are set aside and a copy of the model learns the others. What the copy
says of the held-out nodes gives the sharpness that calibrates probabilities, quantiles of novelty scores, and
of what it gives their own class. Then the model itself learns all nodes; one that forgets exactly learns them
first, and its copy is the model less the held-out nodes. Each class of the task is taken away from the copy in turn:
the score that finds its nodes best among the others is the one that rejects.

Classes that came earlier are not there to be asked again, but all classes know more rivals now. What more rivals do is
measured on the held-out nodes, by hiding classes from them, and what is kept of earlier classes moves as far.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from ipal.backend.checks import check_shapes, require
from ipal.data.task import Task
from ipal.errors import CapacityError, DataError, NonFiniteError
from ipal.estimator.open_world.held_out import AWAY, SHARPEST, Aside, hidden_sets, shown
from ipal.estimator.open_world.scores import NAMES, auroc
from ipal.estimator.predictor import Predictor

FEWEST = 64
"""Training nodes of a task: of fewer, too few would be set aside to say anything."""
LEVELS = 64
"""Quantiles that are kept of each score and class."""
UNCALIBRATED = 0.1
"""How much is said for leaving probabilities as they are; held-out nodes say more, unless they are very few."""
LASTING = 0.5
"""What was said for a power counts so much after one more task: it was found with fewer nodes and classes."""


def sharpened(probabilities: Tensor, sharpness: float) -> Tensor:
    r"""Probabilities raised to a power.

    .. math:: \tilde p_i(c) = p_i(c)^s \Big/ \sum_k p_i(k)^s

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", Sec. 4.2, with s = 1 / T.
    """
    return (sharpness * _logs(probabilities)).softmax(dim=-1)


def _logs(probabilities: Tensor) -> Tensor:
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


@dataclass(frozen=True, eq=False)
class Calibration:
    """What held-out nodes have shown, one row a class in the model's order."""

    count: Tensor
    """(classes,): how many nodes of it were set aside."""
    sharpness: Tensor
    """(classes, 2): logarithm of the power that calibrates its probabilities, times the model's `separation`, and how
    much is said for it."""
    own: Tensor
    """(classes, LEVELS): quantiles of the margins that its nodes give to it, divided by the model's `separation`, and
    less that of the class mean, where one is kept."""
    novelty: Tensor
    """(classes, NAMES, LEVELS): quantiles of the scores of its nodes."""
    found: Tensor
    """(NAMES,): sum of AUROCs of classes taken away."""
    trials: Tensor
    """(1,): how many those were."""

    @classmethod
    def empty(cls) -> "Calibration":
        kinds = len(NAMES)
        count, sharpness = torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2)
        own, novelty, trials = torch.zeros(0, LEVELS), torch.zeros(0, kinds, LEVELS), torch.zeros(1, dtype=torch.int64)
        return cls(count, sharpness, own, novelty, torch.zeros(kinds), trials)

    def __bool__(self) -> bool:
        """Whether any node was set aside."""
        return bool(self.count.any())

    def of_classes(self, classes: Tensor) -> "Calibration":
        """Some rows, in this order."""
        if not self:
            return self
        at = classes.cpu()
        return replace(
            self, count=self.count[at], sharpness=self.sharpness[at], own=self.own[at], novelty=self.novelty[at]
        )

    def padded(self, classes: int) -> "Calibration":
        """With rows for so many classes."""
        more = max(0, classes - len(self.count))
        rows = {name: torch.cat([one, one.new_zeros(more, *one.shape[1:])]) for name, one in self._rows().items()}
        return replace(self, **rows)

    def united(self, places: Tensor, classes: int) -> "Calibration":
        """Row i pooled into row `places[i]` of so many."""
        found = Calibration.empty().padded(classes)
        for row, place in enumerate(places.tolist() if self else ()):
            found = found.pooled(self.of_classes(torch.tensor([row]))._at(torch.tensor([place]), classes))
        return replace(found, found=self.found, trials=self.trials)

    def merged(self, other: "Calibration", places: Tensor, classes: int) -> "Calibration":
        """With that of another model, whose classes are to be at these places."""
        if not self or not other:  # what is known of one alone says nothing of the other's classes
            return Calibration.empty()
        both = self.padded(classes).pooled(other._at(places, classes))
        return replace(both, found=self.found + other.found, trials=self.trials + other.trials)

    def _at(self, places: Tensor, classes: int) -> "Calibration":
        """Its rows at these places, among so many."""
        empty = Calibration.empty().padded(classes)
        rows = {name: one.index_copy(0, places.cpu(), self._rows()[name]) for name, one in empty._rows().items()}
        return replace(empty, **rows)

    def pooled(self, other: "Calibration") -> "Calibration":
        """Means of both, row by row, by the number of nodes behind them."""
        share = other.count / (self.count + other.count).clamp_min(1)
        rows = {
            name: one.lerp(other._rows()[name], share.float().reshape(-1, *[1] * (one.dim() - 1)))
            for name, one in self._rows().items()
            if name not in ("count", "sharpness")
        }
        says, more = self.sharpness[:, 1], other.sharpness[:, 1]
        power = self.sharpness[:, 0].lerp(other.sharpness[:, 0], more / (says + more).clamp_min(1e-12))
        sharpness = torch.stack([power, says + more], dim=1)
        return replace(self, count=self.count + other.count, sharpness=sharpness, **rows)

    def _rows(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in ("count", "sharpness", "own", "novelty")}

    # ------------------------------------------------------------------ what it says

    @property
    def power(self) -> float:
        """The power that calibrates probabilities; one where nothing is known."""
        powers, says = self.sharpness.double().unbind(dim=1)
        return math.exp(float((powers * says).sum() / (says.sum() + UNCALIBRATED)))

    @property
    def kind(self) -> int:
        """The number of the score that finds unknown classes best."""
        return int(self.found.argmax())

    def threshold(self, share: float) -> float:
        """Beyond which a score rejects about this share of known nodes."""
        return self._quantile(self.novelty[:, self.kind], 1 - share)

    def least_margin(self, coverage: float, of_means: Tensor) -> float:
        """Of the own class, which about this share of nodes have, or more; given the margins of class means."""
        return self._quantile(self.own.double() + of_means[:, None], 1 - coverage)

    def _quantile(self, values: Tensor, level: float) -> float:
        """Of all classes together, by their number of nodes."""
        weights = (self.count / LEVELS)[:, None].expand_as(values).flatten().double()
        ordered, order = values.double().flatten().sort()
        shares = (weights[order].cumsum(0) - weights[order] / 2) / weights.sum()
        known = weights[order] > 0
        return float(np.interp(level, shares[known].numpy(), ordered[known].numpy()))

    # ------------------------------------------------------------------ as tensors

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)} if self else {}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> "Calibration":
        if not tensors:
            return cls.empty()
        for field in fields(cls):
            require(field.name in tensors, f"'calibration.{field.name}' is missing")
        return cls(**{field.name: tensors[field.name].cpu() for field in fields(cls)})

    def check(self, classes: int) -> None:
        """Refuse what cannot have come from a model of so many classes."""
        if not self.tensors():
            return
        kinds, like = len(NAMES), Calibration.empty()
        sizes = {"count": (classes,), "sharpness": (classes, 2), "own": (classes, LEVELS)}
        sizes |= {"novelty": (classes, kinds, LEVELS), "found": (kinds,), "trials": (1,)}
        check_shapes(self.tensors(), sizes.items())
        for name, tensor in self.tensors().items():
            require(tensor.dtype == getattr(like, name).dtype, f"'calibration.{name}' holds {tensor.dtype}")
        require(
            bool((self.count >= 0).all() and (self.trials >= 0).all()), "'calibration.count' holds negative numbers"
        )
        powers, says = self.sharpness.unbind(dim=1)
        require(bool((powers.abs() <= SHARPEST).all() and (says >= 0).all()), "'calibration.sharpness' is no sharpness")


# ---------------------------------------------------------------------- how it is found


def quantiles(values: Tensor) -> Tensor:
    """LEVELS of them for each column, evenly spaced: (columns, LEVELS)."""
    levels = (torch.arange(LEVELS, dtype=torch.float64) + 0.5) / LEVELS
    found: Tensor = torch.quantile(values.double(), levels, dim=0).T.float()
    return found.contiguous()


def calibrated(model: Predictor, task: Task) -> Calibration:
    """What is known after one more task, which a model that forgets has learned, and others are about to."""
    known: Calibration = model.calibration
    if model.config.calibration == 0 or len(task.nodes) < FEWEST or len(model.labels) < 2:
        return known.padded(len(model.labels)) if known else known
    random = np.random.default_rng([model.config.seed, len(task.nodes), 4])

    def found() -> Calibration:
        try:
            return taken_in(known, shown(model, task, random), len(model.labels), random)
        except (NonFiniteError, CapacityError, DataError):
            return known.padded(len(model.labels)) if known else known

    with model.runtime.tracer.span("calibration"):
        mine = found()  # the copy is learned by all processes, as the model is
        return model.runtime.team.broadcast(lambda: mine)


def taken_in(before: Calibration, shown: Aside, classes: int, random: np.random.Generator) -> Calibration:
    """What was known, moved as far as more classes move it, and what held-out nodes have shown."""
    hidden = list(hidden_sets(shown, len(before.count), classes, random)) if before else []
    earlier, latest = before.padded(classes), Calibration.empty().padded(classes)
    earlier = replace(earlier, sharpness=earlier.sharpness * torch.tensor([1.0, LASTING]))
    best, says = shown.power()
    count = torch.bincount(shown.labels, minlength=classes)
    share = (count / count.sum())[:, None]
    latest = replace(latest, count=count, sharpness=torch.cat([(share > 0) * best, share * says], dim=1))
    for among in hidden:
        power, sure = shown.power(among)
        move = (best - power) / len(hidden) if min(says, sure) > UNCALIBRATED else 0.0
        moved = (earlier.sharpness[:, :1] + move * (earlier.count > 0)[:, None]).clamp(-SHARPEST, SHARPEST)
        earlier = replace(earlier, sharpness=torch.cat([moved, earlier.sharpness[:, 1:]], dim=1))
    shown = shown.raised(earlier.pooled(latest).power)
    now = shown.measured()
    if hidden:
        then = quantiles(torch.cat([shown.measured(among) for among in hidden]))
        after = quantiles(torch.cat([now[shown.is_of(among)] for among in hidden]))
        rows = torch.cat([earlier.own[:, None], earlier.novelty], dim=1)
        rows = torch.stack(
            [moved_along(rows[:, place], then[place], after[place]) for place in range(len(then))], dim=1
        )
        earlier = replace(earlier, own=rows[:, 0], novelty=rows[:, 1:])
    tried = list(shown.without(anew=int(before.trials) < AWAY))
    own, novelty = latest.own.clone(), latest.novelty.clone()
    for row in shown.classes.tolist():
        here = shown.labels == row
        own[row] = quantiles(now[here, :1])[0]
        # Nodes may be known and have neighbours that are not: both cases count the same.
        beside = [scores[here & ~away] for away, scores in tried if (here & ~away).any()]
        novelty[row] = quantiles(torch.cat([now[here, 1:]] * max(1, len(beside)) + beside))
    both = earlier.pooled(replace(latest, own=own, novelty=novelty))
    aurocs = [auroc(scores[away], scores[~away]) for away, scores in tried]
    found = both.found + sum(aurocs, torch.zeros(len(NAMES))).float()
    return replace(both, found=found, trials=both.trials + len(tried))


def moved_along(values: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Values, as the map between the quantiles of two distributions moves them; beyond the ends as far as at these."""
    inside = values.clamp(before[0], before[-1])
    at = torch.from_numpy(np.interp(inside.numpy(), before.numpy(), after.numpy())).to(values.dtype)
    return at + (values - inside)
