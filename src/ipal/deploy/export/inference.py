"""From a graph to scores in the words of an exported program: the encoder, then what the method says (`exported`).

Whether it says the same as the learner's own `scores` and `probabilities` is checked whenever a model is exported.
"""

from typing import NamedTuple

from torch import Tensor

from ipal.deploy.export.program import Rows
from ipal.learners import Learner
from ipal.learners.trained import TrainedLearner
from ipal.nn.encoder import GCN


class Answer(NamedTuple):
    """What comes out for every node: one number a class, in the order of `classes_`."""

    scores: Rows
    probabilities: Rows


def answer(learner: Learner, nodes: Rows) -> Answer:
    """What a learner says about nodes, from their features on."""
    rows = _encoded(learner.encoder_, nodes) if isinstance(learner, TrainedLearner) else nodes
    return Answer(*learner.exported(rows))


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
