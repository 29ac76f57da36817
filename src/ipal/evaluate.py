"""Fills one row of the accuracy matrix. The only place where a learner meets labels it was not taught."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ipal.graph import Graph
from ipal.metrics import ACCURACIES, per_class_recall
from ipal.streams import Exam


class Predictor(Protocol):
    """All that evaluation knows of a learner: a graph in, labels out; no task identity."""

    def predict_graph(self, graph: Graph) -> NDArray[np.generic]: ...


@dataclass(frozen=True)
class Row:
    """Scores on each task seen so far, in percent."""

    validation: list[float]
    test: list[float]
    per_class: dict[str, float]
    """Test recall of every class seen so far."""


def evaluate(learner: Predictor, exams: list[Exam], accuracy: str) -> Row:
    """Score a learner on the exams of all tasks so far; exams on one graph share its predictions."""
    score = ACCURACIES[accuracy]
    predictions: dict[int, NDArray[np.generic]] = {}
    row = Row([], [], {})
    for exam in exams:
        key = id(exam.graph)
        if key not in predictions:
            predictions[key] = learner.predict_graph(exam.graph)
        predicted = predictions[key]
        row.validation.append(score(predicted[exam.validation.nodes], exam.validation.labels))
        row.test.append(score(predicted[exam.test.nodes], exam.test.labels))
        recall = per_class_recall(predicted[exam.test.nodes], exam.test.labels)
        row.per_class.update({str(label): value for label, value in recall.items()})
    return row
