"""What a model has learned and what was changed in it: names of classes, numbers of nodes and edges, and when.

A run records without a time, so that equal runs give equal files; what a user asks for is recorded with it.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ipal.data.class_edges import edges_within_classes
from ipal.data.task import Task
from ipal.errors import ConfigError, shortened

MOST = 100
"""Events of a history; older ones are drawn together into one."""
NAMED = 20
"""Classes of an event that are named."""
LETTERS = 80
"""Of a name."""

History = list[dict[str, Any]]


def event(
    what: str,
    classes: Iterable[Any] = (),
    *,
    into: Iterable[Any] = (),
    nodes: int = 0,
    edges: tuple[int, int] = (0, 0),
    time: str | None = None,
) -> dict[str, Any]:
    """One entry: classes that were concerned, and what they became; training nodes, the edges among them (those within
    a class, and all)."""
    names, others = ([shortened(str(label), LETTERS) for label in labels] for labels in (classes, into))
    return {
        "what": what,
        "classes": names[:NAMED],
        "number": len(names),
        "into": others[:NAMED],
        "nodes": nodes,
        "edges": list(edges),
        "time": time,
        "events": 1,
    }


def learned(task: Task) -> dict[str, Any]:
    """A task that was learned; the same for all learners that are handed it."""
    return task.derived("history", "learned", lambda: _learned(task))


def _learned(task: Task) -> dict[str, Any]:
    names, numbers = np.unique(task.labels, return_inverse=True)
    classes = np.full(task.graph.num_nodes, -1)
    classes[task.nodes] = numbers
    edges = edges_within_classes(task.graph.neighbours, classes)
    return event("learned", names.tolist(), nodes=len(task.nodes), edges=edges)


def extended(history: Sequence[Mapping[str, Any]], *more: Mapping[str, Any]) -> History:
    """With further events; the oldest of too many become one."""
    every = [dict(one) for one in (*history, *more)]
    old, new = every[: len(every) - MOST + 1], every[len(every) - MOST + 1 :]
    return every if len(every) <= MOST else [_together(old), *new]


def parted(history: Sequence[Mapping[str, Any]], learned: int) -> tuple[History, History]:
    """What was before the last events in which something was learned, so many of them, and what was since.

    What was drawn together is not taken apart.
    """
    every = [dict(one) for one in history]
    for place in reversed(range(len(every))):
        learned -= {"learned": 1, "earlier": learned}.get(every[place]["what"], 0)
        if not learned:
            return every[:place], every[place:]
    return [], every


def stamped(history: Sequence[Mapping[str, Any]], time: str) -> History:
    """With a time at the last event."""
    return [*map(dict, history[:-1]), {**history[-1], "time": time}]


def now() -> str:
    """UTC; SOURCE_DATE_EPOCH is respected (reproducible-builds.org)."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        moment = datetime.now(UTC) if fixed is None else datetime.fromtimestamp(int(fixed), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(f"SOURCE_DATE_EPOCH is '{fixed}': give a number of seconds, or unset it.") from error
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def edges_learned(history: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """Edges between training nodes of one class, and between all: those of every task, added up."""
    every = [one["edges"] for one in history]
    return sum(same for same, _ in every), sum(total for _, total in every)


def _together(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Many events as one: learned nodes and edges are added up."""
    nodes = sum(one["nodes"] for one in events if one["what"] in ("learned", "earlier"))
    times = [one["time"] for one in events if one["time"]]
    one = event("earlier", nodes=nodes, edges=edges_learned(events), time=max(times, default=None))
    return {**one, "events": sum(one["events"] for one in events)}
