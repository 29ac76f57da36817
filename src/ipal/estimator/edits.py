"""Changes of a fitted learner besides learning: classes renamed and merged, labels corrected, nodes forgotten.

Every function replaces what the learner has learned, all at once, and returns it. Exact means: the model that had
learned so in the first place. What is forgotten or corrected is taken away and learned again: from the first graph
concerned to the last one learned, all are needed. Where that is not possible, it is refused.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ipal.closed_form.method import Analytic
from ipal.data.task import Task
from ipal.engine.trainer import finished, numbered
from ipal.errors import ConfigError, DataError, Qualified, shortened
from ipal.estimator import history
from ipal.estimator.convert.pyg import correction_of, departure_of, single, task_of
from ipal.estimator.history import Event
from ipal.estimator.learner import Learner
from ipal.estimator.model import Model, begin_learning, model_of
from ipal.methods.base import Forgets, MergesClasses
from ipal.state.value import leaves, rebuilt

if TYPE_CHECKING:  # for their names alone: importing them takes seconds
    from torch_geometric.data import Data

    Graphs: TypeAlias = Data | Sequence[Data]

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
    model = model_of(learner)
    place, new = _known(model, old), _new(model, new)
    labels = (*model.labels[:place], new, *model.labels[place + 1 :])
    event = Event.of("renamed", [model.labels[place]], into=[new], time=history.now())
    state = replace(model.state, classes=labels)
    return learner._become(replace(model, state=state, history=(*model.history, event)))


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

    Raises
    ------
    ConfigError
        If the method cannot merge classes exactly.
    DataError
        If these are not at least two known classes, or the new label is taken.
    """
    model = model_of(learner)
    if isinstance(labels, str) or not isinstance(labels, Iterable) or not getattr(labels, "ndim", 1):
        raise DataError(f"Name the classes in a list, as ['a', 'b'], not as {shortened(labels)}.")
    some, into = list(dict.fromkeys(model.labels[_known(model, one)] for one in labels)), _label(into)
    if not isinstance(model.method, MergesClasses):
        raise _inexact(model, "merge classes")
    if len(some) < 2:
        raise DataError("Name at least two classes to be merged into one.")
    into = into if into in some else _new(model, into)
    named = [into if label in some else label for label in model.labels]
    rest = list(dict.fromkeys(named))
    nodes = sum(model.nodes_behind_class().get(str(label), 0) for label in some)
    places = torch.tensor([rest.index(label) for label in named], device=model.device)
    memory = model.method.merge_classes(model.state.memory, places, len(rest))
    event = Event.of("merged", some, into=[into], nodes=nodes, time=history.now())
    merged = replace(
        model,
        state=replace(model.state, memory=memory, classes=tuple(rest)),
        calibration=model.calibration.united(places, len(rest)),
        history=(*history.sealed(model.history), event),
    )
    return learner._become(merged)


def relabel(learner: Learner, data: "Graphs") -> Learner:
    """Correct labels, or split classes: as if nodes had been learned so. Refused where that is not exact.

    Parameters
    ----------
    learner : Learner
        A fitted learner of a method that keeps sums; changed in place.
    data : Data, GraphData, or a list of them
        The graphs, from the first one concerned to the last one learned, with features, edges, labels and
        `train_mask` as they were learned. `new_y` has the right labels, of known classes or new ones.

    Returns
    -------
    Learner
        The same learner.
    """
    model = model_of(learner)
    pairs = list(map(correction_of, _several(data)))
    old = _distinct(task.labels[task.labels != new.labels] for task, new in pairs)
    into = _distinct(new.labels[task.labels != new.labels] for task, new in pairs)
    for label in set(into).difference(model.labels):
        _new(model, label)
    return learner._become(_retaught(model, pairs, "relabelled", old, into))


# ---------------------------------------------------------------------- forgetting


