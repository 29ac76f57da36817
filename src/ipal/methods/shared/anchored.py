"""Parameters held near their old values, each by its importance."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ipal.backend.checks import check_same, require
from ipal.methods.base import Network, Parameters, Space, TaskContext
from ipal.methods.classifier import Classifier


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


@dataclass(frozen=True, eq=False)
class Anchor:
    """What holds parameters in place; empty before the first task."""

    importance: Parameters
    """importance of every parameter to the tasks so far"""
    values: Parameters
    """the values that parameters are pulled to"""

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        """Refuse what is not of the network's parameters; in the middle of a task, those of new classes are free."""
        known = parameters if whole else {name: parameters[name] for name in self.importance if name in parameters}
        for part in (self.importance, self.values):
            check_same(part, known)
        require(all(bool((tensor >= 0).all()) for tensor in self.importance.values()), "'importance' is negative")


@dataclass(frozen=True, kw_only=True)
class Anchored(Classifier):
    """A method whose loss pulls parameters to old values, each by its importance."""

    def init(self, space: Space) -> Any:
        return Anchor({}, {})

    @abstractmethod
    def importance(self, network: Network, context: TaskContext) -> Parameters:
        """Of every parameter to a task."""

    def end_task(self, network: Network, memory: Any, context: TaskContext, rng: torch.Generator) -> Any:
        """Importances add up, the anchor is that of both pulls."""
        more, theta = self.importance(network, context), network.tensors()
        total = {name: value + memory.importance.get(name, 0) for name, value in more.items()}
        return Anchor(total, merged_pulls(memory.importance, memory.values, more, theta))

    def ends_on_whole_graph(self) -> bool:
        return True
