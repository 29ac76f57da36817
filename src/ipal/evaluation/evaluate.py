"""Fills one row of the accuracy matrix. The only place where a model meets labels it was not trained on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ipal.data.labels import Label, Labels
from ipal.data.task import LabelledNodes, TestSplit
from ipal.estimator.model import Model, Prediction
from ipal.evaluation.metrics import ACCURACIES
from ipal.evaluation.rows import Before, Row
from ipal.evaluation.together import predict_together

Pair = tuple[Any, Any]
"""The true class of a node, and the predicted one."""


def evaluate(models: Sequence[Model], test_splits: list[TestSplit], accuracy: str) -> list[Row]:
    """Score models of the same classes on the tests of all tasks so far; they predict a graph together, and once."""
    score, predict = ACCURACIES[accuracy], predict_together(models)
    empty = [0.0] * len(test_splits)
    rows = [Row(validation=[*empty], test=[*empty], per_class={}) for _ in models]
    pairs = [Counter[Pair]() for _ in models]
    for graph in {id(split.graph): split.graph for split in test_splits}.values():
        here = [(number, split) for number, split in enumerate(test_splits) if split.graph is graph]
        asked = np.zeros(graph.num_nodes, dtype=bool)
        for _, split in here:
            asked[split.test.nodes] = asked[split.validation.nodes] = True
        predicted, place = predict(graph, torch.from_numpy(np.flatnonzero(asked))), np.cumsum(asked) - 1
        for number, split in here:
            test, validation = (replace(some, nodes=place[some.nodes]) for some in (split.test, split.validation))
            for model, found, row, counts in zip(models, predicted, rows, pairs, strict=True):
                taken_for = predictions(model, found, test, split.classes)
                row.validation[number] = score(predictions(model, found, validation, split.classes), validation.labels)
                row.test[number] = score(taken_for, test.labels)
                counts.update(zip(test.labels.tolist(), taken_for.tolist(), strict=True))
        del predicted, found  # scores of a large graph are large
    for row, counts in zip(rows, pairs, strict=True):
        row.confusion = confusion(counts)
        row.per_class = {
            name: 100.0 * (found.get(name, 0) / sum(found.values())) for name, found in row.confusion.items()
        }
    return rows


def predictions(model: Model, found: Prediction, asked: LabelledNodes, among: Sequence[Label] | None) -> Labels:
    """The likeliest class of some nodes: of all classes known, or of those in `among`."""
    if among is None:
        return found.labels[asked.nodes]
    place = {label: number for number, label in enumerate(model.classes_.tolist())}
    columns = [place[label] for label in among]
    scores = found.scores[torch.from_numpy(asked.nodes).to(found.scores.device)][:, columns]
    labels: Labels = np.asarray(among)[scores.argmax(dim=-1).cpu().numpy()]
    return labels


def evaluate_before(model: Model, split: TestSplit, accuracy: str) -> Before:
    """The test of a task that is not learned yet, all of whose classes are known."""
    (row,) = evaluate([model], [split], accuracy)
    classes = model.classes_ if split.classes is None else split.classes
    return Before(accuracy=row.test[0], chance=100.0 / len(classes))


def confusion(pairs: Mapping[Pair, int]) -> dict[str, dict[str, int]]:
    """Of each class's nodes, how many were taken for which class, ascending; pairs that never occur are left out."""
    table: dict[str, dict[str, int]] = {}
    for (label, taken_for), count in sorted(pairs.items()):
        table.setdefault(str(label), {})[str(taken_for)] = count
    return table
