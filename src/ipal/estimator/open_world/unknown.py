"""Rejection of nodes of unknown classes, and prediction sets: what a calibrated model answers."""

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.data.graph import Graph
from ipal.data.labels import Labels
from ipal.errors import ConfigError, DataError, Qualified, shortened
from ipal.estimator.model import Model
from ipal.estimator.open_world.calibration import FEWEST, Calibration
from ipal.estimator.open_world.scores import smoothed
from ipal.nn.margins import MOST_MARGIN, log_probabilities, margins


def required(model: Model) -> tuple[Calibration, Tensor]:
    """What is known of nodes that did not teach, and how many known nodes each class has; or why nothing is."""
    found: Calibration = model.usable_calibration
    if not found:
        why = (
            "its setting calibration is 0"
            if model.config.calibration == 0
            else f"no task had {FEWEST} training nodes and brought the number of classes to two"
        )
        raise ConfigError(
            f"This model cannot reject nodes or give sets, because it is not calibrated ({why}): learn a task of at "
            f"least {FEWEST} training nodes with calibration=0.2."
        )
    if not model.keeps_classes and bool((found.latest() < 0).any()):
        raise ConfigError(
            f"The method '{model.name}' keeps nothing of earlier classes by which it could be calibrated: it can "
            "reject nodes and give sets only after a task with all classes; analytic, ipal, ncm and slda can always."
        )
    latest = found.latest()
    never = [label for label, row in zip(model.labels, latest.tolist(), strict=True) if row < 0]
    if int((latest >= 0).sum()) < 2:
        raise ConfigError(
            "This model cannot reject nodes or give sets yet, because it is calibrated for one class only: learn "
            f"another class, or two in one task of at least {FEWEST} training nodes."
        )
    of_task = (found.count > 0).sum(dim=1)[latest]
    alone = [label for label, row, n in zip(model.labels, latest, of_task, strict=True) if row >= 0 and n == 1]
    said = [
        _named(
            never,
            f"never calibrated, because its task had fewer than {FEWEST} training nodes, or it came first and alone: "
            "it is taken to be like others",
        ),
        _named(
            alone,
            "calibrated without nodes of other classes, because it was the only one of its task: the shares that "
            "'reject' and 'coverage' ask for may be missed by far",
        ),
    ]
    if any(said):
        warnings.warn(" ".join(filter(None, said)), Qualified, stacklevel=3)
    return found, model.nodes_of_classes()


def _named(labels: list[Any], what: str) -> str:
    """A sentence about classes; nothing where there are none."""
    return f"Class {', '.join(shortened(str(label), 40) for label in labels[:5])} was {what}." if labels else ""


def scored(model: Model, graph: Graph) -> NDArray[np.float64]:
    """The share of known nodes that are less novel than each node."""
    known, nodes = required(model)
    with torch.no_grad():
        graph = model.checked(graph)
        _, novelty = model.scores_and_novelty(graph)
        return known.shares_below(smoothed(novelty, graph).numpy(), nodes)


def rejected(model: Model, graph: Graph, share: float) -> NDArray[np.bool_]:
    """Which nodes are more novel than all but this share of known ones."""
    if not 0 < share < 1:
        raise ConfigError(f"The share of known nodes that may be lost is between 0 and 1, not {share}.")
    return np.asarray(scored(model, graph) > 1 - share)


def masked(labels: Labels, is_rejected: NDArray[np.bool_]) -> NDArray[Any]:
    """Labels, None where rejected."""
    found = labels.astype(object)
    found[is_rejected] = None
    return found


def sets(model: Model, probabilities: NDArray[np.float32], coverage: float) -> NDArray[np.bool_]:
    r"""Split conformal prediction sets: classes whose margins are not below those that nodes gave their own.

    .. math:: \{c : m_i(c) \ge \hat Q_{1 - \text{coverage}} \}

    Source: Sadinle et al. 2019, "Least Ambiguous Set-Valued Classifiers with Bounded Error Levels", Sec. 3, with
    margins, which grow with the power that calibrates probabilities, in place of probabilities.
    """
    if not 0 < coverage < 1:
        raise ConfigError(f"The coverage is between 0 and 1, not {coverage}.")
    if probabilities.shape[1] < 2:
        raise DataError("A model of one class has no sets: learn another.")
    known, nodes = required(model)
    margin, spread = (part.double().cpu() for part in model.usual_margins())
    every = margin[:, None] + spread[:, None] * known.margins_now[:, None]
    least = known.quantile(every, known.weights(nodes), 1 - coverage) * model.calibrating_power
    logs = log_probabilities(torch.from_numpy(probabilities))
    return np.asarray((margins(logs) >= min(least, MOST_MARGIN)).numpy())
