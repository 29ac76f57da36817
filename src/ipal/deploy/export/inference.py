"""How each family of methods comes from a graph to scores, said once more in the words of an exported program.

Whether it says the same as the learner's own `scores` and `probabilities` is checked whenever a model is exported.
"""

from functools import singledispatch
from typing import NamedTuple

from torch import Tensor

from ipal.deploy.export.program import Rows
from ipal.errors import ConfigError
from ipal.learners import NCM, SLDA, Analytic, Learner
from ipal.learners.classifier import Classifier
from ipal.learners.prototypical import PrototypicalLearner
from ipal.nn.encoder import GCN
from ipal.nn.head import Head
from ipal.nn.losses import unit


class Answer(NamedTuple):
    """What comes out for every node: one number a class, in the order of `classes_`."""

    scores: Rows
    probabilities: Rows


@singledispatch
def answer(learner: Learner, nodes: Rows) -> Answer:
    """What a learner says about nodes, from their features on."""
    raise ConfigError(
        f"How the method '{learner.name}' predicts is not known to the export: say it in deploy/export/inference.py."
    )


@answer.register
def _(learner: Classifier, nodes: Rows) -> Answer:
    scores = _judged(learner.head_, _encoded(learner.encoder_, nodes))
    return Answer(scores, scores.softmax())


@answer.register
def _(learner: PrototypicalLearner, nodes: Rows) -> Answer:
    scores = _encoded(learner.encoder_, nodes).unit() @ unit(learner.memory_.mean).T
    return Answer(scores, (scores / learner.tau).softmax())


@answer.register
def _(learner: NCM, nodes: Rows) -> Answer:
    mean = learner.mean_
    if learner.nearness == "distance":
        scores = _spread(nodes @ mean.T, learner.hops) * 2 - mean.square().sum(dim=1)
        return Answer(scores, (scores / learner.tau).softmax())
    scores = _spread(nodes @ unit(mean).T, learner.hops)
    cosines = scores / _spread(nodes, learner.hops).lengths()
    return Answer(scores, (cosines / learner.tau).softmax())


@answer.register
def _(learner: SLDA, nodes: Rows) -> Answer:
    scores = _spread(nodes @ learner.weights_.T, learner.hops) + learner.offsets_
    return Answer(scores, scores.softmax())


@answer.register
def _(learner: Analytic, nodes: Rows) -> Answer:
    assert learner.features_ is not None, "nothing was learned yet"
    features, weights = learner.features_, learner.weights_
    propagation = features.propagation
    hop = nodes.within_one().unit()
    if propagation.columns < propagation.num_features:
        hop = hop @ propagation.projection
    hops = [hop]
    for _ in range(max(features.hops)):
        hops.append(hops[-1].spread())
    first, *others = (hops[number].unit() for number in features.hops)
    rows = first.beside(*others)
    if features.expansion:
        rows = (rows @ features.directions).relu()
        weights = weights * (2 / features.expansion) ** 0.5
    scores = rows @ weights
    return Answer(scores, (scores * learner.scale_).softmax())


def _encoded(encoder: GCN, nodes: Rows) -> Rows:
    """Embeddings, as `GCN.forward` makes them."""
    last = len(encoder.weights) - 1
    for layer, (weight, bias) in enumerate(zip(encoder.weights, encoder.biases, strict=True)):
        nodes = _convolved(nodes, weight) + bias
        if layer < last or encoder.last_relu:
            nodes = nodes.relu()
    return nodes


def _convolved(nodes: Rows, weight: Tensor) -> Rows:
    """Over the graph and through the weights; the way over the graph is taken where rows are narrower."""
    return nodes.spread() @ weight if weight.shape[0] < weight.shape[1] else (nodes @ weight).spread()


def _judged(head: Head, embeddings: Rows) -> Rows:
    """Outputs of a classifier, as `Head.forward` gives them."""
    if head.temperature is not None:
        return embeddings.unit() @ unit(head.weight).T / head.temperature
    return embeddings @ head.weight.T + head.bias


def _spread(rows: Rows, hops: int) -> Rows:
    for _ in range(hops):
        rows = rows.spread()
    return rows
