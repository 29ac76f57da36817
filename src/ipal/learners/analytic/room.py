"""What the sums of a closed form may take, and what can be chosen within that."""

import warnings
from dataclasses import dataclass
from typing import Literal

from ipal.errors import ConfigError
from ipal.learners.analytic.class_sums import SUMS, PerClassSums, PooledSums, Sums
from ipal.learners.analytic.selection import RESTARTS, SPREADS
from ipal.learners.analytic.spread import Spread, places

GIB = 2**30
EXPANSIONS = (0, 256, 512, 1024, 2048, 4096)
"""Of these, those that are not wider than the first task has rows."""
NARROWEST_SKETCH, WIDEST_SKETCH, STEP = 768, 1024, 256
"""Wide features are projected to as many columns as the first task has rows, rounded up to a step, within limits."""


class Pooled(UserWarning):
    """Sums of single classes no longer fit into the memory they may take."""


@dataclass(frozen=True)
class Room:
    """The settings of a closed form that limit its width; see `Analytic`."""

    hops: Literal["auto"] | tuple[int, ...]
    restart: Literal["auto"] | float
    expansion: Literal["auto"] | int
    sums: Literal["auto", "pooled", "per-class"]
    memory: float
    expected_classes: int
    sketch: Literal["auto"] | int
    edge_types: int = 1

    @property
    def first(self) -> type[Sums]:
        """The kind of sums to begin with."""
        return PooledSums if self.sums == "pooled" else PerClassSums

    @property
    def last(self) -> type[Sums]:
        """The kind of sums where memory is short."""
        return SUMS.get(self.sums, PooledSums)

    def fits(self, kind: type[Sums], width: int, classes: int) -> bool:
        return kind.bytes_for(width, classes) <= self.memory * GIB

    def is_pooled_with(self, sums: Sums, classes: int) -> bool:
        """Whether so many classes are too many for sums by class, and that is left open."""
        by_class = isinstance(sums, PerClassSums)
        return self.sums == "auto" and by_class and not self.fits(PerClassSums, sums.width, classes)

    def within(self, sums: Sums, classes: int) -> Sums:
        """With room for so many classes; pooled, with a warning, where memory does not allow one matrix each."""
        if isinstance(sums, PerClassSums) and self.is_pooled_with(sums, classes):
            needed = PerClassSums.bytes_for(sums.width, classes) / GIB
            warnings.warn(
                f"Sums of {classes} classes of their own at width {sums.width} take {needed:.2g} GiB, more than "
                f"analytic.memory={self.memory:g}: they are pooled, and from now on a class has to come whole; raise "
                "analytic.memory, or set a smaller analytic.expansion or analytic.sketch, to keep them apart.",
                Pooled,
                stacklevel=2,
            )
            sums = sums.pooled()
        return sums.grown(classes)

    def columns(self, rows: int) -> int:
        """Wider features are projected to so many columns, where the first task has so many rows."""
        if self.sketch != "auto":
            return self.sketch
        return min(WIDEST_SKETCH, max(NARROWEST_SKETCH, -(-rows // STEP) * STEP))

    def _width(self, columns: int, spread: Spread, expansion: int) -> int:
        return expansion or columns * len(places(spread, self.edge_types))

    @property
    def spreads(self) -> tuple[Spread, ...]:
        """What there is to choose from; what is set is not chosen."""
        if self.hops != "auto":
            return (Spread(self.hops, 0.0 if self.restart == "auto" else self.restart),)
        if self.restart == "auto":
            return SPREADS
        like = self.restart if self.restart == 0 else RESTARTS[0]
        return tuple(Spread(hops, self.restart) for hops, restart in SPREADS if restart == like)

    def options(self, num_features: int, classes: int, rows: int = 0) -> dict[Spread, list[int]]:
        """Expansions to choose from, by spread: those whose sums leave room for all classes, or else the narrowest."""
        within = tuple(size for size in EXPANSIONS if size <= rows) or EXPANSIONS[:1]
        sizes = within if self.expansion == "auto" else (self.expansion,)
        columns = min(num_features, self.columns(rows))
        widths = {(spread, size): self._width(columns, spread, size) for spread in self.spreads for size in sizes}
        room = max(self.expected_classes, classes)
        fits = {option for option, width in widths.items() if self.fits(self.last, width, room)}
        fits = fits or {option for option, width in widths.items() if width == min(widths.values())}
        by_spread = {spread: [size for size in sizes if (spread, size) in fits] for spread in self.spreads}
        return {spread: some for spread, some in by_spread.items() if some}

    def check(self, classes: int, num_features: int, width: int | None) -> None:
        """Refuse classes for which there is no memory, before they are learned; the width may not be known yet."""
        if width is None:
            columns, options = min(num_features, self.columns(0)), self.options(num_features, classes)
            width = min(self._width(columns, spread, size) for spread, sizes in options.items() for size in sizes)
        if not self.fits(self.last, width, classes):
            raise ConfigError(
                f"The sums of {classes} classes at width {width} take {self.last.bytes_for(width, classes) / GIB:.2g} "
                f"GiB, more than analytic.memory={self.memory:g}: raise it, or set a smaller "
                "analytic.expansion or analytic.sketch."
            )
