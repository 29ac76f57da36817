"""Classes renamed, drawn together, split, and labels corrected, in a model that has learned them.

Exact means: the model that had been taught so in the first place. What a method keeps decides whether that is possible;
`Learner.unite` and `Learner.correct` do it or refuse.
"""

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ipal.data.streams import Labels, Task
from ipal.errors import ConfigError, DataError, shortened
from ipal.learners import history
from ipal.learners.state import State

if TYPE_CHECKING:
    from ipal.learners.base import Learner


def known(learner: "Learner", label: Any) -> int:
    """The place of a class that was learned."""
    if label not in learner.labels_:
        names = ", ".join(map(str, learner.labels_))
        raise DataError(f"Class {shortened(str(label))} was never learned; known are {names}.")
    return learner.labels_.index(label)


def rename(learner: "Learner", old: Any, new: Any) -> None:
    """The same model, with another name for a class."""
    place, new = _known(learner, old), _new(learner, new)
    state = learner.state()
    labels = [*learner.labels_[:place], new, *learner.labels_[place + 1 :]]
    found = history.extended(learner.history_, history.event("renamed", [old], into=[new], time=history.now()))
    learner.restore(State(state.tensors, {**state.facts, "labels": labels, "history": found}))


def merge(learner: "Learner", labels: Iterable[Any], into: Any) -> None:
    """Several classes as one, which is one of them or new."""
    some = list(dict.fromkeys(map(_plain, labels)))
    if len(some) < 2:
        raise DataError("Name at least two classes to be merged into one.")
    gone = [_known(learner, label) for label in some]
    into = _plain(into) if _plain(into) in some else _new(learner, into)
    first, rest = min(gone), [label for label in learner.labels_ if label not in some]
    rest.insert(sum(place not in gone for place in range(first)), into)
    at = {label: rest.index(into if label in some else label) for label in learner.labels_}
    nodes = sum(learner.nodes_behind_class().get(str(label), 0) for label in some)
    places = torch.tensor([at[label] for label in learner.labels_], device=learner.generator_.device)
    changed = _draft(learner, history.event("merged", some, into=[into], nodes=nodes, time=history.now()))
    changed.unite(places, len(rest))
    changed.labels_, changed.calibration_ = rest, learner.calibration_.united(places, len(rest))
    learner.__dict__ = changed.__dict__  # all at once


def split(learner: "Learner", label: Any, task: Task) -> None:
    """The training nodes of a task, which taught `label`, teach its labels: new classes, or `label` itself."""
    _known(learner, label)
    label, parts = _plain(label), np.unique(task.labels).tolist()
    for part in parts:
        if part in learner.labels_ and part != label:
            raise DataError(f"Class {part} is known already, and no part of class {label}: move nodes with relabel.")
    if parts in ([], [label]):
        raise DataError(f"data.y names no new class: give the nodes of class {label} in train_mask their new labels.")
    old = np.full(len(task.nodes), label)
    _correct(learner, "split", Task(task.graph, task.nodes, old, task.origin), task.labels)


def relabel(learner: "Learner", task: Task, labels: Labels) -> None:
    """The training nodes of a task, which taught its labels, teach these."""
    learner._require_fitted()
    for label in np.unique(task.labels).tolist():
        _known(learner, label)
    if not (task.labels != labels).any():
        raise DataError("data.new_y says the same as data.y for every node in train_mask: nothing is to be changed.")
    _correct(learner, "relabelled", task, labels)


def inexact(learner: "Learner", what: str) -> ConfigError:
    """Why a method cannot do something to its classes."""
    return ConfigError(
        f"The method '{learner.name}' cannot {what} exactly: its weights were trained on the labels as they were; "
        "learn again with the new ones, or use a method that keeps sums (analytic, ncm, slda)."
    )


def _correct(learner: "Learner", what: str, task: Task, labels: Labels) -> None:
    moved = task.labels != labels
    old, new = (np.unique(some[moved]).tolist() for some in (task.labels, labels))
    fresh = [_new(learner, label) for label in new if label not in learner.labels_]
    nodes = int(moved.sum())
    changed = _draft(learner, history.event(what, old, into=new, nodes=nodes, time=history.now()))
    changed.labels_ = [*learner.labels_, *fresh]
    changed.calibration_ = learner.calibration_.padded(len(changed.labels_))
    changed.correct(task, changed.rows(labels))
    learner.__dict__ = changed.__dict__  # all at once


def _draft(learner: "Learner", event: dict[str, Any]) -> "Learner":
    """A copy to be changed: values in it are replaced, not changed in place."""
    changed = copy.copy(learner)
    changed.history_, changed.reference_ = history.extended(learner.history_, event), None
    return changed


def _known(learner: "Learner", label: Any) -> int:
    learner._require_fitted()
    if learner.is_learning:
        raise ConfigError("A task is being learned: classes can be changed when it is done.")
    return known(learner, _plain(label))


def _new(learner: "Learner", label: Any) -> Any:
    """A label that may be added to those of a learner."""
    label = _plain(label)
    if label in learner.labels_:
        raise DataError(f"Class {label} is known already: give the class a name of its own, or merge the two.")
    if type(label) is not type(learner.labels_[0]) or (isinstance(label, int) and not -(2**63) <= label < 2**63):
        kind = "strings" if isinstance(learner.labels_[0], str) else "whole numbers"
        raise DataError(f"The classes of this model are {kind}, and {shortened(label)} is none: name it as the others.")
    return label


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic | torch.Tensor) else label
