"""Fills one row of the accuracy matrix. The only place where a model meets labels it was not taught."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.data.graph import Graph
from ipal.data.labels import Label, Labels
from ipal.data.task import LabelledNodes, TestSplit
from ipal.estimator.model import Prediction
from ipal.evaluation.metrics import ACCURACIES
from ipal.evaluation.rows import Before, Row

Pair = tuple[Any, Any]
"""The true class of a node, and the predicted one."""


class ScoredModel(Protocol):
    """All that evaluation knows of a model: a graph in, labels and scores of its classes out; no task identity."""

    @property
    def classes_(self) -> Labels: ...
    def predict_graph(self, graph: Graph, nodes: Tensor | None = None) -> Prediction: ...


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
    """By class; none of a model whose features stay where they are."""


PredictsTogether = Callable[[Graph, Tensor], Sequence[Prediction]]
"""How several models predict some nodes of a graph; one `Prediction` of each."""


def evaluate(model: ScoredModel, test_splits: list[TestSplit], accuracy: str) -> Evaluation:
    """Score a model on the tests of all tasks so far; a graph of several tests is predicted once."""
    (found,) = evaluate_all([model], test_splits, accuracy, lambda graph, nodes: [model.predict_graph(graph, nodes)])
    return found


def evaluate_all(
    models: Sequence[ScoredModel], test_splits: list[TestSplit], accuracy: str, predict: PredictsTogether
) -> Sequence[Evaluation]:
    """Score several models of the same classes, which predict a graph together."""
    marks = [_Marks(model, accuracy) for model in models]
    predicted: dict[int, Sequence[Prediction]] = {}
    last = {id(split.graph): number for number, split in enumerate(test_splits)}
    asked = {id(split.graph): np.zeros(split.graph.num_nodes, dtype=bool) for split in test_splits}
    for split in test_splits:
        for some in (split.validation, split.test):
            asked[id(split.graph)][some.nodes] = True
    places = {key: np.cumsum(marked) - 1 for key, marked in asked.items()}
    for number, split in enumerate(test_splits):
        key = id(split.graph)
        if key not in predicted:
            predicted[key] = predict(split.graph, torch.from_numpy(np.flatnonzero(asked[key])))
        test, validation = (placed(some, places[key]) for some in (split.test, split.validation))
        embeddings = [one.embeddings for one in predicted[key] if one.embeddings is not None]
        clouds = class_clouds(embeddings, test) if embeddings else [{} for _ in marks]
        for one, found, lie in zip(marks, predicted[key], clouds, strict=True):
            one.add(found, test, validation, split.classes, lie)
        if last[key] == number:  # embeddings of a large graph are large
            del predicted[key]
    return [one.evaluation() for one in marks]


@dataclass
class _Marks:
    """What one model gets in an evaluation, test by test."""

    model: ScoredModel
    accuracy: str
    validation: list[float] = field(default_factory=list)
    test: list[float] = field(default_factory=list)
    pairs: Counter[Pair] = field(default_factory=Counter)
    clouds: dict[str, Cloud] = field(default_factory=dict)

    def add(
        self,
        found: Prediction,
        test: LabelledNodes,
        validation: LabelledNodes,
        among: Sequence[Label] | None,
        lie: Mapping[str, Cloud],
    ) -> None:
        score = ACCURACIES.find(self.accuracy).function
        predicted = predictions(self.model, found, test, among)
        self.validation.append(score(predictions(self.model, found, validation, among), validation.labels))
        self.test.append(score(predicted, test.labels))
        here = counted(predicted, test.labels)
        again = self.clouds.keys() & lie.keys()
        before, more = (class_sizes(pairs if again else {}) for pairs in (self.pairs, here))
        pooled = {name: self.clouds[name].pooled(lie[name], more[name] / (before[name] + more[name])) for name in again}
        self.clouds |= {**lie, **pooled}
        for pair, count in here.items():
            self.pairs[pair] += count

    def evaluation(self) -> Evaluation:
        found = confusion(self.pairs)
        row = Row(validation=self.validation, test=self.test, per_class=recalls(self.pairs), confusion=found)
        return Evaluation(row, self.clouds)


def placed(some: LabelledNodes, places: NDArray[np.int64]) -> LabelledNodes:
    """With the places of its nodes among those that are asked for, in place of their numbers."""
    return LabelledNodes(places[some.nodes], some.labels)


def predictions(model: ScoredModel, found: Prediction, asked: LabelledNodes, among: Sequence[Label] | None) -> Labels:
    """The likeliest class of some nodes: of all classes known, or of those in `among`."""
    if among is None:
        return found.labels[asked.nodes]
    place = {label: number for number, label in enumerate(model.classes_.tolist())}
    columns = [place[label] for label in among]
    scores = found.scores[torch.from_numpy(asked.nodes).to(found.scores.device)][:, columns]
    labels: Labels = np.asarray(among)[scores.argmax(dim=-1).cpu().numpy()]
    return labels


def evaluate_before(model: ScoredModel, split: TestSplit, accuracy: str) -> Before:
    """The test of a task that is not learned yet, all of whose classes are known."""
    row = evaluate(model, [split], accuracy).row
    classes = model.classes_ if split.classes is None else split.classes
    return Before(accuracy=row.test[0], chance=100.0 / len(classes))


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


def class_clouds(embeddings: Sequence[Tensor], some: LabelledNodes) -> list[dict[str, Cloud]]:
    """Centre and spread of every class among embeddings of some nodes of a graph, by several models."""
    names, place = np.unique(some.labels, return_inverse=True)
    first, *others = embeddings
    device = first.device
    nodes, row = (torch.from_numpy(part).to(device) for part in (some.nodes, place))
    f = (torch.stack([first, *others]) if others else first)[..., nodes, :]
    members = (row == torch.arange(len(names), device=device)[:, None]).to(f.dtype)
    share = members / members.sum(dim=1, keepdim=True)
    mean = share @ f
    spread = (share @ (f - mean[..., row, :]).square().sum(dim=-1, keepdim=True)).sqrt()[..., 0]
    found = zip(mean, spread, strict=True) if others else [(mean, spread)]
    return [
        {str(name): Cloud(*one) for name, *one in zip(names.tolist(), *map(Tensor.unbind, of_model), strict=True)}
        for of_model in found
    ]
