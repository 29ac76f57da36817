"""What is done with a fitted learner besides predicting: functions that take it.

Functions that change a learner replace what it has learned, all at once, and return it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ipal.data.graph_data import GraphData
from ipal.data.task import Task
from ipal.errors import ConfigError, DataError, shortened
from ipal.estimator import edits
from ipal.estimator.convert.hetero import departure_of, task_of
from ipal.estimator.convert.pyg import Departure, correction_of
from ipal.estimator.explain import Explanation, explained
from ipal.estimator.learner import Learner, checked_share, model_of, probabilities, read_graph
from ipal.estimator.model import Model
from ipal.estimator.open_world import discover as grouping
from ipal.estimator.open_world import unknown
from ipal.estimator.open_world.discover import Candidate

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data, HeteroData

    Graphs: TypeAlias = Data | HeteroData | Sequence[Data | HeteroData]


def _single(given: Any, what: str) -> Any:
    """A label or a node that was given: one value, not several."""
    is_single = isinstance(given, np.generic) or (isinstance(given, np.ndarray | torch.Tensor) and given.ndim == 0)
    value = given.item() if is_single else given
    if not isinstance(value, int | float | str):
        raise DataError(f"{what} is named by a whole number or a string, not by {shortened(given)}.")
    return value


def _label(given: Any) -> Any:
    return _single(given, "A class")


def _labels(given: Any) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable) or not getattr(given, "ndim", 1):
        raise DataError(f"Name the classes in a list, as ['a', 'b'], not as {shortened(given)}.")
    return list(map(_label, given))


def _changed(learner: Learner, model: Model) -> Learner:
    learner._become(model)
    return learner


def _several(data: Any) -> list[Any]:
    """One graph, or several in a list."""
    if isinstance(data, list | tuple) and not data:
        raise DataError("The list of graphs is empty: give all from the first one concerned to the last one learned.")
    return list(data) if isinstance(data, list | tuple) else [data]


def _tasks(model: Model, data: Any) -> list[Task]:
    return [task_of(one, model.schema.types) for one in _several(data)]


def _departures(model: Model, data: Any) -> list[Departure]:
    return [departure_of(one, model.schema.types) for one in _several(data)]


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
    model = model_of(learner)
    graph = read_graph(model, data)
    return graph.at_targets(unknown.scored(model, graph))


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
    model, share = model_of(learner), checked_share(coverage, "The coverage")
    return unknown.sets(model, probabilities(model, data), share)


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
    model, share = model_of(learner), checked_share(reject, "reject, the share of known nodes that may be rejected,")
    if classes is not None and (isinstance(classes, bool) or not isinstance(classes, int | np.integer)):
        raise ConfigError(f"classes, the number of groups, is a whole number, not {shortened(classes)}.")
    return grouping.discover(model, read_graph(model, data), share, classes)


def explain(learner: Learner, data: "Data | HeteroData", node: Any, *, against: Any = None) -> Explanation:
    """Which neighbours and features spoke for the class of a node, rather than for another.

    Parameters
    ----------
    learner : Learner
        A fitted learner.
    data : Data or HeteroData
        A graph with `x` and `edge_index`.
    node : int or str
        The id of the node, or its number where the graph has no ids.
    against : int or str, optional
        The class to compare with. Default: the next best.

    Returns
    -------
    Explanation
    """
    model, other = model_of(learner), None if against is None else _label(against)
    ids = data.ids if isinstance(data, GraphData) else None
    name = _single(node, "A node")
    number = name if ids is None else int(data.nodes([name])[0])
    return replace(explained(model, read_graph(model, data), number, other), ids=ids)


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
    return _changed(learner, edits.rename_class(model_of(learner), _label(old), _label(new)))


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
    return _changed(learner, edits.merge_classes(model_of(learner), _labels(labels), _label(into)))


def split_class(learner: Learner, label: Any, data: "Graphs") -> Learner:
    """Move nodes of a class to new classes: as if they had been learned so. Refused where that is not exact.

    Parameters
    ----------
    learner : Learner
        A fitted learner of a method that keeps sums; changed in place.
    label : int or str
        The class.
    data : Data, HeteroData, or a list of them
        The graphs, from the first one concerned to the last one learned, with features, edges, labels and
        `train_mask` as they were learned. Nodes that move have their new labels in `y`.

    Returns
    -------
    Learner
        The same learner.
    """
    model = model_of(learner)
    return _changed(learner, edits.split_class(model, _label(label), _tasks(model, data)))


def relabel(learner: Learner, data: "Graphs") -> Learner:
    """Correct labels: as if nodes had been learned so. Refused where that is not exact.

    Parameters
    ----------
    learner : Learner
        A fitted learner of a method that keeps sums; changed in place.
    data : Data, HeteroData, or a list of them
        The graphs, from the first one concerned to the last one learned, with features, edges, labels and
        `train_mask` as they were learned. `new_y` has the right labels.

    Returns
    -------
    Learner
        The same learner.
    """
    tasks, labels = zip(*map(correction_of, _several(data)), strict=True)
    return _changed(learner, edits.relabel(model_of(learner), tasks, labels))


# ---------------------------------------------------------------------- forgetting, and models added


def forget_class(learner: Learner, label: Any, data: "Graphs") -> Learner:
    """Forget a class: as if no node of it had taught. Its nodes stay in the graphs, as neighbours of others.

    Parameters
    ----------
    learner : Learner
        A fitted learner of a method that keeps sums; changed in place.
    label : int or str
        The class.
    data : Data, HeteroData, or a list of them
        The graphs, from the first one concerned to the last one learned, with features, edges, labels and
        `train_mask` as they were learned.

    Returns
    -------
    Learner
        The same learner.
    """
    model = model_of(learner)
    return _changed(learner, edits.forget_classes(model, [_label(label)], _tasks(model, data)))


def forget_rows(learner: Learner, data: "Graphs") -> Learner:
    """Forget what nodes taught: as if they had had no label. They stay in the graphs, as neighbours of others.

    Parameters
    ----------
    learner : Learner
        A fitted learner of a method that keeps sums; changed in place.
    data : Data, HeteroData, or a list of them
        The graphs, from the first one concerned to the last one learned, with features, edges, labels and
        `train_mask` as they were learned. `forget_mask` marks the nodes, in every graph that they taught in.

    Returns
    -------
    Learner
        The same learner.
    """
    model = model_of(learner)
    return _changed(learner, edits.forget_rows(model, _departures(model, data)))


def forget_nodes(learner: Learner, data: "Graphs") -> Learner:
    """Forget nodes: as if they had never been in any graph, nor their edges.

    Sums, ridge, calibration and history are those of a model that never saw them.

    Parameters
    ----------
    learner : Learner
        A fitted learner of a method that keeps sums; changed in place.
    data : Data, HeteroData, or a list of them
        The graphs, from the first one concerned to the last one learned, with features, edges, labels and
        `train_mask` as they were learned. `forget_mask` marks the nodes, in every graph that they were in.

    Returns
    -------
    Learner
        The same learner.
    """
    model = model_of(learner)
    return _changed(learner, edits.forget_nodes(model, _departures(model, data)))


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
    merged = edits.merge_models(model_of(one), model_of(other))
    return type(one)._of(merged)