def forget_class(learner: Learner, label: Any, data: "Graphs") -> Learner:
    """Forget a class: as if no node of it had been learned. Its nodes stay in the graphs, as neighbours of others.

    Parameters
    ----------
    learner : Learner
        A fitted learner of a method that keeps sums; changed in place.
    label : int or str, or a list of them
        The class, or several.
    data : Data, GraphData, or a list of them
        The graphs, from the first one that the class was in to the last one learned, as they were learned.

    Returns
    -------
    Learner
        The same learner.

    Raises
    ------
    ConfigError
        If the method cannot forget exactly.
    DataError
        If a graph is missing or is not as it was learned.
    """
    model = model_of(learner)
    gone = [model.labels[_known(model, one)] for one in (label if isinstance(label, list) else [label])]
    pairs = [(task, _chosen(task, ~np.isin(task.labels, gone))) for task in map(task_of, _several(data))]
    found = _retaught(model, pairs, "forgot")
    if left := [one for one in gone if one in found.labels]:
        raise DataError(f"Class {left[0]} was also learned from other graphs: give all that it was in.")
    return learner._become(found)


def forget_rows(learner: Learner, data: "Graphs") -> Learner:
    """Forget what was learned from nodes: as if they had had no label. They stay in the graphs as neighbours.

    Parameters
    ----------
    learner : Learner
        A fitted learner of a method that keeps sums; changed in place.
    data : Data, GraphData, or a list of them
        As for `relabel`; `forget_mask` marks the nodes.

    Returns
    -------
    Learner
        The same learner.
    """
    return _departed(learner, data, from_graph=False)


def forget_nodes(learner: Learner, data: "Graphs") -> Learner:
    """Forget nodes: as if they had never been in any graph, nor their edges.

    Sums, ridge, calibration and history are those of a model that never saw them.

    Parameters
    ----------
    learner : Learner
        A fitted learner of a method that keeps sums; changed in place.
    data : Data, GraphData, or a list of them
        As for `relabel`; `forget_mask` marks the nodes, in every graph that they were in.

    Returns
    -------
    Learner
        The same learner.
    """
    return _departed(learner, data, from_graph=True)


def _several(data: Any) -> list[Any]:
    """One graph, or several in a list."""
    if isinstance(data, list | tuple) and not data:
        raise DataError("The list of graphs is empty: give all from the first one concerned to the last one learned.")
    return list(data) if isinstance(data, list | tuple) else [data]


def _departed(learner: Learner, data: Any, *, from_graph: bool) -> Learner:
    """The learner after nodes have left their tasks, and perhaps the graphs, too."""
    model, departures = model_of(learner), list(map(departure_of, _several(data)))
    if not any(len(leaving) for _, leaving in departures):
        raise DataError("Say which nodes are to be forgotten: set data.forget_mask, True for each of them.")
    pairs = []
    for task, leaving in departures:
        rest = _chosen(task, ~np.isin(task.nodes, leaving))
        if from_graph and len(rest.nodes):
            stay = np.setdiff1d(np.arange(task.graph.num_nodes), leaving)
            graph = task.graph.induced(stay, model.runtime.budget)
            rest = Task(graph, np.searchsorted(stay, rest.nodes), rest.labels)
        pairs.append((task, rest))
    found = _retaught(model, pairs, "forgot")
    if (others := len({lesson.fingerprint for lesson in model.lessons}) - len(departures)) > 0:
        warnings.warn(
            f"The model learned {others} more graph(s), which are not given: what it learned from these nodes there "
            "stays. Give every graph that they were in.",
            Qualified,
            stacklevel=3,
        )
    return learner._become(found)


def _chosen(task: Task, some: NDArray[np.bool_]) -> Task:
    return Task(task.graph, task.nodes[some], task.labels[some])


def _distinct(labels: Iterable[NDArray[Any]]) -> list[Any]:
    return list(dict.fromkeys(label for some in labels for label in np.unique(some).tolist()))


