"""Changes of a model besides learning: classes renamed, merged, split, labels corrected, nodes and classes forgotten.

Every function returns another model; the one passed in stays as it is. Exact means: the model that had been taught so
in the first place. What a method keeps decides whether that is possible; where it is not, it is refused.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ipal.data.labels import Labels
from ipal.data.task import Task
from ipal.errors import ConfigError, DataError, shortened
from ipal.estimator import history
from ipal.estimator.convert.pyg import Departure
from ipal.estimator.model import Model
from ipal.methods.base import CorrectsLabels, Forgets, MergesClasses

# ---------------------------------------------------------------------- classes


def rename_class(model: Model, old: Any, new: Any) -> Model:
    """Give a class another label; nothing else changes."""
    place, new = _known(model, old), _new(model, new)
    labels = (*model.labels[:place], new, *model.labels[place + 1 :])
    event = history.event("renamed", [old], into=[new], time=history.now())
    renamed = model.changed(event, state=model.with_memory(model.state.memory, labels))
    return replace(renamed, reference=model.reference)


def merge_classes(model: Model, labels: Iterable[Any], into: Any) -> Model:
    """Make one class of several: a new one, or one of them."""
    if not isinstance(model.method, MergesClasses):
        raise _inexact(model, "merge classes")
    some = list(dict.fromkeys(map(_plain, labels)))
    if len(some) < 2:
        raise DataError("Name at least two classes to be merged into one.")
    gone = [_known(model, label) for label in some]
    into = _plain(into) if _plain(into) in some else _new(model, into)
    first, rest = min(gone), [label for label in model.labels if label not in some]
    rest.insert(sum(place not in gone for place in range(first)), into)
    at = {label: rest.index(into if label in some else label) for label in model.labels}
    nodes = sum(model.nodes_behind_class().get(str(label), 0) for label in some)
    places = torch.tensor([at[label] for label in model.labels], device=model.device)
    memory = model.method.merge_classes(model.state.memory, places, len(rest))
    event = history.event("merged", some, into=[into], nodes=nodes, time=history.now())
    calibration = model.calibration.united(places, len(rest))
    return model.changed(event, state=model.with_memory(memory, rest), calibration=calibration)


def split_class(model: Model, label: Any, task: Task) -> Model:
    """Move training nodes of a task from a class to new ones: labels of the task say where to."""
    _known(model, label)
    label, parts = _plain(label), np.unique(task.labels).tolist()
    for part in parts:
        if part in model.labels and part != label:
            raise DataError(f"Class {part} is known already, and no part of class {label}: move nodes with relabel.")
    if parts in ([], [label]):
        raise DataError(f"data.y names no new class: give the nodes of class {label} in train_mask their new labels.")
    old = np.full(len(task.nodes), label)
    return _corrected(model, "split", Task(task.graph, task.nodes, old, task.origin), task.labels)


def relabel(model: Model, task: Task, labels: Labels) -> Model:
    """Correct labels: training nodes of a task that taught its labels teach these instead."""
    for label in np.unique(task.labels).tolist():
        _known(model, label)
    if not (task.labels != labels).any():
        raise DataError("data.new_y says the same as data.y for every node in train_mask: nothing is to be changed.")
    return _corrected(model, "relabelled", task, labels)


def _corrected(model: Model, what: str, task: Task, labels: Labels) -> Model:
    if not isinstance(model.method, CorrectsLabels):
        raise _inexact(model, "correct labels")
    moved = task.labels != labels
    old, new = (np.unique(some[moved]).tolist() for some in (task.labels, labels))
    every = [*model.labels, *(_new(model, label) for label in new if label not in model.labels)]
    grown = model.changed(None, state=model.with_memory(model.state.memory, every))
    task = Task(model.checked(task.graph), task.nodes, task.labels, task.origin)
    names = list(map(str, every))
    memory, left = model.method.correct_labels(
        model.state.memory, grown.numbered(task), grown.rows(labels), names, model.compute
    )
    calibration = model.calibration.padded(len(every)).of_classes(torch.tensor(left))
    event = history.event(what, old, into=new, nodes=int(moved.sum()), time=history.now())
    return model.changed(event, state=model.with_memory(memory, [every[c] for c in left]), calibration=calibration)


# ---------------------------------------------------------------------- forgetting, and models added


def forget_class(model: Model, label: Any) -> Model:
    """Forget a class: exact for its own rows. Features of other nodes, which they may have reached, stay."""
    method, place = _forgetting(model), _known(model, label)
    gone = int(model.nodes_behind_class()[str(model.labels[place])])
    memory = method.without_class(model.state.memory, place, _names(model))
    return _forgotten(model, memory, [label], gone)


def forget_rows(model: Model, departure: Departure) -> Model:
    """Forget what nodes taught: exact for a model that never learned from their labels, in a graph that stays."""
    method, task = _forgetting(model), _taught(model, departure)
    leaving = np.isin(task.nodes, departure.leaving)
    if leaving.sum() != len(departure.leaving):
        raise DataError("forget_mask marks a node that is not in train_mask: it never taught.")
    memory = method.without_rows(model.state.memory, task, leaving, _names(model), model.compute)
    return _forgotten(model, memory, np.unique(departure.task.labels[leaving]).tolist(), len(departure.leaving))


def forget_nodes(model: Model, departure: Departure) -> Model:
    """Forget that nodes were in the graph: the rows of all nodes that they reached are redone."""
    method = _forgetting(model)
    if len(departure.task.nodes) == 0:
        raise DataError("train_mask marks no node: nothing was learned in this graph.")
    task = _taught(model, departure)
    memory = method.without_nodes(model.state.memory, task, departure.leaving, _names(model), model.compute)
    gone = np.isin(task.nodes, departure.leaving)
    return _forgotten(model, memory, np.unique(departure.task.labels[gone]).tolist(), int(gone.sum()))


def merge_models(one: Model, other: Model) -> Model:
    """The model that learned what both learned. Both must map nodes to rows alike."""
    method = _forgetting(one, "merge models")
    if type(other.method) is not type(one.method):
        raise DataError(f"A model of '{one.name}' cannot be merged with one of '{other.name}'.")
    for name, mine in _addressed(one).items():
        theirs = _addressed(other)[name]
        if mine != theirs:
            raise DataError(f"These models cannot be merged: {name} is {mine} in one and {theirs} in the other.")
    if type(one.labels[0]) is not type(other.labels[0]):
        raise DataError("These models cannot be merged: one has numbers as labels, the other strings.")
    labels = [*one.labels, *(label for label in other.labels if label not in set(one.labels))]
    places = torch.tensor([labels.index(label) for label in other.labels], device=one.device)
    memory = method.merged(one.state.memory, other.state.memory, places, len(labels))
    event = history.event("merged models", other.labels, time=history.now())
    past = tuple(history.extended(history.extended(one.history, *other.history), event))
    calibration = one.calibration.merged(other.calibration, places, len(labels))
    schema = replace(one.schema, directed=one.schema.directed or other.schema.directed)
    whole = one.changed(state=one.with_memory(memory, labels), calibration=calibration)
    return replace(whole, schema=schema, history=past)


def _addressed(model: Model) -> dict[str, Any]:
    """What must agree for two models' sums to be sums of the same rows."""
    types, memory = model.schema.types, model.state.memory
    settings = _forgetting(model).addressed(memory)
    return {
        "the number of features": model.num_features,
        "the types of nodes and edges": types and types.plain,
        "the names of features": model.schema.columns,
        **{f"{model.name}.{name}": value for name, value in settings.items()},
        "the seed of the feature map": model.config.seed,
        "the random projection": model.method.identity(memory),
    }


