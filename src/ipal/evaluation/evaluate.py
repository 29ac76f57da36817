"""Fills one row of the accuracy matrix. The only place where a learner meets labels it was not taught."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.data.graph import Graph
from ipal.data.labels import Label
from ipal.data.streams import Answers, Exam, Labels
from ipal.evaluation.metrics import ACCURACIES, Before
from ipal.learners.values import Look

Pair = tuple[Any, Any]
"""The true class of a node, and the predicted one."""


class Predictor(Protocol):
    """All that evaluation knows of a learner: a graph in, labels and scores of its classes out; no task identity."""

    @property
    def classes_(self) -> Labels: ...
    def look(self, graph: Graph, nodes: Tensor | None = None) -> Look: ...


@dataclass(frozen=True)
class Row:
    """Scores on each task seen so far, in percent, and what stands behind them; plain data."""

    validation: list[float]
    test: list[float]
    per_class: dict[str, float]
    """Test recall of every class seen so far, over all its test nodes: a class may come in several tasks."""
    confusion: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of each class's test nodes, how many were taken for which class."""
    drift: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """How far each class has moved; nothing where features stay where they are. See class_drift.py."""


class Cloud(NamedTuple):
    """Where the test nodes of one class lie among the embeddings."""

    mean: Tensor
    spread: Tensor
    """Root of the mean squared distance from the mean."""

    def pooled(self, other: "Cloud", share: float) -> "Cloud":
        """With more nodes of the same class, which are this share of all its nodes then."""
        between = share * (1 - share) * (self.mean - other.mean).square().sum()
        within = torch.lerp(self.spread.square(), other.spread.square(), share)
        return Cloud(torch.lerp(self.mean, other.mean, share), (within + between).sqrt())


class Evaluation(NamedTuple):
    row: Row
    clouds: dict[str, Cloud]
    """By class; none of a learner whose features stay where they are."""


Looking = Callable[[Graph, Tensor], Sequence[Look]]
"""How several learners look at some nodes of a graph; one `Look` of each."""


def evaluate(learner: Predictor, exams: list[Exam], accuracy: str) -> Evaluation:
    """Score a learner on the exams of all tasks so far; exams on one graph share what it makes of it."""
    (found,) = evaluate_all([learner], exams, accuracy, lambda graph, nodes: [learner.look(graph, nodes)])
    return found


def evaluate_all(
    learners: Sequence[Predictor], exams: list[Exam], accuracy: str, look: Looking
) -> Sequence[Evaluation]:
    """Score several learners of the same classes, which look at a graph together."""
    marks = [_Marks(learner, accuracy) for learner in learners]
    looks: dict[int, Sequence[Look]] = {}
    last = {id(exam.graph): number for number, exam in enumerate(exams)}
    asked = {id(exam.graph): np.zeros(exam.graph.num_nodes, dtype=bool) for exam in exams}
    for exam in exams:
        for answers in (exam.validation, exam.test):
            asked[id(exam.graph)][answers.nodes] = True
    places = {key: np.cumsum(marked) - 1 for key, marked in asked.items()}
    for number, exam in enumerate(exams):
        key = id(exam.graph)
        if key not in looks:
            looks[key] = look(exam.graph, torch.from_numpy(np.flatnonzero(asked[key])))
        test, validation = (placed(answers, places[key]) for answers in (exam.test, exam.validation))
        seen = [one.embeddings for one in looks[key] if one.embeddings is not None]
        clouds = class_clouds(seen, test) if seen else [{} for _ in marks]
        for one, looked, lie in zip(marks, looks[key], clouds, strict=True):
            one.add(looked, test, validation, exam.classes, lie)
        if last[key] == number:  # embeddings of a large graph are large
            del looks[key]
    return [one.evaluation() for one in marks]


