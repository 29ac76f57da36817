"""How sure a model may be: what nodes that it was not trained on show, kept as quantiles of two scores for every task.

A method with sums leaves out one training node at a time, in closed form. For other methods some training nodes of a
task are set aside when it begins, and a copy of the model learns the rest; of a small task in turn, until enough nodes
were asked.

Of these nodes are kept: quantiles of their novelty, quantiles of the margin by which they are on their own class's
side, and how sure and how right the model is. Margins are measured from what is usual for the class by what the model
keeps of it, and so is the novelty: both stay comparable as classes come, though nodes of earlier tasks are
not there to be asked again. A class that comes again is judged by the last task that it was in.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.checks import require
from ipal.backend.finite import check_scores
from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.engine.executors.recorded import Automatic
from ipal.engine.trainer import finished, fit_task, numbered
from ipal.errors import CapacityError, DataError, NonFiniteError
from ipal.methods.base import LeavesOneOut, UsualMargins
from ipal.methods.classifier import predicts_by_network_alone
from ipal.nn.margins import LEAST, log_probabilities, margins
from ipal.state.value import copied

Model = Any
"""An `ipal.estimator.model.Model`, which holds a calibration."""
FEWEST = 64
"""Training nodes of a task: of fewer, too few would be asked to say anything."""
MOST = 1024
"""Nodes that are asked, about: more would hardly say more."""
ENOUGH = 256
"""Nodes: further copies are made until so many were asked."""
LEVELS = 64
"""Quantiles that are kept of each score."""
SMOOTHED = 2
"""How often novelty is averaged over neighbours: nodes of an unknown class are often neighbours."""
POWERS = np.linspace(math.log(1e-3), math.log(1e3), 56)
"""Logarithms of powers at which it is measured how sure a model is."""


def sharpened(probabilities: Tensor, sharpness: float) -> Tensor:
    r"""Probabilities raised to a power.

    .. math:: \tilde p_i(c) = p_i(c)^s \Big/ \sum_k p_i(k)^s

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks", Sec. 4.2, with s = 1 / T.
    """
    return (sharpness * log_probabilities(probabilities)).softmax(dim=-1).to(probabilities.dtype)


@dataclass(frozen=True, eq=False)
class Calibration:
    """What nodes outside training have shown, one row a task that was large enough."""

    task: Tensor
    """(rows,): number of the task."""
    count: Tensor
    """(rows, classes): how many nodes of each class were asked, in the model's order."""
    margin: Tensor
    """(rows, LEVELS): quantiles of margins of nodes for their own class, in usual spreads from the usual one."""
    rivals: Tensor
    """(rows, LEVELS): by how much the classes of the task moved quantiles of margins, as rivals of earlier ones."""
    novelty: Tensor
    """(rows, LEVELS): quantiles of their novelty."""
    confidence: Tensor
    """(rows, POWERS): mean of the largest probability, all raised to a power."""
    right: Tensor
    """(rows,): share of nodes whose class was found."""

    @classmethod
    def empty(cls) -> Self:
        task, count, parts = torch.zeros(0).long(), torch.zeros(0, 0).long(), torch.zeros(0, LEVELS)
        return cls(task, count, parts, parts, parts, torch.zeros(0, len(POWERS)), torch.zeros(0))

    def __bool__(self) -> bool:
        """Whether any node was asked."""
        return len(self.task) > 0

    def plus(self, other: "Calibration") -> "Calibration":
        """With further rows, of as many classes or more."""
        mine = self.padded(other.count.shape[1])
        return Calibration(*(torch.cat([getattr(mine, f.name), getattr(other, f.name)]) for f in fields(self)))

    def where(self, rows: Tensor) -> "Calibration":
        """Of some tasks alone."""
        return Calibration(*(getattr(self, f.name)[rows] for f in fields(self)))

    def padded(self, classes: int) -> "Calibration":
        """With columns for so many classes."""
        more = max(0, classes - self.count.shape[1])
        return replace(self, count=torch.nn.functional.pad(self.count, (0, more)))

    def of_classes(self, classes: Sequence[int]) -> "Calibration":
        """Some classes, in this order."""
        return replace(self, count=self.padded(max(classes, default=-1) + 1).count[:, list(classes)])

    def united(self, places: Tensor, classes: int) -> "Calibration":
        """Class i is a part of class `places[i]` of so many."""
        count = self.count.new_zeros(len(self.task), classes)
        return replace(self, count=count.index_add(1, places.cpu(), self.padded(len(places)).count))

    def latest(self) -> Tensor:
        """(classes,): the row of the last task that each class was in; -1 where nodes of it were never asked."""
        rows = torch.arange(1, len(self.task) + 1)[:, None] * (self.count > 0)
        return torch.nn.functional.pad(rows, (0, 0, 1, 0)).amax(dim=0) - 1

    def weights(self, nodes: Tensor) -> Tensor:
        """(rows, classes): for how many known nodes each row stands; a class never asked is as all others."""
        latest = self.latest()
        found = (latest == torch.arange(len(self.task))[:, None]) * nodes.double()
        others = found.sum(dim=1, keepdim=True) / found.sum().clamp_min(1e-12)
        return found + others * (nodes.double() * (latest < 0))

    def power(self, nodes: Tensor) -> float:
        r"""The power at which nodes are as sure as they are right; one where nothing is known.

        .. math:: \frac1n \sum_i \max_c q_i(c) = a, \quad q_i(c) \propto p_i(c)^s

        Source: Cox 1958, "Two Further Applications of a Model for Binary Regression", calibration in the large. It is
        one number that a few nodes far off do not decide, as they do the cross-entropy of Guo et al. 2017.
        """
        if not self or not int(nodes.sum()):
            return 1.0
        weight = self.weights(nodes).sum(dim=1, keepdim=True)
        sure = np.maximum.accumulate(((weight * self.confidence).sum(dim=0) / weight.sum()).numpy())
        right = float((weight[:, 0] * self.right).sum() / weight.sum())
        return math.exp(float(np.interp(right, sure, POWERS))) if sure[0] < right < sure[-1] else 1.0

    @property
    def margins_now(self) -> Tensor:
        """(rows, LEVELS): quantiles of margins, with the rivals that have come since."""
        since = self.rivals.double().flip(0).cumsum(0).flip(0) - self.rivals
        return (self.margin + since).sort(dim=1).values

    def shares_below(self, novelty: NDArray[np.float64], nodes: Tensor) -> NDArray[np.float64]:
        """The share of known nodes that are less novel: between 0 and 1, and never the same for different values."""
        ordered, shares = _distribution(self.novelty, self.weights(nodes).sum(dim=1))
        found = np.interp(novelty, ordered, shares)
        unit = max(ordered[-1] - ordered[0], 1e-12) / 4
        below, above = np.maximum(ordered[0] - novelty, 0) / unit, np.maximum(novelty - ordered[-1], 0) / unit
        return np.asarray(np.where(below > 0, shares[0] * np.exp(-below), 1 - (1 - found) * np.exp(-above)))

    def check(self, classes: int, tasks: int) -> None:
        """Refuse what cannot have come from a model of so many classes that has learned so many tasks."""
        rows = len(self.task)
        require(all(len(getattr(self, f.name)) == rows for f in fields(self)), "its calibration has rows of some tasks")
        require(not rows or self.count.shape[1] == classes, "'calibration.count' has not one column for every class")
        require(((self.task >= 0) & (self.task < tasks)).all(), "'calibration.task' holds other numbers")
        require((self.task.diff() > 0).all(), "'calibration.task' is out of order")
        require((self.count >= 0).all() and (self.count.sum(dim=1) > 0).all(), "'calibration.count' is no count")
        for name, shares in (("right", self.right), ("confidence", self.confidence)):
            require(((shares >= 0) & (shares <= 1.0001)).all(), f"'calibration.{name}' is no share")


