"""From features to scores in an exported program: the encoder's layers, then the method's own `exported`.

Every export checks that the result equals the learner's own `scores` and `probabilities`.
"""

from dataclasses import dataclass
from typing import cast

from torch import Tensor

from ipal.backend.operators import LayerInput
from ipal.data.csr import Norm
from ipal.deploy.export.program import Program, Rows
from ipal.learners import Learner
from ipal.learners.second_pass import chosen
from ipal.learners.trained import TrainedLearner
from ipal.nn.encoders import Encoder


def answer(learner: Learner, program: Program) -> tuple[Rows, Rows]:
    """Scores and probabilities of nodes, from their features on: one number a class, in the order of `classes_`."""
    further = chosen(learner)
    for _ in range(further["passes"]):
        _, probabilities = _one_pass(learner, program.features)
        program = program.weighed(probabilities.sharpened(further["sharpness"]))
    return _one_pass(learner, program.features)


def _one_pass(learner: Learner, rows: Rows) -> tuple[Rows, Rows]:
    if isinstance(learner, TrainedLearner):
        encoder: Encoder = learner.encoder_
        for number, parameters in enumerate(encoder.layers()):
            rows = cast(Rows, encoder.computed(number, RowsInput(rows), parameters))
    scores, probabilities = learner.exported(rows)
    return scores, probabilities


@dataclass(frozen=True)
class RowsInput(LayerInput):
    """Rows of a program in place of tensors."""

    rows: Rows

    def aggregated(self, weight: Tensor, norm: Norm = "symmetric", own: Tensor | None = None) -> Tensor:
        # Propagated where rows are narrower: before or after the product.
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
