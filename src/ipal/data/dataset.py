"""One labelled graph with what its record must say."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ipal.data.graph import Graph, content_hash


@dataclass(frozen=True, eq=False)
class Dataset:
    """A labelled graph, checked, and what its record must say."""

    name: str
    graph: Graph
    y: NDArray[np.int64]
    split: tuple[int, ...] | None
    """Classes per task where the benchmark says so; None leaves it to `ipal.TaskStream`, or to --split."""
    preprocessing: str
    remark: str
    """What a result on this graph must say about itself; empty where nothing."""
    beyond_task: bool
    """Whether the features of a node were made by looking at nodes of other tasks."""
    time: NDArray[np.int64] | None = None
    """When each node came; None where that is not known."""
    known_hash: str = ""
    """As a graph folder says it: computed when the folder was written, and verified at its first use."""

    @cached_property
    def hash(self) -> str:
        return self.known_hash or content_hash(self.graph, self.y)

    @property
    def num_classes(self) -> int:
        return len(np.unique(self.y))
