"""Streams: from one labelled graph to a sequence of tasks and their test splits; `STREAMS` knows all."""

from ipal.data.streams.online import Online
from ipal.data.streams.splits import CONTEXT, TEST, TRAIN, VALIDATION, default_split
from ipal.data.streams.tasks import (
    DomainIncremental,
    GraphSequence,
    Returning,
    TaskIncremental,
    TaskStream,
    TimeIncremental,
)
from ipal.system.plugins import Registry

__all__ = ["CONTEXT", "STREAMS", "TEST", "TRAIN", "VALIDATION", "TaskStream", "default_split"]

STREAMS: Registry[type[TaskStream]] = Registry(
    "stream",
    (TaskStream, TaskIncremental, TimeIncremental, DomainIncremental, GraphSequence, Returning, Online),
    lambda thing: isinstance(thing, type) and issubclass(thing, TaskStream),
    lambda kind: kind.Settings(),
)
"""All streams by name. A new one is a class in this tuple."""
