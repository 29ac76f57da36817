"""Time-incremental: nodes in the order of their time; classes come, stay and return."""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ipal.data.streams.class_incremental import TaskStream
from ipal.errors import DataError


class TimeIncremental(TaskStream):
    """Periods of about as many nodes each; nodes of one time are in one period."""

    name = "time"
    needs_time = True

    class Settings(TaskStream.Settings):
        periods: int = Field(5, ge=2, le=1000)
        """Number of periods."""

    settings: Settings

    def tasks_of_nodes(self, order: list[int], split: tuple[int, ...] | None, seed: int) -> NDArray[np.int64]:
        assert self.time is not None, "checked where it is made"
        times, which, count = np.unique(self.time, return_inverse=True, return_counts=True)
        middle = np.cumsum(count) - count / 2  # of the nodes of each time, in the order of all
        period = np.asarray(self.settings.periods * middle / len(self.time), dtype=np.int64)
        if len(np.unique(period)) < self.settings.periods:
            raise DataError(
                f"The times of the nodes ({len(times)} different ones) do not make {self.settings.periods} periods: "
                "set a smaller protocol.stream.periods."
            )
        return period[which]
