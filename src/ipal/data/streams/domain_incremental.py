"""Domain-incremental: every task has nodes of all classes, from another part of the graph."""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ipal.data.streams.class_incremental import TaskStream
from ipal.data.streams.splits import cut_evenly


class DomainIncremental(TaskStream):
    """The same classes in every task; the nodes of each class are cut by their number of neighbours, least first."""

    name = "domain"

    class Settings(TaskStream.Settings):
        parts: int = Field(3, ge=2, le=1000)
        """Number of domains."""

    settings: Settings

    def tasks_of_nodes(self, order: list[int], split: tuple[int, ...] | None, seed: int) -> NDArray[np.int64]:
        degree = np.diff(self.graph.indptr)
        return cut_evenly(self.y, degree, self.settings.parts)
