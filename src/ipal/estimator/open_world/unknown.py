"""Rejection of nodes of unknown classes, and prediction sets: what a calibrated model answers."""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.errors import ConfigError, DataError, Qualified, shortened
from ipal.estimator.model import Fitted, Model, model_of
from ipal.estimator.open_world.calibration import FEWEST, Calibration, quantile, smoothed
from ipal.nn.margins import MOST_MARGIN, log_probabilities, margins

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data


def score_unknown(learner: Fitted | Model, data: "Data") -> NDArray[np.float64]:
    """Novelty score of every node: higher for nodes of classes that were never learned.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data : Data or GraphData
        A graph with `x` and `edge_index`.

    Returns
    -------
    ndarray of shape (n_nodes,)
        The share of known nodes that are less novel.
    """
    model = model_of(learner)
    graph = model.checked(data)
    known, nodes = required(model)
    with torch.no_grad():
        _, novelty = model.scores_and_novelty(graph)
        return known.shares_below(smoothed(novelty, graph).numpy(), nodes)


def predict_sets(learner: Fitted | Model, data: "Data", coverage: float = 0.9) -> NDArray[np.bool_]:
    """Classes that every node may be of: its own is among them for about a given share of nodes.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data : Data or GraphData
        A graph with `x` and `edge_index`.
    coverage : float, default=0.9
        Share of nodes whose own class is in their set.

    Returns
    -------
    ndarray of bool of shape (n_nodes, n_classes)
        Columns are in the order of `classes_`.
    """
    model = model_of(learner)
    return sets(model, model.predict_proba(data), coverage)


def rejected(model: Model, data: Any, share: float) -> NDArray[np.bool_]:
    """Which nodes are more novel than all but this share of known ones."""
    checked_share(share, "The share of known nodes that may be lost")
    found = np.asarray(score_unknown(model, data) > 1 - share)
    if len(found) >= FEWEST and 2 * found.sum() > len(found):
        warnings.warn(
            f"{found.sum():,} of {len(found):,} nodes are rejected. Either most are of unknown classes, or this graph "
            "is unlike those that the model learned from, and known nodes are rejected too: check labelled nodes.",
            Qualified,
            stacklevel=3,
        )
    return found


def sets(model: Model, probabilities: NDArray[np.float32], coverage: float) -> NDArray[np.bool_]:
    r"""Split conformal prediction sets: classes whose margins are not below those that nodes gave their own.

    .. math:: \{c : m_i(c) \ge \hat Q_{1 - \text{coverage}} \}

    Source: Sadinle et al. 2019, "Least Ambiguous Set-Valued Classifiers with Bounded Error Levels", Sec. 3, with
    margins, which grow with the power that calibrates probabilities, in place of probabilities.
    """
    checked_share(coverage, "The coverage")
    if probabilities.shape[1] < 2:
        raise DataError("A model of one class has no sets: learn another.")
    known, nodes = required(model)
    margin, spread = (part.double().cpu() for part in model.usual_margins())
    every = margin[:, None] + spread[:, None] * known.margins_now[:, None]
    least = float(quantile(every, known.weights(nodes), 1 - coverage)) * model.calibrating_power
    logs = log_probabilities(torch.from_numpy(probabilities))
    return np.asarray((margins(logs) >= min(least, MOST_MARGIN)).numpy())


def required(model: Model) -> tuple[Calibration, Tensor]:
    """What is known of nodes outside training, and how many known nodes each class has; or why nothing is."""
    found: Calibration = model.usable_calibration
    latest, why = found.latest(), ""
    if not found:
        why = f"it is not calibrated: learn a task of at least {FEWEST} training nodes and two classes, calibration=0.2"
    elif not model.keeps_classes and bool((latest < 0).any()):
        why = (
            f"the method '{model.name}' keeps nothing of earlier classes by which it could be calibrated: learn a task "
            "with all classes, or take analytic, ipal, ncm or slda, which always can"
        )
    elif int((latest >= 0).sum()) < 2:
        why = f"it is calibrated for one class only: learn another, or two in one task of {FEWEST} training nodes"
    if why:
        raise ConfigError(f"This model cannot reject nodes or give sets, because {why}.")
    classes_asked = (found.count > 0).sum(dim=1)
    said = {
        f"never calibrated, because its task had fewer than {FEWEST} training nodes, or it came first and alone: it is "
        "taken to be like others": latest < 0,
        "calibrated without nodes of other classes, because it was the only one of its task: the shares that 'reject' "
        "and 'coverage' ask for may be missed by far": (latest >= 0) & (classes_asked[latest] == 1),
    }
    for what, which in said.items():
        if named := [shortened(str(model.labels[c]), 40) for c in which.nonzero().flatten().tolist()]:
            warnings.warn(f"Class {', '.join(named[:5])} was {what}.", Qualified, stacklevel=3)
    return found, model.nodes_of_classes()


def checked_share(value: Any, what: str) -> None:
    """Refuse what is no number between 0 and 1."""
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not 0 < value < 1:
        raise ConfigError(f"{what} is a number between 0 and 1, not {shortened(value)}.")
