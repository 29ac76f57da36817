"""Domain-incremental: every task has nodes from another part of the graph, all classes or many of them in each."""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ipal.data.labels import Label
from ipal.data.streams.base import Stream
from ipal.data.streams.class_incremental import TaskStream
from ipal.data.streams.splits import cut_evenly
from ipal.errors import DataError

PARTS = 3
"""Domains by degree, where nobody says how many."""


class DomainIncremental(TaskStream):
    """Domains as the dataset numbers them, in ascending order; without such numbers, every class is cut by the number
    of neighbours of its nodes, least first."""

    name = "domain"
    gives = Stream.gives

    class Settings(TaskStream.Settings):
        parts: Annotated[int, Field(ge=2, le=1000)] | None = None
        """Number of domains. None: those of the dataset, or without any, three by number of neighbours."""

    settings: Settings

    def tasks_of_nodes(self, order: list[Label], split: tuple[int, ...] | None, seed: int) -> NDArray[np.int64]:
        asked, domain = self.settings.parts, self.facts.domain
        if domain is None:
            return cut_evenly(self.y, np.diff(self.graph.indptr), asked or PARTS)
        numbers, which = np.unique(domain, return_inverse=True)
        if len(numbers) < 2 or asked not in (None, len(numbers)):
            raise DataError(
                f"The dataset's array 'domain' names {len(numbers)} domain(s), not {asked or 'two or more'}: leave "
                "protocol.stream.parts out, or the array."
            )
        return np.asarray(which, dtype=np.int64)
