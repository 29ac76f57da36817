"""What a model makes of training nodes that did not teach it, and how it would be if it knew fewer classes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.finite import check_scores
from ipal.data.task import Task
from ipal.estimator.open_world.scores import Views
from ipal.estimator.predictor import Predictor

AWAY = 3
"""Most classes of a task that are taken away in turn; the first so many are taken from what distances rest on, too."""
MOST = 2048
"""Nodes that are set aside, about: more would hardly say more."""
DRAWS = 4
"""How often classes are hidden at random."""
MOST_MARGIN = 80.0
"""Probabilities of single precision tell no larger ones apart."""
SHARPEST, STEP = math.log(1000), 0.1
"""Bounds of the logarithm of a power, and the step by which a slope is measured."""


def confidence(logs: Tensor, power: float) -> float:
    """Mean of the largest probability, all raised to a power (its logarithm is given)."""
    return float((math.exp(power) * logs).softmax(dim=1).amax(dim=1).mean())


def best_power(logs: Tensor, labels: Tensor) -> tuple[float, float]:
    r"""Logarithm of the power at which nodes are as sure as they are right, and its precision.

    .. math:: \frac1n \sum_i \max_c q_i(c) = a, \quad q_i(c) \propto p_i(c)^s, \quad
        a = \frac{\text{hits} + 1/2}{n + 1}

    Source: Cox 1958, "Two Further Applications of a Model for Binary Regression", calibration in the large. It is one
    number that a few nodes far off do not decide, as they do the cross-entropy of Guo et al. 2017. The precision
    follows from the variance of a, a (1 - a) / n, and from how fast the left side grows with log s.
    """
    n, hits = len(labels), int((logs.argmax(dim=1) == labels).sum())
    right = (hits + 0.5) / (n + 1)

    def excess(power: float) -> float:
        return confidence(logs, power) - right

    check_scores(logs)
    if excess(-SHARPEST) >= 0 or excess(SHARPEST) <= 0:
        return 0.0, 0.0  # no power will do
    low, high = -SHARPEST, SHARPEST
    while high - low > 1e-4:  # scipy's ways would keep the nodes alive in a reference cycle
        power = (low + high) / 2
        low, high = (low, power) if excess(power) > 0 else (power, high)
    slope = (excess(power + STEP) - excess(power - STEP)) / (2 * STEP)
    return power, slope**2 * n / (right * (1 - right))


def margins(logs: Tensor) -> Tensor:
    r"""By how much the logarithm of each class's probability is ahead of the likeliest other's.

    .. math:: m_i(c) = \log p_i(c) - \max_{k \ne c} \log p_i(k)

    Source: Johansson et al. 2017, "Model-Agnostic Nonconformity Functions for Conformal Classification", Sec. III, the
    margin, with logarithms: raised to a power, probabilities have that many times the margins.
    """
    (first, second), top = logs.topk(2, dim=1).values.T, logs.argmax(dim=1, keepdim=True)
    rival = first[:, None].expand_as(logs).scatter(1, top, second[:, None])
    found: Tensor = (logs - rival).clamp(-MOST_MARGIN, MOST_MARGIN)
    return found


def mean_margins(model: Predictor, classes: Tensor | None = None) -> Tensor:
    """Of class means for their own class, among all or some, divided by `separation`; zero where none are kept.

    They change as other classes are learned, and with them the margins of nodes that are not there to be asked again.
    """
    scores, some = model.mean_scores(), torch.arange(len(model.labels)) if classes is None else classes
    if scores is None:
        return torch.zeros(len(some), dtype=torch.float64)
    return margins(scores[some][:, some].double()).diagonal().cpu() / model.separation


@dataclass(frozen=True, eq=False)
class Aside:
    """What a copy of a model says of the held-out nodes."""

    found: Views
    """Of all nodes of the graph."""
    nodes: Tensor
    labels: Tensor
    """The model's own numbers of the classes of these."""

    @property
    def classes(self) -> Tensor:
        found: Tensor = torch.unique(self.labels)
        return found

    def power(self, among: Tensor | None = None) -> tuple[float, float]:
        """The logarithm of the best one, as if only some classes were known, and how much is said for it."""
        if self.found.model.forgets:
            return 0.0, 0.0
        labels, nodes = self._within(among)
        return best_power(self.found.among(among).logs[nodes] / self.found.model.separation, labels)

    def raised(self, power: float) -> "Aside":
        """With the power that calibrates probabilities."""
        model = self.found.model
        return replace(self, found=replace(self.found, power=1.0 if model.forgets else power / model.separation))

    def measured(self, among: Tensor | None = None) -> Tensor:
        """Margin of the own class less that of its mean, and all scores of the held-out nodes: (nodes, 1 + NAMES)."""
        labels, nodes = self._within(among)
        found = self.found.among(among)
        own = margins(found.logs[nodes]).gather(1, labels[:, None]) / self.found.model.separation
        return torch.cat([own - mean_margins(self.found.model, among)[labels, None], found.novelty()[nodes]], dim=1)

    def is_of(self, classes: Tensor) -> Tensor:
        """Which of the held-out nodes are of these classes."""
        return torch.isin(self.labels, classes)

    def _within(self, among: Tensor | None) -> tuple[Tensor, Tensor]:
        """Classes, as numbered among some, and nodes of those set aside that belong to them."""
        if among is None:
            return self.labels, self.nodes
        inside = self.is_of(among)
        return torch.searchsorted(among, self.labels[inside]), self.nodes[inside]

    def without(self, *, anew: bool) -> Iterator[tuple[Tensor, Tensor]]:
        """For each of some classes taken away: which nodes are of it, and the novelty scores of all held-out nodes."""
        if self.found.logs.shape[1] >= 3 and len(self.classes) >= 2:
            for row in self.classes[:AWAY].tolist():
                yield self.labels == row, without_class(self.found, row, anew=anew).novelty()[self.nodes]