def _retaught(
    model: Model, pairs: Sequence[tuple[Task, Task]], what: str, classes: Iterable[Any] = (), into: Iterable[Any] = ()
) -> Model:
    """The model that learned the second task of each pair instead of the first: the last ones are learned again.

    Exact: sums, ridge, calibration and history are those of a model that learned so in the first place.
    """
    method = model.method
    if not isinstance(method, Forgets):
        raise _inexact(model, "forget or correct labels")
    if all(task.graph is new.graph and np.array_equal(task.labels, new.labels) for task, new in pairs):
        raise DataError("This changes nothing that the model learned: no training node of these graphs is concerned.")
    for label in _distinct(task.labels for task, _ in pairs):
        _known(model, label)
    tasks, changed = (
        [replace(task, graph=model.checked(task.graph)) for task in some] for some in zip(*pairs, strict=True)
    )
    order, first = _last_lessons(model, tasks)
    taught = [numbered(tasks[place], model.labels) for place in order]
    found = _remaining(model, method, method.without_tasks(model.state.memory, taught, first, model.compute), first)
    for place, lesson in zip(order, model.lessons[first:], strict=True):
        if len(changed[place].nodes):
            learning = begin_learning(model.config, found, changed[place], model.runtime, time=lesson.time)
            found = learning.finish(finished(learning.epochs()))
    if found is None:
        raise DataError("Nothing would be left: a model needs at least one class.")
    nodes = sum(len(tasks[place].nodes) - len(changed[place].nodes) for place in order)
    event = Event.of(what, classes, into=into, nodes=nodes, time=history.now())
    since = history.parted(model.history, first)[1]
    forgot = [one for one in since if one.what == "forgot"]  # other events name classes, which may be gone
    return replace(found, history=(*found.history, *forgot, event))


def _last_lessons(model: Model, tasks: Sequence[Task]) -> tuple[list[int], int]:
    """The order in which tasks were learned, and the number of the first; they must be the last ones, all of them."""
    prints = [history.fingerprint(task) for task in tasks]
    known = [str(lesson.fingerprint) for lesson in model.lessons]
    for number, one in enumerate(prints, 1):
        if one not in known:
            raise DataError(
                f"Graph {number} of those given is none that the model learned: features, edges, labels and train_mask "
                "must be as they were learned, without what was forgotten since."
            )
        if prints.count(one) > 1:
            raise DataError(
                f"Graph {number} of these is given twice: give every graph once, however often it was learned."
            )
    first = min(known.index(one) for one in prints)
    missing = [lesson for lesson in model.lessons[first:] if lesson.fingerprint not in prints]
    if missing:
        named = [f"{one.nodes} training nodes" + f" on {one.time}"[:14] * bool(one.time) for one in missing]
        raise DataError(
            f"The model learned {len(missing)} graph(s) more after the first of these, and its ridge and calibration "
            "rest on all of them: give all graphs from the first one that the nodes were in; missing: "
            f"{', '.join(named[:3])}."
        )
    if any(lesson.sealed for lesson in model.lessons[first:]):
        raise DataError(
            "Models or classes were merged since these graphs were learned: change the model from before, and merge "
            "again."
        )
    return [prints.index(one) for one in known[first:]], first


def _remaining(model: Model, method: Forgets, memory: Any, first: int) -> Model | None:
    """The model before its last lessons; None where nothing was learned before them."""
    if first == 0:
        return None
    kept = model.method.statistics(memory)
    assert kept is not None, "it is a sum over nodes"
    left = torch.nonzero(kept.count).flatten().tolist()
    return replace(
        model,
        state=replace(model.state, memory=memory.of_classes(left), classes=tuple(model.labels[c] for c in left)),
        calibration=model.calibration.where(model.calibration.task < first).of_classes(left),
        directed=model.lessons[first - 1].directed,
        history=history.parted(model.history, first)[0],
    )


