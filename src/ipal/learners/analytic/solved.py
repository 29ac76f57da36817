"""From sums to a model: the ridge, the weights and the calibration, solved when they are asked for.

Rows just learned decide on the ridge and the calibration (see selection.py). A batch whose classes are all new, as a
task of the class-incremental stream is, is judged by its own rows at its end. Other batches may be small and many: some
of their rows wait, the newest of them, and judge together when the model is asked.
"""

import copy
import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.runtime import Runtime
from ipal.learners.analytic.class_sums import Sums
from ipal.learners.analytic.feature_map import FeatureMap
from ipal.learners.analytic.ridge import factorise, ridge_weights
from ipal.learners.analytic.rows import Rows
from ipal.learners.analytic.selection import LEFT_OUT_ROWS, LeftOut, choose_ridge, left_out_rows, still_spoken_for
from ipal.learners.base import Learner
from ipal.learners.checks import check_counts, check_shapes, require
from ipal.learners.kept import Kept
from ipal.learners.state import State, laid_out
from ipal.system.tracing import spanned

ENOUGH_ROWS = 32
"""Fewer rows than these say nothing about the ridge: it stays as it is."""


@dataclasses.dataclass(frozen=True, eq=False)
class Waiting:
    """Rows that are to judge, and their labels: features alone, which no prediction needs and no model holds."""

    inputs: Tensor
    """(rows, inputs) of the feature map, before they are expanded."""
    labels: Tensor
    """The class of each row, as the learner numbers it."""

    @classmethod
    def none(cls, device: torch.device) -> Self:
        return cls(torch.zeros(0, 0, device=device), torch.zeros(0, dtype=torch.int64, device=device))

    def __len__(self) -> int:
        return len(self.labels)

    def then(self, rows: Rows, count: Tensor, generator: torch.Generator) -> Self:
        """With some of the rows just learned; of all that wait the newest stay."""
        some = left_out_rows(rows, count, generator)
        inputs, labels = rows.taken(some).to(rows.labels.device), rows.labels[some]
        older = max(0, LEFT_OUT_ROWS - len(labels))
        if not len(self) or not older:
            return type(self)(inputs, labels)
        return type(self)(torch.cat([self.inputs[-older:], inputs]), torch.cat([self.labels[-older:], labels]))

    def judges(self, expand: Callable[[Tensor], Tensor], count: Tensor) -> LeftOut | None:
        """By these numbers of rows behind each class; none where too few wait."""
        if len(self) < ENOUGH_ROWS:
            return None
        return LeftOut(expand(self.inputs), self.labels, count.double().reciprocal()[self.labels])

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)} if len(self) else {}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device) -> Self:
        return cls(tensors["inputs"].to(device), tensors["labels"].to(device)) if tensors else cls.none(device)

    def check(self, columns: int, classes: int) -> None:
        """Refuse what cannot have come from a learner of so many columns and classes."""
        if len(self):
            check_shapes(self.tensors(), [("inputs", (len(self), columns)), ("labels", (len(self),))])
            require(((self.labels >= 0) & (self.labels < classes)).all(), "'waiting.labels' are no known classes")


@dataclasses.dataclass(frozen=True, eq=False)
class Solved:
    """What follows from the sums, and from the rows that wait."""

    weights: Tensor
    """(width, classes)"""
    ridge: float
    scale: list[float]
    """Of scores before the softmax, and how many classes it was found with."""
    choices: dict[str, Any]


def solve(
    sums: Sums, judges: LeftOut | None, before: Mapping[str, Any], runtime: Runtime, *, chooses_ridge: bool
) -> Solved:
    """The weights, from the sums. Judges decide on the ridge and the calibration; `before` they were as given."""
    ridge, (scale, classes), choices = before["ridge"], before["scale"], before["choices"]
    gram, cross = sums.balanced()
    if judges is not None and chooses_ridge:
        with runtime.tracer.span("choice"):
            found = choose_ridge(gram, cross, judges, choices["ridge"])
        ridge, record = runtime.team.broadcast(lambda: found)
        choices = {**choices, "ridge": [*choices["ridge"], record]}
    factor = factorise(gram, ridge)
    weights = laid_out(ridge_weights(factor, cross))
    if judges is not None:
        # Each task shows its own classes only: all of them so far have a say, by their number.
        more = len(torch.unique(judges.labels))
        classes = still_spoken_for(classes, cross.shape[1], more)
        logs = classes * math.log(scale) + more * math.log(judges.best_scale(factor, cross))
        scale, classes = math.exp(logs / (classes + more)), classes + more
    # More than asked for, where that was too little.
    return Solved(weights, ridge, [scale, classes], {**choices, "ridge_used": factor.ridge})