@dataclass
class _Marks:
    """What one learner gets in an evaluation, exam by exam."""

    learner: Predictor
    accuracy: str
    validation: list[float] = field(default_factory=list)
    test: list[float] = field(default_factory=list)
    pairs: Counter[Pair] = field(default_factory=Counter)
    clouds: dict[str, Cloud] = field(default_factory=dict)

    def add(
        self, look: Look, test: Answers, validation: Answers, among: Sequence[Label] | None, lie: Mapping[str, Cloud]
    ) -> None:
        score = ACCURACIES.find(self.accuracy).function
        predicted = predictions(self.learner, look, test, among)
        self.validation.append(score(predictions(self.learner, look, validation, among), validation.labels))
        self.test.append(score(predicted, test.labels))
        here = counted(predicted, test.labels)
        again = self.clouds.keys() & lie.keys()
        before, more = (class_sizes(pairs if again else {}) for pairs in (self.pairs, here))
        pooled = {name: self.clouds[name].pooled(lie[name], more[name] / (before[name] + more[name])) for name in again}
        self.clouds |= {**lie, **pooled}
        for pair, count in here.items():
            self.pairs[pair] += count

    def evaluation(self) -> Evaluation:
        row = Row(self.validation, self.test, recalls(self.pairs), confusion(self.pairs))
        return Evaluation(row, self.clouds)


def placed(answers: Answers, places: NDArray[np.int64]) -> Answers:
    """With the places of its nodes among those that are asked for, in place of their numbers."""
    return Answers(places[answers.nodes], answers.labels)


def predictions(learner: Predictor, look: Look, asked: Answers, among: Sequence[Label] | None) -> Labels:
    """The likeliest class of some nodes: of all classes known, or of those in `among`."""
    if among is None:
        return look.labels[asked.nodes]
    place = {label: number for number, label in enumerate(learner.classes_.tolist())}
    columns = [place[label] for label in among]
    scores = look.scores[torch.from_numpy(asked.nodes).to(look.scores.device)][:, columns]
    labels: Labels = np.asarray(among)[scores.argmax(dim=-1).cpu().numpy()]
    return labels


def evaluate_before(learner: Predictor, exam: Exam, accuracy: str) -> Before:
    """The test of a task that is not learned yet, all of whose classes are known."""
    row = evaluate(learner, [exam], accuracy).row
    return Before(row.test[0], 100.0 / len(learner.classes_ if exam.classes is None else exam.classes))


def counted(predicted: NDArray[np.generic], truth: NDArray[np.generic]) -> Counter[Pair]:
    """How many nodes of which class were taken for which; by class in ascending order."""
    return Counter(dict(sorted(Counter(zip(truth.tolist(), predicted.tolist(), strict=True)).items())))


def class_sizes(pairs: Mapping[Pair, int]) -> Counter[str]:
    """Nodes of every class."""
    sizes = Counter[str]()
    for (label, _), count in pairs.items():
        sizes[str(label)] += count
    return sizes


def recalls(pairs: Mapping[Pair, int]) -> dict[str, float]:
    """Percent of each class's nodes that were taken for it."""
    right = class_sizes({pair: count for pair, count in pairs.items() if pair[0] == pair[1]})
    return {name: 100.0 * (right[name] / size) for name, size in class_sizes(pairs).items()}


def confusion(pairs: Mapping[Pair, int]) -> dict[str, dict[str, int]]:
    """Of each class's nodes, how many were taken for which class; pairs that never occur are left out."""
    table: dict[str, dict[str, int]] = {}
    for (label, taken_for), count in pairs.items():
        table.setdefault(str(label), {})[str(taken_for)] = count
    return table


def class_clouds(embeddings: Sequence[Tensor], answers: Answers) -> list[dict[str, Cloud]]:
    """Centre and spread of every class among embeddings of a graph by several learners, of the nodes of `answers`."""
    names, place = np.unique(answers.labels, return_inverse=True)
    first, *others = embeddings
    device = first.device
    nodes, row = (torch.from_numpy(some).to(device) for some in (answers.nodes, place))
    f = (torch.stack([first, *others]) if others else first)[..., nodes, :]
    members = (row == torch.arange(len(names), device=device)[:, None]).to(f.dtype)
    share = members / members.sum(dim=1, keepdim=True)
    mean = share @ f
    spread = (share @ (f - mean[..., row, :]).square().sum(dim=-1, keepdim=True)).sqrt()[..., 0]
    found = zip(mean, spread, strict=True) if others else [(mean, spread)]
    return [
        {str(name): Cloud(*one) for name, *one in zip(names.tolist(), *map(Tensor.unbind, some), strict=True)}
        for some in found
    ]
