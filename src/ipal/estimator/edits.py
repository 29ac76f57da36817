"""Changes of a model besides learning: classes renamed, merged, split, labels corrected, nodes and classes forgotten.

Every function returns another model; the one passed in stays as it is. Exact means: the model that had been taught so
in the first place. What is forgotten or corrected is taken away and learned again: from the first graph concerned to
the last one learned, all are needed. Where that is not possible, it is refused.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ipal.data.graph import Nodes
from ipal.data.labels import Labels
from ipal.data.task import Task
from ipal.engine.trainer import finished
from ipal.errors import ConfigError, DataError, shortened
from ipal.estimator import history
from ipal.estimator.convert.pyg import Departure
from ipal.estimator.lessons import fingerprint, sealed
from ipal.estimator.model import Model, begin_learning
from ipal.methods.base import Forgets, MergesClasses, MergesModels

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
    return model.changed(
        event,
        state=model.with_memory(memory, rest),
        calibration=model.calibration.united(places, len(rest)),
        lessons=sealed(model.lessons),
    )


def split_class(model: Model, label: Any, tasks: Sequence[Task]) -> Model:
    """Move training nodes of a class to new ones: labels of the tasks say where to."""
    _known(model, label)
    label, parts = _plain(label), _labels(tasks)
    new = [part for part in parts if part not in model.labels]
    if not new:
        raise DataError(f"data.y names no new class: give the nodes of class {label} in train_mask their new labels.")
    for part in new:
        _new(model, part)
    old = [np.where(np.isin(task.labels, new), label, task.labels) for task in tasks]
    taught = [replace(task, labels=before) for task, before in zip(tasks, old, strict=True)]
    return _retaught(model, taught, list(tasks), "split", [label], new)


def relabel(model: Model, tasks: Sequence[Task], labels: Sequence[Labels]) -> Model:
    """Correct labels: training nodes of tasks that taught their labels teach these instead."""
    moved = [task.labels != new for task, new in zip(tasks, labels, strict=True)]
    if not any(some.any() for some in moved):
        raise DataError("data.new_y says the same as data.y for every node in train_mask: nothing is to be changed.")
    changed = [replace(task, labels=new) for task, new in zip(tasks, labels, strict=True)]
    old, into = (
        _labels([replace(task, labels=task.labels[some]) for task, some in zip(these, moved, strict=True)])
        for these in (tasks, changed)
    )
    for label in into:
        if label not in model.labels:
            _new(model, label)
    return _retaught(model, tasks, changed, "relabelled", old, into)


# ---------------------------------------------------------------------- forgetting


def forget_classes(model: Model, labels: Sequence[Any], tasks: Sequence[Task]) -> Model:
    """Forget classes: no node of them taught. Their nodes stay in the graphs, as neighbours of others."""
    gone, there = [model.labels[_known(model, label)] for label in labels], _labels(tasks)
    for label in gone:
        if label not in there:
            raise DataError(f"No training node of these graphs is of class {label}: give those that it was in.")
    changed = [_chosen(task, ~np.isin(task.labels, gone)) for task in tasks]
    return _retaught(model, tasks, changed, "forgot")


def forget_rows(model: Model, departures: Sequence[Departure]) -> Model:
    """Forget what nodes taught: exact for a model that never learned from their labels, in graphs that stay."""
    _check_leaving(departures)
    changed = []
    for task, leaving in departures:
        stays = ~np.isin(task.nodes, leaving)
        if len(task.nodes) - stays.sum() != len(leaving):
            raise DataError("forget_mask marks a node that is not in train_mask: it never taught.")
        changed.append(_chosen(task, stays))
    return _retaught(model, [one.task for one in departures], changed, "forgot")


def forget_nodes(model: Model, departures: Sequence[Departure]) -> Model:
    """Forget that nodes were in graphs: as if these had come without them, and without their edges."""
    _check_leaving(departures)
    changed = [_without_nodes(model, *one) for one in departures]
    return _retaught(model, [one.task for one in departures], changed, "forgot")


def _check_leaving(departures: Sequence[Departure]) -> None:
    if not any(len(one.leaving) for one in departures):
        raise DataError("Say which nodes are to be forgotten: set data.forget_mask, True for each of them.")


def _without_nodes(model: Model, task: Task, leaving: Nodes) -> Task:
    if not len(leaving):
        return task
    stay, stays = np.setdiff1d(np.arange(task.graph.num_nodes), leaving), ~np.isin(task.nodes, leaving)
    if not stays.any():
        return _chosen(task, stays)
    rest = task.graph.induced(stay, model.runtime.budget)
    return Task(rest, np.searchsorted(stay, task.nodes[stays]), task.labels[stays])


def _chosen(task: Task, some: NDArray[np.bool_]) -> Task:
    return Task(task.graph, task.nodes[some], task.labels[some])


def _labels(tasks: Iterable[Task]) -> list[Any]:
    return list(dict.fromkeys(label for task in tasks for label in np.unique(task.labels).tolist()))


def _retaught(
    model: Model,
    tasks: Sequence[Task],
    changed: Sequence[Task],
    what: str,
    classes: Iterable[Any] = (),
    into: Iterable[Any] = (),
) -> Model:
    """The model that learned the changed tasks instead: the last ones are taken away, and learned again.

    Exact: sums, ridge, calibration and history are those of a model that was taught so in the first place.
    """
    method = _forgetting(model)
    for label in _labels(tasks):
        _known(model, label)
    tasks, changed = ([replace(task, graph=model.checked(task.graph)) for task in some] for some in (tasks, changed))
    order, first = _last_lessons(model, tasks)
    lessons, taught = model.lessons[first:], [model.numbered(tasks[place]) for place in order]
    memory = method.without_tasks(model.state.memory, taught, first, model.compute)
    found: Model | None = _remaining(model, memory, first)
    for place, lesson in zip(order, lessons, strict=True):
        if len(changed[place].nodes):
            learning = begin_learning(model.config, found, changed[place], model.runtime)
            found = learning.finish(finished(learning.epochs()))
            found = found if lesson.time is None else found.stamped(lesson.time)
    if found is None:
        raise DataError("Nothing would be left: a model needs at least one class.")
    nodes = sum(len(tasks[place].nodes) - len(changed[place].nodes) for place in order)
    event = history.event(what, classes, into=into, nodes=nodes, time=history.now())
    _, since = history.parted(model.history, len(lessons))
    forgot = [one for one in since if one["what"] == "forgot"]  # other events name classes, which may be gone
    return replace(found, history=tuple(history.extended(found.history, *forgot, event)))


def _last_lessons(model: Model, tasks: Sequence[Task]) -> tuple[list[int], int]:
    """The order in which tasks were learned, and the number of the first; they must be the last ones, all of them."""
    prints = [fingerprint(task) for task in tasks]
    known = [lesson.fingerprint for lesson in model.lessons]
    for number, one in enumerate(prints, 1):
        if one not in known:
            which = "This graph is" if len(prints) == 1 else f"Graph {number} of these is"
            raise DataError(
                f"{which} none that taught the model: features, edges, labels and train_mask must be as they were "
                "learned, without what was forgotten since."
            )
        if prints.count(one) > 1:
            raise DataError(f"Graph {number} of these is given twice: give every graph once, however often it taught.")
    first = min(known.index(one) for one in prints)
    missing = [lesson for lesson in model.lessons[first:] if lesson.fingerprint not in prints]
    if missing:
        raise DataError(
            f"The model learned {len(missing)} graph(s) more after the first of these, and its ridge and calibration "
            f"rest on all of them: give all graphs from the first one that the nodes were in; missing: "
            f"{'; '.join(map(str, missing[:3]))}."
        )
    if any(lesson.sealed for lesson in model.lessons[first:]):
        raise DataError(
            "Models or classes were merged since these graphs were learned: change the model from before, and merge "
            "again."
        )
    return [prints.index(one) for one in known[first:]], first


def _remaining(model: Model, memory: Any, first: int) -> Model | None:
    """The model before its last lessons; None where nothing was learned before them."""
    if first == 0:
        return None
    method = _forgetting(model)
    kept = model.method.statistics(memory)
    assert kept is not None, "it is a sum over nodes"
    if bool((kept.count < 0).any()):
        raise DataError("More nodes of a class would be taken away than taught: these graphs did not teach this model.")
    left = torch.nonzero(kept.count).flatten().tolist()
    return replace(
        model,
        state=model.with_memory(method.of_classes(memory, left), [model.labels[c] for c in left]),
        calibration=model.calibration.before(first).of_classes(left),
        lessons=model.lessons[:first],
        schema=replace(model.schema, directed=model.lessons[first - 1].directed),
        history=tuple(history.parted(model.history, len(model.lessons) - first)[0]),
        reference=None,
    )


# ---------------------------------------------------------------------- models added


def merge_models(one: Model, other: Model) -> Model:
    """The model that learned what both learned. Both must map nodes to rows alike."""
    method = _merging(one)
    if type(other.method) is not type(one.method):
        raise DataError(f"A model of '{one.name}' cannot be merged with one of '{other.name}'.")
    settings = _addressed(other, _merging(other))
    for name, mine in _addressed(one, method).items():
        theirs = settings[name]
        if mine != theirs:
            raise DataError(f"These models cannot be merged: {name} is {mine} in one and {theirs} in the other.")
    if type(one.labels[0]) is not type(other.labels[0]):
        raise DataError("These models cannot be merged: one has numbers as labels, the other strings.")
    both = {lesson.fingerprint for lesson in one.lessons} & {lesson.fingerprint for lesson in other.lessons}
    if both:
        raise DataError(f"These models cannot be merged: both learned {len(both)} graph(s), which would count twice.")
    labels = [*one.labels, *(label for label in other.labels if label not in set(one.labels))]
    places = torch.tensor([labels.index(label) for label in other.labels], device=one.device)
    memory = method.merged(one.state.memory, other.state.memory, places, len(labels))
    event = history.event("merged models", other.labels, time=history.now())
    past = tuple(history.extended(history.extended(one.history, *other.history), event))
    calibration = one.calibration.merged(other.calibration, places, len(labels), len(one.lessons))
    lessons = sealed((*one.lessons, *other.lessons))
    schema = replace(one.schema, directed=one.schema.directed or other.schema.directed)
    whole = one.changed(state=one.with_memory(memory, labels), calibration=calibration, lessons=lessons)
    return replace(whole, schema=schema, history=past)


def _addressed(model: Model, method: MergesModels) -> dict[str, Any]:
    """What must agree for two models' sums to be sums of the same rows."""
    types, memory = model.schema.types, model.state.memory
    settings = method.addressed(memory)
    return {
        "the number of features": model.num_features,
        "the types of nodes and edges": types and types.plain,
        "the names of features": model.schema.columns,
        **{f"{model.name}.{name}": value for name, value in settings.items()},
        "the seed of the feature map": model.config.seed,
        "the random projection": model.method.identity(memory),
    }


def _forgetting(model: Model) -> Forgets:
    if not isinstance(model.method, Forgets):
        raise _inexact(model, "forget or correct labels")
    return model.method


def _merging(model: Model) -> MergesModels:
    if not isinstance(model.method, MergesModels):
        raise ConfigError(f"Models of the method '{model.name}' cannot be added: use analytic, whose sums can.")
    return model.method


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
        f"The method '{model.name}' cannot {what} exactly: what it keeps is no sum over nodes that can be taken apart; "
        "learn again, or use a method that keeps sums (analytic, ncm, slda)."
    )
