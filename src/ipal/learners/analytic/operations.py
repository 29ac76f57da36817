"""What sums allow: models merged, classes and nodes forgotten, classes drawn together, labels corrected. All exact.

Whatever is to be changed is computed first, and the learner becomes it at once: interrupted, it is what it was before.
"""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.data.streams import Task
from ipal.errors import DataError
from ipal.learners import history
from ipal.learners.analytic.left_out import LeftOut
from ipal.learners.analytic.ridge import weights_without
from ipal.learners.analytic.sums import Sums
from ipal.learners.checks import check_taught
from ipal.learners.class_changes import known
from ipal.learners.from_hetero import departure_of
from ipal.learners.state import laid_out

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data, HeteroData

    from ipal.learners.analytic.learner import Analytic

Model = TypeVar("Model", bound="Analytic")


def merged(one: Model, other: "Analytic") -> Model:
    """The model that learned what both learned: their sums, added."""
    one._require_fitted()
    other._require_fitted()
    for name, mine in _addressed(one).items():
        theirs = _addressed(other)[name]
        if mine != theirs:
            raise DataError(f"These models cannot be merged: {name} is {mine} in one and {theirs} in the other.")
    if type(one.labels_[0]) is not type(other.labels_[0]):
        raise DataError("These models cannot be merged: one has numbers as labels, the other strings.")
    both = copy.copy(one)
    both.generator_ = one.generator_.clone_state()
    both.labels_ = one.labels_ + [label for label in other.labels_ if label not in set(one.labels_)]
    device, classes = one.sums_.count.device, len(both.labels_)
    places = torch.tensor([both.labels_.index(label) for label in other.labels_], device=device)
    one.check_classes(classes)
    theirs = other.sums_.of_tensors(other.sums_.tensors(), device)
    losses = LeftOut(other.left_out_.loss.to(device), other.left_out_.count.to(device))
    both.sums_ = one.sums_.merged(theirs, places, classes)
    both.left_out_ = one.left_out_.merged(losses, places, classes)
    both.calibration_ = one.calibration_.merged(other.calibration_, places, classes)
    both.solved_ = None
    joined = history.extended(one.history_, *other.history_)
    both.reference_ = None
    both.history_ = history.extended(joined, history.event("merged models", other.labels_, time=history.now()))
    return both


def _addressed(learner: "Analytic") -> dict[str, Any]:
    """What must agree for two models' sums to be sums of the same rows."""
    return {
        "the number of features": learner.num_features_,
        "the types of nodes and edges": learner.types_ and learner.types_.plain,
        "the names of features": learner.columns_,
        "analytic.sums": learner.sums,
        "analytic.width": learner.width,
        "analytic.steps": learner.map.steps,
        "analytic.restart": learner.map.restarts,
        "the seed of the feature map": learner.seed,
        "the random projection": learner.map.fingerprint,
        "analytic.ridge": learner.ridge,
    }


def forget_class(learner: Model, label: Any) -> Model:
    """Without the rows of a class."""
    learner._require_fitted()
    place = known(learner, label)
    gone = int(learner.sums_.count[place])
    return _forgotten(learner, learner.sums_.without(place, learner.names), [label], gone)


def forget_rows(learner: Model, data: "Data | HeteroData") -> Model:
    """Without the rows of some nodes, in a graph that stays."""
    learner._require_fitted()
    departure = departure_of(data, learner.types_)
    task, gone = departure.task, departure.leaving
    taught = learner.rows_of(learner.checked(task.graph), task.nodes, _taught(learner, task))
    leaving = np.isin(task.nodes, gone)
    if leaving.sum() != len(gone):
        raise DataError("forget_mask marks a node that is not in train_mask: it never taught.")
    sums = learner.exchanged(learner.sums_, taught.where(leaving), None)
    return _forgotten(learner, sums, np.unique(task.labels[leaving]).tolist(), len(gone))


def without_nodes(learner: Model, task: Task, leaving: NDArray[np.bool_]) -> Model:
    """A copy without the rows of some nodes of the task just learned; ridge and scale stay as they are."""
    found = copy.copy(learner)
    taught = learner.rows_of(task.graph, task.nodes, learner.rows(task.labels))
    found.sums_, found.solved_ = learner.sums_.changed(-1, taught.where(leaving), learner.runtime_.team), None
    return found


