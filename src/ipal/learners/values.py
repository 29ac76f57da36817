"""What learners give to others: small values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ipal.data.streams import Labels

Terms = dict[str, Tensor]
"""Parts of a loss by name."""
Distances = Callable[[Tensor | None], Tensor]
"""Squared distances to the mean of every class and, last, to the middle of all: (nodes, classes + 1). As if only some
classes were known, where these are given."""


@dataclass(frozen=True, eq=False)
class Remembered:
    """What is kept of the rows of one class, in the space of `represent`: what an audit tries to undo."""

    count: int | None
    """Training nodes behind it, where known."""
    mean: Tensor
    second: Callable[[], Tensor] | None = None
    """Gives the sum of products of the class's rows, (width, width); None where it is not kept. Made when asked for:
    those of all classes at once may not fit into memory."""
    shared: Callable[[], Tensor] | None = None
    """Gives such a matrix of all classes together, each with a weight of its own; None where it is not kept."""


class HardExamples(NamedTuple):
    """Which nodes of a class count as hard: those of largest `losses.hardness`, from their scores."""

    number: int
    """Of every class."""
    measure: str


class Extents(NamedTuple):
    """What the memory of a method without training depends on."""

    features: int
    classes: int
    task_nodes: int
    """Of the largest task."""
    tested_nodes: int
    """Of the largest graph that is predicted on."""
    operators: int
    """Bytes of that graph's propagation matrix."""
    piece: int
    """Bytes of the part of it that is held where memory is short."""


class Look(NamedTuple):
    """What a learner makes of the nodes of a graph, or of those that were asked for."""

    labels: Labels
    """The likeliest class of every node."""
    embeddings: Tensor | None
    """Where every node lies, of learners that move them; None of those whose features stay where they are."""
    scores: Tensor
    """Nodes x known classes, higher is likelier."""
