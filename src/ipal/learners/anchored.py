"""Methods that hold important parameters near their old values."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.batches import Batch
from ipal.data.streams import Task
from ipal.learners.base import Terms
from ipal.learners.checks import check_same, require
from ipal.learners.classifier import Classifier, Lesson

Parameters = dict[str, Tensor]


def quadratic_pull(theta: Mapping[str, Tensor], importance: Parameters, anchor: Parameters) -> Tensor:
    """Sum over parameters of importance times squared distance to the anchor; new parameters are free."""
    parts = [(importance[name] * (theta[name] - anchor[name]).square()).sum() for name in importance]
    return torch.stack(parts).sum()


def merged_pulls(importance: Parameters, anchor: Parameters, more: Parameters, theta: Parameters) -> Parameters:
    """The anchor of two pulls added: the mean of both anchors, weighted by importance.

    A (x - a)^2 + B (x - b)^2 = (A + B) (x - m)^2 + constant, with m = (A a + B b) / (A + B). So one importance and one
    anchor pull exactly as one of each per task would, whatever the number of tasks.
    """
    merged = dict(theta)
    for name, old in importance.items():
        both = old + more[name]
        mean = (old * anchor[name] + more[name] * theta[name]) / both.clamp_min(torch.finfo(both.dtype).tiny)
        merged[name] = torch.where(both > 0, mean, theta[name])
    return merged


@dataclass(kw_only=True, eq=False)
class AnchoredLearner(Classifier):
    """A classifier whose loss pulls parameters towards their old values, each by its importance."""

    looks_at_whole_tasks: ClassVar[bool] = True
    keeps: ClassVar[dict[str, str]] = Classifier.keeps | {
        "importance": "importance of every parameter to the tasks so far",
        "anchor": "the values that parameters are pulled to",
    }

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.importance_: Parameters = {}
        self.anchor_: Parameters = {}

    @abstractmethod
    def pull(self) -> Tensor:
        """The penalty on leaving the anchors."""

    @abstractmethod
    def importance(self, task: Task, prepared: Lesson) -> Parameters:
        """Importance of every parameter to a task just learned."""

    def loss(self, batch: Batch, prepared: Lesson) -> Terms:
        terms = super().loss(batch, prepared)
        if self.importance_:
            terms["pull"] = self.pull()
        return terms

    def end_task(self, task: Task, prepared: Lesson) -> None:
        new, theta = self.importance(task, prepared), self.parameters()
        self.anchor_ = merged_pulls(self.importance_, self.anchor_, new, theta)
        self.importance_ = {name: value + self.importance_.get(name, 0) for name, value in new.items()}

    def parameters(self) -> Parameters:
        """All parameters as they are now."""
        return {name: parameter.detach().clone() for name, parameter in self.network_.named_parameters()}

    def tensors(self) -> dict[str, Tensor]:
        importance = {f"importance.{name}": value for name, value in self.importance_.items()}
        return super().tensors() | importance | {f"anchor.{name}": value for name, value in self.anchor_.items()}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        super().load_tensors(tensors)
        device = self.generator_.device
        # In the order of the parameters: a file has an order of its own, and the bits of a sum depend on it.
        names = [name for name, _ in self.network_.named_parameters()]
        self.importance_, self.anchor_ = (
            {name: tensors[group + name].to(device) for name in names if group + name in tensors}
            for group in ("importance.", "anchor.")
        )

    def check(self, whole: bool) -> None:
        super().check(whole)
        theta = self.parameters()
        known = theta if whole else {name: theta[name] for name in self.importance_}
        check_same(self.importance_, known)
        check_same(self.anchor_, known)
        require(all((value >= 0).all() for value in self.importance_.values()), "an importance is negative")
