"""From features to scores in an exported program: the encoder's layers, then the method's own `exported`.

Every export checks that the result equals the learner's own `scores` and `probabilities`.
"""

from ipal.deploy.export.program import Program, Rows
from ipal.learners import Learner


def answer(learner: Learner, program: Program) -> tuple[Rows, Rows]:
    """Scores and probabilities of nodes, from their features on: one number a class, in the order of `classes_`."""
    scores, probabilities = learner.by_rows(program.features)
    power = learner.calibrating_power
    return scores, probabilities if power == 1 else probabilities.sharpened(power)
