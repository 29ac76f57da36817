"""Fills one row of the accuracy matrix. The only place where a learner meets labels it was not taught."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.graph import Graph
from ipal.learners.base import Look
from ipal.metrics import ACCURACIES, per_class_recall
from ipal.streams import Answers, Exam


class Predictor(Protocol):
    """All that evaluation knows of a learner: a graph in, labels out; no task identity."""

    def look(self, graph: Graph) -> Look: ...


@dataclass(frozen=True)
class Row:
    """Scores on each task seen so far, in percent, and what stands behind them; plain data."""

    validation: list[float]
    test: list[float]
    per_class: dict[str, float]
    """Test recall of every class seen so far."""
    confusion: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of each class's test nodes, how many were taken for which class."""
    drift: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """How far each class has moved; nothing where features stay where they are. See whereabouts.py."""


class Cloud(NamedTuple):
    """Where the test nodes of one class lie among the embeddings."""

    mean: Tensor
    spread: Tensor
    """Root of the mean squared distance from the mean."""


class Evaluation(NamedTuple):
    row: Row
    clouds: dict[str, Cloud]
    """By class; none of a learner whose features stay where they are."""


def evaluate(learner: Predictor, exams: list[Exam], accuracy: str) -> Evaluation:
    """Score a learner on the exams of all tasks so far; exams on one graph share what it makes of it."""
    score = ACCURACIES[accuracy]
    looks: dict[int, Look] = {}
    row, clouds = Row([], [], {}), {}
    last = {id(exam.graph): number for number, exam in enumerate(exams)}
    for number, exam in enumerate(exams):
        key = id(exam.graph)
        if key not in looks:
            looks[key] = learner.look(exam.graph)
        predicted, embeddings = looks[key]
        test = predicted[exam.test.nodes]
        row.validation.append(score(predicted[exam.validation.nodes], exam.validation.labels))
        row.test.append(score(test, exam.test.labels))
        row.per_class.update({str(label): value for label, value in per_class_recall(test, exam.test.labels).items()})
        row.confusion.update(confusion(test, exam.test.labels))
        if embeddings is not None:
            clouds.update(class_clouds(embeddings, exam.test))
        if last[key] == number:  # embeddings of a large graph are large
            del looks[key]
    return Evaluation(row, clouds)


def confusion(predicted: NDArray[np.generic], truth: NDArray[np.generic]) -> dict[str, dict[str, int]]:
    """Of each class's nodes, how many were taken for which class; pairs that never occur are left out."""
    pairs = Counter(zip(truth.tolist(), predicted.tolist(), strict=True))
    table: dict[str, dict[str, int]] = {}
    for (label, taken_for), count in sorted(pairs.items()):
        table.setdefault(str(label), {})[str(taken_for)] = count
    return table


def class_clouds(embeddings: Tensor, answers: Answers) -> dict[str, Cloud]:
    """Centre and spread of every class among a graph's embeddings, of the nodes of `answers` alone."""
    names, place = np.unique(answers.labels, return_inverse=True)
    f = embeddings[torch.from_numpy(answers.nodes).to(embeddings.device)]
    row = torch.from_numpy(place).to(f.device)
    members = torch.nn.functional.one_hot(row, len(names)).T.to(f.dtype)
    share = members / members.sum(dim=1, keepdim=True)
    mean = share @ f
    spread = (share @ (f - mean[row]).square().sum(dim=1, keepdim=True)).sqrt()[:, 0]
    return {str(name): Cloud(mean[i], spread[i]) for i, name in enumerate(names.tolist())}
