"""Parameters held near their old values, each by its importance."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ipal.learners.kept import Parameters, PerParameter


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


def with_task(
    importance: Parameters, anchor: Parameters, more: Parameters, theta: Parameters
) -> tuple[Parameters, Parameters]:
    """Importance and anchor with those of one more task: importances add up, the anchor is that of both pulls."""
    total = {name: value + importance.get(name, 0) for name, value in more.items()}
    return total, merged_pulls(importance, anchor, more, theta)


KEPT = (
    PerParameter("importance", "importance of every parameter to the tasks so far", non_negative=True),
    PerParameter("anchor", "the values that parameters are pulled to"),
)