def _distribution(values: Tensor, weights: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values in ascending order, and the share of nodes below each."""
    every = values.double().flatten()
    weight = weights.double()[..., None].expand_as(values).flatten()
    every, weight = every[weight > 0], weight[weight > 0]
    ordered, order = every.sort()
    shares = (weight[order].cumsum(0) - weight[order] / 2) / weight.sum()
    return ordered.numpy(), shares.numpy()


def smoothed(values: Tensor, graph: Graph, times: int = SMOOTHED) -> Tensor:
    """Means over each node and its in-neighbours, so many times."""
    matrix, counts = _with_loops(graph)
    found = values.numpy()
    for _ in range(times):
        found = (matrix @ found) / counts
    return torch.from_numpy(found)


def own_shares(graph: Graph) -> Tensor:
    """The weight of a node's own value in its `smoothed` one."""
    matrix, counts = _with_loops(graph)
    means = sp.diags_array(1 / counts) @ matrix
    return torch.from_numpy(np.asarray(means.multiply(means.T).sum(axis=1)).reshape(-1))


def _with_loops(graph: Graph) -> tuple[sp.csr_array, np.ndarray]:
    edges = graph.neighbours.matrix(0, graph.num_nodes, np.ones(graph.num_edges))
    matrix = edges + sp.eye_array(graph.num_nodes, format="csr")
    return matrix, np.diff(matrix.indptr).astype(np.float64)


def quantile(values: Tensor, weights: Tensor, level: Any) -> NDArray[np.float64]:
    """Of values (…, LEVELS), which stand for so many nodes (…) each."""
    ordered, shares = _distribution(values, weights)
    return np.asarray(np.interp(level, shares, ordered))


def quantiles(values: Tensor, weights: Tensor) -> Tensor:
    """LEVELS of them, evenly spaced, of values that count so much each: (1, LEVELS)."""
    return torch.from_numpy(quantile(values[:, None], weights, (np.arange(LEVELS) + 0.5) / LEVELS)).float()[None]


class Asked(NamedTuple):
    """What a model says of nodes that it was not trained on."""

    labels: Tensor
    """Their classes, as the model numbers them."""
    logs: Tensor
    """(nodes, classes): logarithms of probabilities."""
    margin: Tensor
    """Of the own class, in usual spreads from the usual one."""
    before: Tensor
    """The same with fewer rivals; see `fewer_rivals`."""
    novelty: Tensor


def calibrated(model: Model, task: Task, number: int) -> Calibration:
    """What is known after a task, which a method that leaves out nodes has learned, and others are about to."""
    known: Calibration = model.calibration.padded(len(model.labels))
    if model.config.calibration == 0 or len(task.nodes) < FEWEST or len(model.labels) < 2:
        return known
    try:
        return known.plus(shown(*_asked(model, task), number))
    except (NonFiniteError, CapacityError, DataError):
        return known


def shown(asked: Asked, nodes_of_classes: Tensor, number: int) -> Calibration:
    """What nodes have shown in a task, as one row; each stands for its share of the known nodes of its class."""
    labels, logs = asked.labels, asked.logs
    check_scores(logs)
    count = torch.bincount(labels, minlength=logs.shape[1])
    weight = (nodes_of_classes.double() / count)[labels]
    weight /= weight.sum()
    sure = [weight @ (math.exp(power) * logs).softmax(dim=1).amax(dim=1) for power in POWERS]
    return Calibration(
        torch.tensor([number]),
        count[None],
        quantiles(asked.margin, weight),
        quantiles(asked.margin, weight) - quantiles(asked.before, weight),
        quantiles(asked.novelty, weight),
        torch.stack(sure).float()[None],
        (weight @ (logs.argmax(dim=1) == labels).double()).float()[None],
    )


def _asked(model: Model, task: Task) -> tuple[Asked, Tensor]:
    """What is said of nodes that are left out, or set aside; and how many known nodes each class has."""
    known, random = numbered(task, model.labels), np.random.default_rng([model.config.seed, len(task.nodes), 4])
    if isinstance(model.method, LeavesOneOut):
        with torch.no_grad():
            return _left_out(model, known, random), model.nodes_of_classes()
    parts, made, ends = [], model, not predicts_by_network_alone(model.method)
    for aside in folds(task, model.config.calibration, random):
        some = Task(task.graph, task.nodes[~aside], task.labels[~aside])
        taught = fit_task(model.method, copied(model.state), some, model.setup, Automatic(), ends=ends)
        made = replace(model, state=finished(taught))
        with torch.no_grad():
            parts.append(_set_aside(made, known, aside))
    kept = made.method.statistics(made.state.memory)
    is_known = kept is not None and len(kept.count) == len(model.labels)  # a copy may not have ended its task
    nodes = kept.count.cpu() if is_known else torch.ones(len(model.labels))
    return Asked(*map(torch.cat, zip(*parts, strict=True))), nodes


def _left_out(model: Model, task: Task, random: np.random.Generator) -> Asked:
    """Some nodes, each by the model without it; its neighbours are as they are."""
    rows = torch.from_numpy(task.labels)
    several = np.flatnonzero(model.nodes_of_classes()[rows].numpy() > 1)
    some = torch.from_numpy(np.sort(random.permutation(several)[:MOST]))
    if not len(some):
        raise DataError("No node can be left out: every class has one.")
    nodes = torch.from_numpy(task.nodes)[some]
    scores = model.method.left_out(model.state.memory, task, some, model.compute)
    own = model.novelty(scores, task.graph)
    _, everyone = model.scores_and_novelty(task.graph)
    novelty = smoothed(everyone, task.graph)[nodes] + own_shares(task.graph)[nodes] * (own - everyone[nodes])
    logs = log_probabilities(model.probabilities(scores, task.graph, nodes)).cpu()
    margin = own_margins(logs, rows[some], model.usual_margins())
    return Asked(rows[some], logs, margin, margin, novelty)


def _set_aside(model: Model, task: Task, aside: NDArray[np.bool_]) -> Asked:
    """Nodes that a copy of a model did not learn."""
    nodes, labels = torch.from_numpy(task.nodes[aside]), torch.from_numpy(task.labels[aside])
    scores, novelty = model.scores_and_novelty(task.graph)
    logs = log_probabilities(model.probabilities(scores, task.graph)).cpu()[nodes]
    margin = own_margins(logs, labels, model.usual_margins())
    before = fewer_rivals(model.method.mean_logs(model.state.memory), logs, labels)
    return Asked(labels, logs, margin, margin if before is None else before, smoothed(novelty, task.graph)[nodes])


def own_margins(logs: Tensor, labels: Tensor, usual: UsualMargins) -> Tensor:
    """Margins of nodes for their own class, in usual spreads from the usual one."""
    margin, spread = (part.double().cpu()[labels] for part in usual)
    return (margins(logs).gather(1, labels[:, None])[:, 0] - margin) / spread


def usual_by_means(logs: Tensor) -> UsualMargins:
    """Margins of nodes grow with that of the mean of their class, whose logarithms of probabilities are given."""
    own = margins(logs.double().cpu()).diagonal()
    return UsualMargins(torch.zeros_like(own), own.clamp_min(LEAST))


def fewer_rivals(means: Tensor | None, logs: Tensor, labels: Tensor) -> Tensor | None:
    """Margins of nodes as if their class had only as many rivals as the classes before; None where it had none.

    `means` are logarithms of probabilities of class means, (classes, classes); None where a method keeps none.
    Classes of earlier tasks have more rivals by now. What more rivals do is measured where nodes are there to be asked.
    """
    current = torch.unique(labels)
    old = torch.tensor([c for c in range(logs.shape[1]) if c not in set(current.tolist())])
    if means is None or len(old) < 2:
        return None
    found = torch.empty(len(labels), dtype=torch.float64)
    for number, c in enumerate(current.tolist()):
        among = torch.cat([torch.tensor([c]), old[torch.arange(len(old)) != number % len(old)]])
        usual, here = usual_by_means(means.cpu()[among][:, among]), labels == c
        found[here] = margins(logs[here][:, among])[:, 0] / usual.spread[0]
    return found


def folds(task: Task, share: float, random: np.random.Generator) -> list[NDArray[np.bool_]]:
    """Training nodes to set aside, one part after the other, until enough are asked.

    A part is a share of every class, or less of many nodes, but never all of it.
    """
    parts = max(1, round(1 / min(share, MOST / len(task.nodes))))
    place = np.full(len(task.nodes), -1)
    for label in np.unique(task.labels):
        own = random.permutation(np.flatnonzero(task.labels == label))
        place[own] = np.arange(len(own)) % parts if len(own) > 1 else -1
    asked = np.bincount(place[place >= 0], minlength=parts).cumsum()
    enough = int(np.searchsorted(asked, ENOUGH)) + 1
    return [place == part for part in range(min(parts, enough))]
