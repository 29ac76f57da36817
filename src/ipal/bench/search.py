"""The search of a row's settings: its points, and what follows once the best of them is known.

With seeds of their own to choose by (`tuning_seeds`), a grid grows where the best value lies at its edge, and the
chosen point is then run with the seeds that are reported.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ipal.bench.experiment_file import ExperimentEntry, Setting, Settings
from ipal.errors import ConfigError
from ipal.runs.manifest import GridPoint

MOST_EXTENSIONS = 4
"""How often a grid grows."""

Make = Callable[[Settings, Sequence[int]], GridPoint]
"""Plans the runs of some settings for some seeds."""


@dataclass(eq=False)
class Search:
    """The points of one row."""

    entry: ExperimentEntry
    names: tuple[str, ...]
    """Settings that are searched; none where all are given."""
    make: Make
    seeds: tuple[int, ...]
    """Of the runs by which a point is chosen."""
    reported_seeds: tuple[int, ...]
    """Of the runs that are reported."""
    asked: list[Settings]
    points: list[GridPoint] = field(default_factory=list)
    reported: GridPoint | None = None
    """The chosen point with the seeds that are reported; None before it is chosen, or where they are the same seeds."""
    extensions: int = 0

    def __post_init__(self) -> None:
        self.points = [self.make(point, self.seeds) for point in self.asked]

    @property
    def has_own_seeds(self) -> bool:
        """Whether the runs by which a point is chosen are other ones than those that are reported."""
        return bool(self.names) and self.seeds != self.reported_seeds

    def goes_on(self, chosen: GridPoint | None) -> bool:
        """Whether more runs are planned, now that a point is chosen: beyond the edge of the grid, or to be reported."""
        if chosen is None or not self.has_own_seeds or self.reported is not None:
            return False
        best = self.asked[self.points.index(chosen)]
        further = self._beyond(best) if self.extensions < MOST_EXTENSIONS else []
        self.extensions += 1
        self.asked += [asked for asked, _ in further]
        self.points += [point for _, point in further]
        if not further:
            self.reported = self.make(best, self.reported_seeds)
        return True

    def _beyond(self, best: Settings) -> list[tuple[Settings, GridPoint]]:
        """Points one step further for every setting whose best value is the least or the greatest of those tried."""
        found = []
        for name in self.names:
            value = beyond([asked[name].value for asked in self.asked], best[name].value)
            if value is None:
                continue
            asked = best | {name: Setting(value, best[name].path, best[name].line)}
            try:
                point = self.make(asked, self.seeds)
            except ConfigError:  # no value of this setting
                continue
            if point.settings not in [known.settings for known in self.points]:
                found.append((asked, point))
        return found


def beyond(values: Sequence[Any], best: Any) -> float | int | None:
    r"""The next value of a grid whose best one lies at its edge; None where it lies inside, or is no positive number.

    .. math:: v_n \cdot v_n / v_{n-1} \quad \text{above}, \qquad v_1 \cdot v_1 / v_2 \quad \text{below}

    Whole numbers stay whole while they are above zero.
    """
    if len(set(values)) < 2 or not all(type(value) in (int, float) for value in values):
        return None
    known = sorted(set(values))
    if best == known[-1] and known[-2] > 0:
        further = float(f"{best * best / known[-2]:.6g}")
    elif best == known[0] and best > 0:
        further = float(f"{best * best / known[1]:.6g}")
    else:
        return None
    if all(type(value) is int for value in values) and round(further) > 0:
        return round(further) if round(further) != best else None
    return further if math.isfinite(further) and further > 0 else None
