"""What is asked of a fitted learner besides predictions: unknown classes, sets, groups, explanations."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ipal.data.graph_data import GraphData
from ipal.errors import ConfigError, shortened
from ipal.estimator.explain import Explanation, explained
from ipal.estimator.learner import Learner, checked_share, model_of, probabilities, read_graph, single
from ipal.estimator.open_world import discover as grouping
from ipal.estimator.open_world import unknown
from ipal.estimator.open_world.discover import Candidate

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data


def score_unknown(learner: Learner, data: "Data") -> NDArray[np.float64]:
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
    """
    model = model_of(learner)
    graph = read_graph(model, data)
    return unknown.scored(model, graph)


def predict_sets(learner: Learner, data: "Data", coverage: float = 0.9) -> NDArray[np.bool_]:
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
    model, share = model_of(learner), checked_share(coverage, "The coverage")
    return unknown.sets(model, probabilities(model, data), share)


def discover(learner: Learner, data: "Data", reject: float = 0.05, classes: int | None = None) -> list[Candidate]:
    """Rejected nodes in groups, each perhaps a new class.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data : Data or GraphData
        A graph with `x` and `edge_index`.
    reject : float, default=0.05
        Share of known nodes that may be rejected.
    classes : int, optional
        Number of groups. Default: chosen by the silhouette.

    Returns
    -------
    list of Candidate
        The largest group first.
    """
    model, share = model_of(learner), checked_share(reject, "reject, the share of known nodes that may be rejected,")
    if classes is not None and (isinstance(classes, bool) or not isinstance(classes, int | np.integer)):
        raise ConfigError(f"classes, the number of groups, is a whole number, not {shortened(classes)}.")
    return grouping.discover(model, read_graph(model, data), share, classes)


def explain(learner: Learner, data: "Data", node: Any, *, against: Any = None) -> Explanation:
    """Which neighbours and features spoke for the class of a node, rather than for another.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data : Data or GraphData
        A graph with `x` and `edge_index`.
    node : int or str
        The id of the node, or its number where the graph has no ids.
    against : int or str, optional
        The class to compare with. Default: the next best.

    Returns
    -------
    Explanation
    """
    model, other = model_of(learner), None if against is None else single(against, "A class")
    ids = data.ids if isinstance(data, GraphData) else None
    name = single(node, "A node")
    number = name if ids is None else int(data.nodes([name])[0])
    return replace(explained(model, read_graph(model, data), number, other), ids=ids)
