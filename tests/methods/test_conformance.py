"""Every method does what every method must do; and the checks notice one that does not."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ipal
from ipal.estimator.conformance import CHECKS, SMALL
from ipal.estimator.learners import learner_class
from ipal.estimator.registry import METHODS
from ipal.methods.base import Space, TaskContext
from tests.learning import NARROW


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("kind", [*map(learner_class, METHODS.own.values())], ids=lambda kind: kind.__name__)
def test_conforms(kind: type[ipal.Learner], check: Any) -> None:
    known = kind().get_params()
    small = {name: value for name, value in SMALL.items() if name in known}
    narrow = {"width": NARROW} if kind is ipal.Analytic else {}
    check(lambda: kind(calibration=0, **small, **narrow))


@pytest.mark.parametrize("kind", [ipal.IPAL, ipal.NCM], ids=lambda kind: kind.__name__)
def test_conforms_with_calibration(kind: type[ipal.Learner]) -> None:
    small = {name: value for name, value in SMALL.items() if name in kind().get_params()}
    for check in CHECKS:
        check(lambda: kind(**small))


@dataclass(frozen=True, eq=False)
class Means:
    """What the broken methods below keep."""

    mean: Tensor
    """mean row of every class"""


@dataclass(frozen=True, kw_only=True)
class FeatureMeans(ipal.OnePass):
    """Nearest mean of raw features, without a graph."""

    name = "feature-means"
    title = "Feature means"

    def init(self, space: Space) -> Means:
        return Means(torch.zeros(0, space.num_features))

    def end_task(self, network: None, memory: Means, context: TaskContext, rng: torch.Generator) -> Means:
        x = torch.from_numpy(np.asarray(context.task.graph.x)[context.task.nodes])
        mean = torch.cat([memory.mean, memory.mean.new_zeros(context.classes - len(memory.mean), x.shape[1])])
        rows = torch.stack([x[context.labels == label].mean(dim=0) for label in context.current])
        return Means(mean.index_copy(0, context.current, rows))

    def forward(self, memory: Means, graph: Any, compute: Any, nodes: Tensor | None = None) -> Tensor:
        scores = -torch.cdist(torch.from_numpy(np.asarray(graph.x)), memory.mean)
        return scores if nodes is None else scores[nodes]

    def embed(self, memory: Means, graph: Any, compute: Any) -> Tensor:
        return torch.from_numpy(np.array(graph.x))

    def reach(self, memory: Means) -> int:
        return 0


@dataclass(frozen=True, eq=False)
class MeansAndRows(Means):
    """Also the rows of all nodes."""

    rows: Tensor
    """rows of nodes"""


@dataclass(frozen=True, kw_only=True)
class KeepsNodes(FeatureMeans):
    """Keeps a row of every node, and does not say so."""

    name = "keeps-nodes"

    def init(self, space: Space) -> Means:
        empty = torch.zeros(0, space.num_features)
        return MeansAndRows(empty, empty)

    def end_task(self, network: None, memory: Means, context: TaskContext, rng: torch.Generator) -> Means:
        rows = torch.from_numpy(np.array(context.task.graph.x))
        return MeansAndRows(super().end_task(network, memory, context, rng).mean, rows)


@dataclass(frozen=True, kw_only=True)
class CountsPlaces(FeatureMeans):
    """Scores nodes by their numbers."""

    name = "counts-places"

    def forward(self, memory: Means, graph: Any, compute: Any, nodes: Tensor | None = None) -> Tensor:
        return torch.arange(graph.num_nodes)[:, None] * torch.linspace(0, 1, len(memory.mean))


@dataclass(frozen=True, kw_only=True)
class DrawsGlobally(FeatureMeans):
    """Draws from torch's global generator."""

    name = "draws-globally"

    def end_task(self, network: None, memory: Means, context: TaskContext, rng: torch.Generator) -> Means:
        found = super().end_task(network, memory, context, rng)
        return Means(found.mean + torch.rand_like(found.mean))


def test_a_method_of_a_user_conforms() -> None:
    ipal.check_method(FeatureMeans)


@pytest.mark.parametrize(
    ("broken", "words"),
    [(KeepsNodes, "memory grows"), (CountsPlaces, "numbering"), (DrawsGlobally, "learns otherwise")],
)
def test_a_broken_method_is_noticed(broken: type[Any], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        ipal.check_method(broken)


def test_a_class_for_a_method_is_made_once() -> None:
    assert learner_class(FeatureMeans) is learner_class(FeatureMeans)
    assert learner_class(type(ipal.IPAL()._config.method)) is ipal.IPAL
