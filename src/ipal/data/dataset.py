"""One labelled graph with what its record must say."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ipal.data.graph import Graph, content_hash
from ipal.data.labels import Labels, labelled
from ipal.data.node_facts import NodeFacts


@dataclass(frozen=True, eq=False)
class Dataset(NodeFacts):
    """A labelled graph, checked, and what its record must say."""

    name: str
    graph: Graph
    y: Labels
    """Whole numbers or strings; see labels.py for nodes without one."""
    split: tuple[int, ...] | None
    """Classes per task where the benchmark says so; None leaves it to `ipal.TaskStream`, or to --split."""
    preprocessing: str
    remark: str
    """What a result on this graph must say about itself; empty where nothing."""
    beyond_task: bool
    """Whether the features of a node were made by looking at nodes of other tasks."""
    known_hash: str = ""
    """Of a graph folder: computed when it was written, verified at its first use. Of several graphs: made of theirs."""

    ids: Labels | None = None
    """What nodes are called, where that is not their number; no part of the hash."""

    @cached_property
    def hash(self) -> str:
        return self.known_hash or content_hash(self.graph, self.y, self)

    @property
    def columns(self) -> tuple[str, ...]:
        """What each feature is, where that is known."""
        return self.graph.columns

    @property
    def num_classes(self) -> int:
        return len(np.unique(self.y[labelled(self.y)]))
