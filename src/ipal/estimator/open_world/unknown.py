"""Rejection of nodes of unknown classes, and prediction sets: what a calibrated model answers."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ipal.data.graph import Graph
from ipal.data.labels import Labels
from ipal.errors import ConfigError, DataError
from ipal.estimator.open_world.calibration import FEWEST, Calibration
from ipal.estimator.open_world.held_out import MOST_MARGIN, margins, mean_margins
from ipal.estimator.open_world.scores import Views
from ipal.estimator.predictor import Predictor


def required(model: Predictor) -> Calibration:
    """What the model knows of held-out nodes; a sentence where it knows nothing."""
    if not model.calibration:
        why = (
            "its setting calibration is 0" if model.config.calibration == 0 else f"no task had {FEWEST} training nodes"
        )
        raise ConfigError(
            f"This model cannot reject nodes, because it was not calibrated ({why}): "
            "learn it anew with calibration=0.2."
        )
    found: Calibration = model.calibration
    return found


def scored(model: Predictor, graph: Graph) -> NDArray[np.float64]:
    """Novelty score of every node, by the one that found unknown classes best among the training nodes."""
    kind = required(model).kind
    with torch.no_grad():
        graph = model.checked(graph)
        return np.asarray(replace(Views.of(model, graph), power=model.calibrating_power).novelty(kind)[:, 0].numpy())


def rejected(model: Predictor, graph: Graph, share: float) -> NDArray[np.bool_]:
    """Which nodes have a higher novelty score than all but this share of known ones."""
    if not 0 < share < 1:
        raise ConfigError(f"The share of known nodes that may be lost is between 0 and 1, not {share}.")
    threshold = required(model).threshold(share)
    return np.asarray(scored(model, graph) > threshold)


def masked(labels: Labels, is_rejected: NDArray[np.bool_]) -> NDArray[Any]:
    """Labels, None where rejected."""
    found = labels.astype(object)
    found[is_rejected] = None
    return found


def sets(model: Predictor, probabilities: NDArray[np.float32], coverage: float) -> NDArray[np.bool_]:
    r"""Split conformal prediction sets: classes whose margins are not below those that held-out nodes gave their own.

    .. math:: \{c : m_i(c) \ge \hat Q_{1 - \text{coverage}} \}

    Source: Sadinle et al. 2019, "Least Ambiguous Set-Valued Classifiers with Bounded Error Levels", Sec. 3, with
    margins, which grow with the power that calibrates probabilities, in place of probabilities.
    """
    if not 0 < coverage < 1:
        raise ConfigError(f"The coverage is between 0 and 1, not {coverage}.")
    if probabilities.shape[1] < 2:
        raise DataError("A model of one class has no sets: learn another.")
    logs = torch.from_numpy(probabilities).double().clamp_min(torch.finfo(torch.float32).tiny).log()
    least = required(model).least_margin(coverage, mean_margins(model))
    least *= model.calibrating_power * model.separation
    return np.asarray((margins(logs) >= min(least, MOST_MARGIN)).numpy())