# ---------------------------------------------------------------------- models added


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

    Raises
    ------
    DataError
        If methods or settings differ, or both learned the same graph.
    """
    mine, theirs = model_of(one), model_of(other)
    if type(theirs.method) is not type(mine.method):
        raise DataError(f"A model of '{mine.name}' cannot be merged with one of '{theirs.name}'.")
    method, settings = mine.method, _addressed(theirs)
    for name, value in _addressed(mine).items():
        if value != settings[name]:
            raise DataError(
                f"These models cannot be merged: {name} is {value} in one and {settings[name]} in the other."
            )
    assert isinstance(method, Analytic), "it was asked for what must agree"
    if type(mine.labels[0]) is not type(theirs.labels[0]):
        raise DataError("These models cannot be merged: one has numbers as labels, the other strings.")
    both = {lesson.fingerprint for lesson in mine.lessons} & {lesson.fingerprint for lesson in theirs.lessons}
    if both:
        raise DataError(f"These models cannot be merged: both learned {len(both)} graph(s), which would count twice.")
    labels = list(dict.fromkeys([*mine.labels, *theirs.labels]))
    places = torch.tensor([labels.index(label) for label in theirs.labels], device=mine.device)
    there = theirs.state.memory
    here = rebuilt(there, (tensor.to(mine.device) for tensor in leaves(there)))
    memory = method.merged(mine.state.memory, here, places, len(labels))
    shown_there = theirs.calibration.united(places, len(labels))
    shown_there = replace(shown_there, task=shown_there.task + len(mine.lessons))
    event = Event.of("merged models", theirs.labels, time=history.now())
    whole = replace(
        mine,
        state=replace(mine.state, memory=memory, classes=tuple(labels)),
        calibration=mine.calibration.plus(shown_there),
        directed=mine.directed or theirs.directed,
        history=(*history.sealed((*mine.history, *theirs.history)), event),
    )
    return type(one)._of(whole)


def _addressed(model: Model) -> dict[str, Any]:
    """What must agree for two models' sums to be sums of the same rows."""
    if not isinstance(model.method, Analytic):
        raise ConfigError(f"Models of the method '{model.name}' cannot be added: use analytic, whose sums can.")
    memory = model.state.memory
    return {
        "the number of features": model.num_features,
        "the names of features": model.columns,
        **{f"{model.name}.{name}": value for name, value in model.method.addressed(memory).items()},
        "the seed of the feature map": model.config.seed,
        "the random projection": model.method.identity(memory),
    }


# ---------------------------------------------------------------------- labels


def _label(given: Any) -> Any:
    label = single(given, "A class")
    if isinstance(label, bool):  # equal to 1 and 0
        raise DataError(f"{label} is no class: name one by its number or its string.")
    return label


def _known(model: Model, given: Any) -> int:
    """The place of a class that was learned."""
    label = _label(given)
    if label not in model.labels:
        known = ", ".join(map(str, model.labels))
        raise DataError(f"Class {shortened(str(label))} was never learned; known are {known}.")
    return model.labels.index(label)


def _new(model: Model, given: Any) -> Any:
    """A label that may be added to those of a model."""
    label = _label(given)
    if label in model.labels:
        raise DataError(f"Class {label} is known already: give the class a name of its own, or merge the two.")
    if type(label) is not type(model.labels[0]) or (isinstance(label, int) and not -(2**63) <= label < 2**63):
        kind = "strings" if isinstance(model.labels[0], str) else "whole numbers"
        raise DataError(f"The classes of this model are {kind}, and {shortened(label)} is none: name it as the others.")
    return label


def _inexact(model: Model, what: str) -> ConfigError:
    """Why a method cannot do something to its classes."""
    return ConfigError(
        f"The method '{model.name}' cannot {what} exactly: what it keeps is no sum over nodes that can be taken apart; "
        "learn again, or use a method that keeps sums (analytic, ncm, slda)."
    )