def without_class(found: Views, row: int, *, anew: bool) -> Views:
    """What a model would say, had it never learned a class: a copy where it can forget one, else its rows hidden.

    Distances are measured anew only where asked, for they take longest.
    """
    model = found.model
    others = torch.tensor([other for other in range(found.logs.shape[1]) if other != row])
    changed = model.trial_without_class(row)
    if changed is not None:
        exact = replace(Views.of(changed, found.graph), power=found.power)
        return exact if anew else replace(exact, classes=others, whole=found)
    return found.among(others)


def shown(model: Predictor, task: Task, random: np.random.Generator) -> Aside:
    """What a copy of the model that did not learn the held-out nodes makes of them."""
    is_aside = set_aside(task, model.config.calibration, random)
    made = model.trial(task, is_aside)
    with torch.no_grad():
        nodes, labels = torch.from_numpy(task.nodes[is_aside]), made.rows(task.labels[is_aside]).cpu()
        return Aside(Views.of(made, task.graph), nodes, labels)


def hidden_sets(shown: Aside, known: int, classes: int, random: np.random.Generator) -> Iterator[Tensor]:
    """Some sets of as many classes as were known before, each with at least one that was set aside."""
    if not 2 <= known < classes:
        return
    for _ in range(DRAWS):
        first = random.choice(shown.classes.numpy())
        others = random.choice(np.setdiff1d(np.arange(classes), first), known - 1, replace=False)
        yield torch.from_numpy(np.sort(np.append(others, first)))


def set_aside(task: Task, share: float, random: np.random.Generator) -> NDArray[np.bool_]:
    """Which training nodes: this share of every class, or less of many nodes, but never all of it."""
    chosen, share = np.zeros(len(task.nodes), dtype=bool), min(share, MOST / len(task.nodes))
    for label in np.unique(task.labels):
        own = random.permutation(np.flatnonzero(task.labels == label))
        chosen[own[: min(len(own) - 1, math.ceil(share * len(own)))]] = True
    return chosen
