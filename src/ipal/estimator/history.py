"""What a model has learned and what was changed in it: names of classes, numbers of nodes, and when.

Of each graph that was learned a fingerprint is kept: enough to recognise it, nothing of what it holds. A run records
without a time, so that equal runs give equal files; what a user asks for is recorded with it.
"""

import os
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ipal.data.dataset import content_hash
from ipal.data.task import Task
from ipal.errors import shortened

LETTERS = 80
"""Of a name."""
Names = list[Annotated[str, Field(max_length=LETTERS)]]


class Event(BaseModel):
    """One entry of a history."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    what: str = Field(max_length=LETTERS)
    classes: Names
    """Those concerned."""
    into: Names
    """What they became."""
    nodes: int = Field(0, ge=0, lt=2**63)
    """Training nodes."""
    time: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")] | None = None
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    """Of the graph that was learned."""
    directed: bool = False
    """Whether an edge could run one way, in the graph that was learned or an earlier one."""
    sealed: bool = False
    """Whether models or classes were merged since: then what was learned cannot be taken away again."""

    @model_validator(mode="after")
    def _check_learned(self) -> Self:
        if (self.what == "learned") != (self.fingerprint is not None):
            raise ValueError("a graph that was learned has a fingerprint, nothing else has")
        return self

    @classmethod
    def of(cls, what: str, classes: Iterable[Any] = (), *, into: Iterable[Any] = (), **more: Any) -> Self:
        names, others = ([shortened(str(label), LETTERS) for label in labels] for labels in (classes, into))
        return cls(what=what, classes=names, into=others, **more)


def fingerprint(task: Task) -> str:
    """A hash of a graph and of its training nodes. Names of classes are no part of it: they may change."""

    def made() -> str:
        marks = np.full(task.graph.num_nodes, -1)
        _, first, place = np.unique(task.labels, return_index=True, return_inverse=True)
        marks[task.nodes] = task.nodes[first][place]  # the first node with the same label stands for it
        return content_hash(task.graph, marks)[:32]

    return task.derived("fingerprint", None, made)


def parted(history: Sequence[Event], first: int) -> tuple[tuple[Event, ...], tuple[Event, ...]]:
    """What was before the graph of this number was learned, and what was since."""
    place = [number for number, event in enumerate(history) if event.fingerprint][first]
    return tuple(history[:place]), tuple(history[place:])


def sealed(history: Iterable[Event]) -> tuple[Event, ...]:
    """A history whose graphs cannot be taken away any more."""
    return tuple(event.model_copy(update={"sealed": True}) if event.fingerprint else event for event in history)


def now() -> str:
    """UTC; SOURCE_DATE_EPOCH is respected (reproducible-builds.org)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(float(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
