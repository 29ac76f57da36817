"""What a learner is handed, and what only the evaluator sees: two types.

No validation or test label can reach a learner, because a task has no place to carry it.
"""

from dataclasses import dataclass

from ipal.data.graph import Derives, Graph, Nodes
from ipal.data.labels import Label, Labels


@dataclass(frozen=True, eq=False)
class Task(Derives):
    """A graph, the nodes whose labels count, and those labels alone."""

    graph: Graph
    """What is seen while the task is learned."""
    nodes: Nodes
    """Training nodes, as numbered in `graph`."""
    labels: Labels
    """One label per training node, in the user's own terms."""
    origin: Nodes | None = None
    """Number of each node of `graph` in the dataset's graph; None where there is no dataset."""


@dataclass(frozen=True, eq=False)
class LabelledNodes:
    """Nodes to be predicted, and the truth."""

    nodes: Nodes
    """As numbered in the graph."""
    labels: Labels
    """One label per node."""


@dataclass(frozen=True, eq=False)
class TestSplit:
    """The test of one task: the evaluator's alone."""

    __test__ = False

    graph: Graph
    """What predictions are made on."""
    validation: LabelledNodes
    """Nodes that settings are chosen by."""
    test: LabelledNodes
    """Nodes that results are of."""
    classes: tuple[Label, ...] | None = None
    """The classes to choose from; None for all that the learner knows."""
