"""What sums allow: models merged, classes and nodes forgotten, classes drawn together, labels corrected. All exact.

Whatever is to be changed is computed first, and the learner becomes it at once: interrupted, it is what it was before.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.data.streams import Task
from ipal.errors import DataError
from ipal.learners import history
from ipal.learners.analytic.class_sums import PerClassSums, PooledSums, Sums
from ipal.learners.analytic.rows import Rows
from ipal.learners.checks import check_taught
from ipal.learners.class_changes import known
from ipal.learners.from_hetero import departure_of

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data, HeteroData

    from ipal.learners.analytic.learner import Analytic

Model = TypeVar("Model", bound="Analytic")


def merged(one: Model, other: "Analytic") -> Model:
    """The model that learned what both learned: their sums, added."""
    both, other = one._settled(), other._settled()
    for name, mine in _addressed(one).items():
        theirs = _addressed(other)[name]
        if mine != theirs:
            raise DataError(f"These models cannot be merged: {name} is {mine} in one and {theirs} in the other.")
    if type(one.labels_[0]) is not type(other.labels_[0]):
        raise DataError("These models cannot be merged: one has numbers as labels, the other strings.")
    both.generator_ = one.generator_.clone_state()
    both.labels_ = one.labels_ + [label for label in other.labels_ if label not in set(one.labels_)]
    places = torch.tensor([both.labels_.index(label) for label in other.labels_], device=one.sums_.count.device)
    one.room.check(len(both.labels_), one.num_features_, one._map.width)
    theirs = other.sums_.of_tensors(other.sums_.tensors(), one.sums_.count.device)
    mine = one.room.within(one.sums_, len(both.labels_))
    if isinstance(mine, PooledSums) and isinstance(theirs, PerClassSums):
        theirs = theirs.pooled()
    both.sums_ = mine.merged(theirs, places, len(both.labels_), both.names)
    # No row is at hand to choose by; more classes favour the smaller ridge.
    classes = both.scale_[1] + other.scale_[1]
    both.ridge_, (scale, _) = min((both.ridge_, both.scale_), (other.ridge_, other.scale_))
    both.scale_ = [scale, classes]
    both.choices_ = {**both.choices_, "merged": True}
    both.calibration_ = one.calibration_.merged(other.calibration_, places, len(both.labels_))
    both.solved_ = None
    both._settle()
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
        "analytic.sketch": learner.sketch_,
        "analytic.sums": learner.map_["sums"],
        "the number of hops": learner._map.spread.hops,
        "the restart": learner._map.spread.restart,
        "the expansion": learner._map.expansion,
        "the seed of the projection": learner.seed,
        "the random projection": learner._map.fingerprint,
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
    sums = learner.exchanged(learner.sums_, *_touched(learner, taught, leaving))
    return _forgotten(learner, sums, np.unique(task.labels[leaving]).tolist(), len(gone))


def without_nodes(learner: Model, task: Task, leaving: NDArray[np.bool_]) -> Model:
    """A copy without the rows of some nodes of the task just learned; what was chosen stays as it is."""
    found = learner._settled()
    taught = learner.rows_of(task.graph, task.nodes, learner.rows(task.labels))
    sums = learner.sums_.less(taught.where(leaving), learner.runtime_.team)
    if isinstance(sums, PooledSums) and leaving.any():
        before = vars(learner).get("_before", {}).get("sums_")
        earlier = before.balanced_gram() if before is not None and len(before.count) else torch.zeros_like(sums.gram)
        sums = _weighed_anew(sums, earlier, learner.sums_.count)
    found.sums_, found.solved_ = sums, None
    return found


def _weighed_anew(sums: PooledSums, earlier: Tensor, count: Tensor) -> PooledSums:
    """Pooled sums that some rows of a task have left, with the weight of every class as it was, about.

    About the same share of every class has left: what the task had added is weighed as a whole. Where more of a class
    has left, what is missing is put at its mean. `earlier` are the sums before the task, `count` the rows of each class
    before some left.
    """
    touched = sums.count < count
    stayed = (sums.count / count)[touched]
    times = float(count[touched].sum() / sums.count[touched].sum())
    means = sums.mean[touched]
    gram = earlier + times * (sums.gram - earlier)
    return replace(sums, gram=gram + (means.T * (1 - times * stayed).clamp_min(0)) @ means)


def _touched(learner: "Analytic", taught: Rows, leaving: NDArray[np.bool_]) -> tuple[Rows, Rows | None]:
    """Rows to be taken away so that some leave, and rows to be added again."""
    touched = taught.where(leaving)
    if isinstance(learner.sums_, PooledSums):  # a weight changes only with all rows of its class at hand
        classes = torch.unique(touched.labels)
        return taught.among(classes), taught.where(~leaving).among(classes)
    return touched, None


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
    if isinstance(learner.sums_, PooledSums):  # a weight changes only with all rows of its class at hand
        moved |= np.isin(labels.cpu().numpy(), labels.cpu().numpy()[~stays])
    leaving, coming = before.where(moved), after.where(moved[stays])
    sums = learner.exchanged(learner.sums_, leaving, coming)
    return _forgotten(learner, sums, np.unique(task.labels[~stays]).tolist(), int((~stays).sum()))


def unite(learner: "Analytic", places: Tensor, classes: int) -> None:
    """What is kept of class i belongs to class `places[i]` of so many."""
    _adopt(learner, learner.sums_.united(places, classes, learner.names))


def correct(learner: "Analytic", task: Task, labels: Tensor) -> None:
    """The training nodes of a task, which taught its labels, teach these."""
    old = _taught(learner, task)
    taught = learner.rows_of(learner.checked(task.graph), task.nodes, old)
    moved = old != labels
    if isinstance(learner.sums_, PooledSums):  # a weight changes only with all rows of its class at hand
        moved = torch.isin(old, torch.cat([old[moved], labels[moved]]))
    learner.room.check(len(learner.labels_), learner.num_features_, learner._map.width)
    leaving, coming = (rows.where(moved.cpu().numpy()) for rows in (taught, replace(taught, labels=labels)))
    sums = learner.room.within(learner.sums_, len(learner.labels_))
    _adopt(learner, learner.exchanged(sums, leaving, coming))


def _adopt(learner: Model, sums: Sums) -> Model:
    """Go on with changed sums; classes without a node are no longer known."""
    left = torch.nonzero(sums.count).flatten()
    if len(left) == 0:
        raise DataError("Nothing would be left: a model needs at least one class.")
    changed = learner._settled()
    changed.sums_, changed.solved_ = sums.of_classes(left), None
    changed.calibration_ = learner.calibration_.padded(len(sums.count)).of_classes(left)
    changed.labels_ = [learner.labels_[c] for c in left.tolist()]
    changed._settle()
    learner.__dict__ = changed.__dict__
    return learner


def _forgotten(learner: Model, sums: Sums, labels: list[Any], nodes: int) -> Model:
    found = history.extended(learner.history_, history.event("forgot", labels, nodes=nodes, time=history.now()))
    changed = _adopt(learner._settled(), sums)
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