@dataclasses.dataclass(frozen=True, eq=False)
class Weights(Kept):
    """The weights of a closed form: part of its state unless rows wait, which have them solved anew."""

    def tensors(self, learner: Any) -> dict[str, Tensor]:
        return {} if len(learner.waiting_) else {self.name: learner.weights_}

    def looked_at(self, learner: Any) -> dict[str, Tensor]:
        return {} if learner.solved_ is None else {self.name: learner.weights_}

    def restore(self, learner: Any, tensors: Mapping[str, Tensor]) -> None:
        if self.name in tensors:
            check_shapes(tensors, [(self.name, (learner.sums_.width, len(learner.labels_)))])
            weights = tensors[self.name].to(learner.generator_.device)
            require(weights.dtype == torch.float64, f"'{self.name}' holds {weights.dtype} instead of {torch.float64}")
            learner.solved_ = Solved(weights, learner.ridge_, learner.scale_, learner.choices_)


@dataclass(kw_only=True, eq=False)
class SolvedLater(Learner):
    """A learner whose model follows from sums: it is solved when something is asked of it, not at every batch."""

    kept: ClassVar[tuple[Kept, ...]] = (
        Kept(
            "sums",
            "per class: number of nodes and sum of their rows; sums of products of rows",
            check=lambda learner, sums, whole: check_counts(sums.count, "sums.count"),
            look=lambda learner: {"sums.total": learner.sums_.total},  # rows on a grid have finite products
        ),
        Weights("weights", "weights of every class, solved from the sums"),
        Kept(
            "waiting",
            "propagated features of the nodes learned last, where classes return: they judge the ridge",
            check=lambda learner, waiting, whole: waiting.check(learner._map.inputs, len(learner.labels_)),
            only_while_learning=True,
        ),
    )

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.features_: FeatureMap | None = None
        self.sums_: Sums
        # As all rows had it that have judged, and gone.
        self.ridge_: float
        self.scale_: list[float] = [1.0, 0]
        self.choices_: dict[str, Any] = {}
        self.waiting_ = Waiting.none(self.generator_.device)
        self.solved_: Solved | None = None  # until it is asked for

    @property
    @abstractmethod
    def chooses_ridge(self) -> bool:
        """Whether rows decide on the ridge, or it was set."""

    @property
    def _map(self) -> FeatureMap:
        assert self.features_ is not None, "nothing was learned yet"
        return self.features_

    @property
    def _solved(self) -> Solved:
        """Found when it is asked for, and kept until something is learned. Asking changes nothing."""
        if self.solved_ is None:
            self.solved_ = self._solve()
        return self.solved_

    @spanned("solve")
    def _solve(self) -> Solved:
        judges = self.waiting_.judges(self._map.expanded, self.sums_.count)
        before = {"ridge": self.ridge_, "scale": self.scale_, "choices": self.choices_}
        return solve(self.sums_, judges, before, self.runtime_, chooses_ridge=self.chooses_ridge)

    def _settle(self) -> None:
        """Let the rows that wait judge, and go."""
        found = self._solved
        self.ridge_, self.scale_, self.choices_ = found.ridge, found.scale, found.choices
        self.waiting_ = Waiting.none(self.generator_.device)

    def _settled(self) -> Self:
        """The same model, with nothing that waits; this one stays as it is."""
        self._require_fitted()
        model = copy.copy(self)
        model.solved_ = self._solved
        if len(model.waiting_):
            model._settle()
        return model

    @property
    def weights_(self) -> Tensor:
        """(width, classes)"""
        return self._solved.weights

    def choices(self) -> dict[str, Any]:
        """What was chosen by its own nodes, and why."""
        return self._solved.choices if self.is_fitted else {}

    def model(self, *, moments: bool = False) -> State:
        return Learner.model(self if moments else self._settled(), moments=moments)

    def memory_report(self) -> dict[str, Any]:
        passing = super().memory_report()["only_while_learning"]
        return {**Learner.memory_report(self._settled()), "only_while_learning": passing}
