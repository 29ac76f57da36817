"""From features to scores in an exported program: the encoder's layers, then the method's own `exported`.

Every export checks that the result equals the model's own `scores` and `probabilities`.
"""

from ipal.deploy.export.program import Program, ProgramRows
from ipal.estimator.model import Model


def answer(model: Model, program: Program) -> tuple[ProgramRows, ProgramRows]:
    """Scores and probabilities of nodes, from their features on: one number a class, in the order of `classes_`."""
    scores, probabilities = model.exported(program.features)
    power = model.calibrating_power
    return scores, probabilities if power == 1 else probabilities.sharpened(power)
