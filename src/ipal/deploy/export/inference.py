"""From a graph to scores in the words of an exported program: the encoder, then what the method says (`exported`).

Whether it says the same as the learner's own `scores` and `probabilities` is checked whenever a model is exported.
"""

from dataclasses import dataclass
from typing import NamedTuple, cast

from torch import Tensor

from ipal.backend.operators import LayerInput
from ipal.data.csr import Norm
from ipal.deploy.export.program import Rows
from ipal.learners import Learner
from ipal.learners.trained import TrainedLearner
from ipal.nn.encoders import Encoder


class Answer(NamedTuple):
    """What comes out for every node: one number a class, in the order of `classes_`."""

    scores: Rows
    probabilities: Rows


def answer(learner: Learner, nodes: Rows) -> Answer:
    """What a learner says about nodes, from their features on."""
    rows = _encoded(learner.encoder_, nodes) if isinstance(learner, TrainedLearner) else nodes
    return Answer(*learner.exported(rows))


def _encoded(encoder: Encoder, nodes: Rows) -> Rows:
    """Embeddings, by the encoder's own layers."""
    for number, parameters in enumerate(encoder.layers()):
        nodes = cast(Rows, encoder.computed(number, RowsInput(nodes), parameters))
    return nodes


@dataclass(frozen=True)
class RowsInput(LayerInput):
    """Rows of a program in the place of tensors: what a layer does with them is written down."""

    rows: Rows

    def aggregated(self, weight: Tensor, norm: Norm = "symmetric", own: Tensor | None = None) -> Tensor:
        # The way over the graph is taken where rows are narrower.
        narrow = weight.shape[0] < weight.shape[1]
        z = self.rows if narrow else self.rows @ weight
        sums = z.spread(norm) if own is None else z.spread(norm) + z * own
        return cast(Tensor, sums @ weight if narrow else sums)

    def own(self, weight: Tensor) -> Tensor:
        return cast(Tensor, self.rows @ weight)

    def attended(self, weight: Tensor, query: Tensor, key: Tensor) -> Tensor:
        first, *others = (
            (self.rows @ part).attended(q, k)
            for part, q, k in zip(weight.chunk(len(query), dim=1), query, key, strict=True)
        )
        return cast(Tensor, first.beside(*others))
