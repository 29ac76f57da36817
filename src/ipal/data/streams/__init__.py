"""Streams: from one labelled graph to a sequence of tasks and their test splits. One file each; `STREAMS` knows all."""

from ipal.data.labels import Labels
from ipal.data.streams.base import Stream
from ipal.data.streams.blurry import Blurry
from ipal.data.streams.class_incremental import TaskStream
from ipal.data.streams.domain_incremental import DomainIncremental
from ipal.data.streams.graph_sequence import GraphSequence
from ipal.data.streams.online import Online
from ipal.data.streams.returning import Returning
from ipal.data.streams.splits import (
    CONTEXT,
    TEST,
    TRAIN,
    VALIDATION,
    assign_parts,
    cut_classes,
    default_split,
    order_classes,
)
from ipal.data.streams.task_incremental import TaskIncremental
from ipal.data.streams.time_incremental import TimeIncremental
from ipal.data.task import LabelledNodes, Task, TestSplit
from ipal.system.plugins import Registry

__all__ = [
    "CONTEXT",
    "STREAMS",
    "TEST",
    "TRAIN",
    "VALIDATION",
    "LabelledNodes",
    "Labels",
    "Stream",
    "Task",
    "TaskStream",
    "TestSplit",
    "assign_parts",
    "cut_classes",
    "default_split",
    "order_classes",
]


STREAMS: Registry[type[Stream]] = Registry(
    "stream",
    (TaskStream, TaskIncremental, TimeIncremental, DomainIncremental, GraphSequence, Returning, Online, Blurry),
    lambda thing: isinstance(thing, type) and issubclass(thing, Stream),
    lambda kind: kind.Settings(),
)
"""All streams by name. A new one is a file and its class in this tuple."""