def _forgetting(model: Model, what: str = "forget") -> Forgets:
    if not isinstance(model.method, Forgets):
        raise ConfigError(
            f"The method '{model.name}' cannot {what} exactly: what it keeps is no sum over nodes that can be taken "
            "apart; learn again, or use a method that keeps such sums (analytic)."
        )
    return model.method


def _forgotten(model: Model, memory: Any, labels: list[Any], nodes: int) -> Model:
    """With another memory, whose empty classes are no longer known."""
    method = _forgetting(model)
    kept = model.method.statistics(memory)
    assert kept is not None, "it is a sum over nodes"
    left = torch.nonzero(kept.count).flatten().tolist()
    if not left:
        raise DataError("Nothing would be left: a model needs at least one class.")
    state = model.with_memory(method.of_classes(memory, left), [model.labels[c] for c in left])
    calibration = model.calibration.padded(len(model.labels)).of_classes(torch.tensor(left))
    event = history.event("forgot", labels, nodes=nodes, time=history.now())
    return model.changed(event, state=state, calibration=calibration)


def _taught(model: Model, departure: Departure) -> Task:
    """The task that nodes are to leave, on the graph as the model reads it, with class numbers as labels."""
    task = departure.task
    for label in np.unique(task.labels).tolist():
        _known(model, label)
    return model.numbered(Task(model.checked(task.graph), task.nodes, task.labels, task.origin))


# ---------------------------------------------------------------------- labels


def _names(model: Model) -> list[str]:
    return list(map(str, model.labels))


def _known(model: Model, label: Any) -> int:
    """The place of a class that was learned."""
    label = _plain(label)
    if label not in model.labels:
        raise DataError(f"Class {shortened(str(label))} was never learned; known are {', '.join(_names(model))}.")
    return model.labels.index(label)


def _new(model: Model, label: Any) -> Any:
    """A label that may be added to those of a model."""
    label = _plain(label)
    if label in model.labels:
        raise DataError(f"Class {label} is known already: give the class a name of its own, or merge the two.")
    if type(label) is not type(model.labels[0]) or (isinstance(label, int) and not -(2**63) <= label < 2**63):
        kind = "strings" if isinstance(model.labels[0], str) else "whole numbers"
        raise DataError(f"The classes of this model are {kind}, and {shortened(label)} is none: name it as the others.")
    return label


def _plain(label: Any) -> Any:
    plain = label.item() if isinstance(label, np.generic | torch.Tensor) else label
    if isinstance(plain, bool):  # equal to 1 and 0
        raise DataError(f"{plain} is no class: name one by its number or its string.")
    return plain


def _inexact(model: Model, what: str) -> ConfigError:
    """Why a method cannot do something to its classes."""
    return ConfigError(
        f"The method '{model.name}' cannot {what} exactly: its weights were trained on the labels as they were; "
        "learn again with the new ones, or use a method that keeps sums (analytic, ncm, slda)."
    )