def without_class(learner: Model, label: Any) -> Model:
    """A copy without a class, to try out: nearly exact, and at once, where the products of its rows are not known."""
    place = known(learner, label)
    found = _adopt(copy.copy(learner), learner.sums_.about_without(place))
    if learner.sums_.kind == "pooled":
        before, classes = learner.solved, len(learner.labels_)
        weights = weights_without(before.weights, learner.sums_.mean.T, place)
        _, scale = found.left_out_.best(found.ridges)
        found.solved_ = replace(
            before, weights=laid_out(weights), ridge=before.ridge * (classes - 1) / classes, scale=scale
        )
    return found


def forget_nodes(learner: Model, data: "Data | HeteroData") -> Model:
    """As if some nodes had never been in the graph."""
    learner._require_fitted()
    departure = departure_of(data, learner.types_)
    task, gone = departure.task, departure.leaving
    if len(task.nodes) == 0:
        raise DataError("train_mask marks no node: nothing was learned in this graph.")
    stay = np.setdiff1d(np.arange(task.graph.num_nodes), gone)
    labels = _taught(learner, task)
    stays = ~np.isin(task.nodes, gone)
    before = learner.rows_of(learner.checked(task.graph), task.nodes, labels)
    # Where nobody stays, nothing is looked up.
    rest = task.graph.induced(stay, learner.runtime_.budget) if stays.any() else task.graph
    after = learner.rows_of(rest, np.searchsorted(stay, task.nodes[stays]), labels[stays])
    moved = np.ones(len(task.nodes), dtype=bool)
    stayed, everyone = torch.from_numpy(np.flatnonzero(stays)), torch.arange(len(after), device=labels.device)
    same = (before.taken(stayed.to(labels.device)) == after.taken(everyone)).all(dim=1).cpu().numpy()
    moved[np.flatnonzero(stays)[same]] = False
    sums = learner.exchanged(learner.sums_, before.where(moved), after.where(moved[stays]))
    return _forgotten(learner, sums, np.unique(task.labels[~stays]).tolist(), int((~stays).sum()))


def unite(learner: "Analytic", places: Tensor, classes: int) -> None:
    """What is kept of class i belongs to class `places[i]` of so many."""
    empty = LeftOut.empty(learner.left_out_.loss.shape[1], places.device)
    learner.left_out_ = empty.merged(learner.left_out_, places, classes)
    _adopt(learner, learner.sums_.united(places, classes))


def correct(learner: "Analytic", task: Task, labels: Tensor) -> None:
    """The training nodes of a task, which taught its labels, teach these."""
    old = _taught(learner, task)
    taught = learner.rows_of(learner.checked(task.graph), task.nodes, old)
    moved = (old != labels).cpu().numpy()
    classes = len(learner.labels_)
    learner.check_classes(classes)
    leaving, coming = (rows.where(moved) for rows in (taught, replace(taught, labels=labels)))
    learner.left_out_ = learner.left_out_.grown(classes)
    _adopt(learner, learner.exchanged(learner.sums_.grown(classes), leaving, coming))


def _adopt(learner: Model, sums: Sums) -> Model:
    """Go on with changed sums; classes without a node are no longer known."""
    left = torch.nonzero(sums.count).flatten().tolist()
    if not left:
        raise DataError("Nothing would be left: a model needs at least one class.")
    changed = copy.copy(learner)
    changed.sums_, changed.left_out_ = sums.of_classes(left), learner.left_out_.of_classes(left)
    changed.calibration_ = learner.calibration_.padded(len(sums.count)).of_classes(torch.tensor(left))
    changed.labels_ = [learner.labels_[c] for c in left]
    changed.solved_ = None
    learner.__dict__ = changed.__dict__
    return learner


def _forgotten(learner: Model, sums: Sums, labels: list[Any], nodes: int) -> Model:
    found = history.extended(learner.history_, history.event("forgot", labels, nodes=nodes, time=history.now()))
    changed = _adopt(copy.copy(learner), sums)
    changed.history_, changed.reference_ = found, None
    learner.__dict__ = changed.__dict__  # all at once: interrupted before, nothing was forgotten
    return learner


def _taught(learner: "Analytic", task: Task) -> Tensor:
    """The classes of nodes that are said to have taught: known ones, and no more nodes than stand behind them."""
    for label in np.unique(task.labels).tolist():
        known(learner, label)
    rows = learner.rows(task.labels)
    check_taught(learner.sums_.count, rows, learner.names)
    return rows
