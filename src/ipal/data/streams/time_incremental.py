"""Time-incremental: nodes in the order of their time; classes come, stay and return."""

from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ipal.config import RunConfig
from ipal.data.dataset import Dataset
from ipal.data.labels import Label
from ipal.data.streams.base import Stream
from ipal.data.streams.class_incremental import TaskStream
from ipal.errors import DataError


class TimeIncremental(TaskStream):
    """Periods of about as many nodes each; nodes of one time are in one period."""

    name = "time"
    gives = Stream.gives

    class Settings(TaskStream.Settings):
        periods: int = Field(5, ge=2, le=1000)
        """Number of periods."""

    settings: Settings

    @classmethod
    def of(cls, dataset: Dataset, config: RunConfig) -> Self:
        if dataset.time is None:
            raise DataError(
                f"The stream '{cls.name}' needs the time of every node, which '{dataset.name}' does not have: add an "
                "array 'time' of whole numbers to its .npz file."
            )
        return super().of(dataset, config)

    def tasks_of_nodes(self, order: list[Label], split: tuple[int, ...] | None, seed: int) -> NDArray[np.int64]:
        time = self.facts.time
        assert time is not None, "checked where it is made"
        times, which, count = np.unique(time, return_inverse=True, return_counts=True)
        middle = np.cumsum(count) - count / 2  # of the nodes of each time, in the order of all
        period = np.asarray(self.settings.periods * middle / len(time), dtype=np.int64)
        if len(np.unique(period)) < self.settings.periods:
            raise DataError(
                f"The times of the nodes ({len(times)} different ones) do not make {self.settings.periods} periods: "
                "set a smaller protocol.stream.periods."
            )
        return period[which]

    def is_tested_before(self, index: int) -> bool:
        """Every next period, whatever is new in it: nodes of classes not known yet count as wrong."""
        return index > 0
