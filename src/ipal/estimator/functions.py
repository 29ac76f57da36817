"""What is done with a fitted learner besides predicting: functions that take it.

Functions that change a learner replace what it has learned, all at once, and return it.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ipal.data.graph import Graph
from ipal.estimator import edits
from ipal.estimator.convert.hetero import departure_of, graph_of, task_of
from ipal.estimator.convert.pyg import correction_of
from ipal.estimator.explain import Explanation, explained
from ipal.estimator.learner import Learner
from ipal.estimator.model import Model
from ipal.estimator.open_world import discover as grouping
from ipal.estimator.open_world import unknown
from ipal.estimator.open_world.discover import Candidate

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data, HeteroData


def _read(learner: Learner, data: Any) -> Graph:
    return learner.model_.checked(graph_of(data, learner.model_.schema.types))


def _changed(learner: Learner, model: Model) -> Learner:
    learner._become(model)
    return learner


# ---------------------------------------------------------------------- unknown classes, sets, explanations


def score_unknown(learner: Learner, data: "Data | HeteroData") -> NDArray[np.float64]:
    """Novelty score of every node: higher for nodes of classes that were never learned.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data : Data or HeteroData
        A graph with `x` and `edge_index`.

    Returns
    -------
    ndarray of shape (n_nodes,)
    """
    graph = _read(learner, data)
    return graph.at_targets(unknown.scored(learner.model_, graph))


def predict_sets(learner: Learner, data: "Data | HeteroData", coverage: float = 0.9) -> NDArray[np.bool_]:
    """Classes that every node may be of: its own is among them for about a given share of nodes.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data : Data or HeteroData
        A graph with `x` and `edge_index`.
    coverage : float, default=0.9
        Share of nodes whose own class is in their set.

    Returns
    -------
    ndarray of bool of shape (n_nodes, n_classes)
        Columns are in the order of `classes_`.
    """
    return unknown.sets(learner.model_, learner.predict_proba(data), coverage)


def discover(
    learner: Learner, data: "Data | HeteroData", reject: float = 0.05, classes: int | None = None
) -> list[Candidate]:
    """Rejected nodes in groups, each perhaps a new class.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data : Data or HeteroData
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
    return grouping.discover(learner.model_, _read(learner, data), reject, classes)


def explain(learner: Learner, data: "Data | HeteroData", node: int, *, against: Any = None) -> Explanation:
    """Which neighbours and features spoke for the class of a node, rather than for another.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data : Data or HeteroData
        A graph with `x` and `edge_index`.
    node : int
        The node, as numbered in the graph.
    against : int or str, optional
        The class to compare with. Default: the next best.

    Returns
    -------
    Explanation
    """
    return explained(learner.model_, _read(learner, data), node, against)


# ---------------------------------------------------------------------- classes


def rename_class(learner: Learner, old: Any, new: Any) -> Learner:
    """Give a class another label; nothing else changes.

    Parameters
    ----------
    learner : Learner
        A fitted learner; changed in place.
    old, new : int or str
        The label, and the one in its place.

    Returns
    -------
    Learner
        The same learner.
    """
    return _changed(learner, edits.rename_class(learner.model_, old, new))


def merge_classes(learner: Learner, labels: Iterable[Any], into: Any) -> Learner:
    """Make one class of several. Refused where it cannot be done exactly.

    Parameters
    ----------
    learner : Learner
        A fitted learner; changed in place.
    labels : iterable of int or str
        At least two classes.
    into : int or str
        One of them, or a new label.

    Returns
    -------
    Learner
        The same learner.
    """
    return _changed(learner, edits.merge_classes(learner.model_, labels, into))


def split_class(learner: Learner, label: Any, data: "Data | HeteroData") -> Learner:
    """Move nodes of a class to new classes. Refused where it cannot be done exactly.

    Parameters
    ----------
    learner : Learner
        A fitted learner; changed in place.
    label : int or str
        The class.
    data : Data or HeteroData
        The graph that its nodes were learned in: `train_mask` says which nodes move, `y` where to.

    Returns
    -------
    Learner
        The same learner.
    """
    model = learner.model_
    return _changed(learner, edits.split_class(model, label, task_of(data, model.schema.types)))


def relabel(learner: Learner, data: "Data") -> Learner:
    """Correct labels. Refused where it cannot be done exactly.

    Parameters
    ----------
    learner : Learner
        A fitted learner; changed in place.
    data : Data
        The graph that the nodes were learned in: nodes in `train_mask` that were learned as `y` are as if learned as
        `new_y`.

    Returns
    -------
    Learner
        The same learner.
    """
    return _changed(learner, edits.relabel(learner.model_, *correction_of(data)))


# ---------------------------------------------------------------------- forgetting, and models added


def forget_class(learner: Learner, label: Any) -> Learner:
    """Forget a class. Exact for its own rows; features of other nodes stay as they were.

    Parameters
    ----------
    learner : Learner
        A fitted learner of a method that keeps sums; changed in place.
    label : int or str
        The class.

    Returns
    -------
    Learner
        The same learner.
    """
    return _changed(learner, edits.forget_class(learner.model_, label))


def forget_rows(learner: Learner, data: "Data | HeteroData") -> Learner:
    """Forget what nodes taught. Exact for a model that never learned from their labels, in a graph that stays.

    Parameters
    ----------
    learner : Learner
        A fitted learner of a method that keeps sums; changed in place.
    data : Data or HeteroData
        The graph that they were learned in, with `forget_mask` and the `train_mask` of that time.

    Returns
    -------
    Learner
        The same learner.
    """
    model = learner.model_
    return _changed(learner, edits.forget_rows(model, departure_of(data, model.schema.types)))


def forget_nodes(learner: Learner, data: "Data | HeteroData") -> Learner:
    """Forget that nodes were in a graph: the rows of all nodes that they reached are redone.

    Parameters
    ----------
    learner : Learner
        A fitted learner of a method that keeps sums; changed in place.
    data : Data or HeteroData
        The graph that they were learned in, with `forget_mask` and the `train_mask` of that time.

    Returns
    -------
    Learner
        The same learner.
    """
    model = learner.model_
    return _changed(learner, edits.forget_nodes(model, departure_of(data, model.schema.types)))


def merge_models(one: Learner, other: Learner) -> Learner:
    """The model that learned what both learned: their sums, added.

    Parameters
    ----------
    one, other : Learner
        Fitted learners of a method that keeps sums, with the same settings and seed.

    Returns
    -------
    Learner
        A new learner.
    """
    return type(one)._of(edits.merge_models(one.model_, other.model_))
