"""What the sums of a closed form may take, and what can be chosen within that."""

import warnings
from dataclasses import dataclass
from typing import Literal

from ipal.errors import ConfigError
from ipal.learners.analytic.class_sums import SUMS, PerClassSums, PooledSums, Sums
from ipal.learners.analytic.feature_map import places
from ipal.learners.analytic.selection import HOPS

GIB = 2**30
EXPANSIONS = (0, 256, 512, 1024, 2048, 4096)
"""Of these, those that are not wider than the first task has rows."""
WIDEST_SKETCH = 1024


class Pooled(UserWarning):
    """Sums of single classes no longer fit into the memory they may take."""


@dataclass(frozen=True)
class Room:
    """The settings of a closed form that limit its width; see `Analytic`."""

    hops: Literal["auto"] | tuple[int, ...]
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
        return WIDEST_SKETCH if rows >= WIDEST_SKETCH else WIDEST_SKETCH // 2

    def _width(self, columns: int, hops: tuple[int, ...], expansion: int) -> int:
        return expansion or columns * len(places(hops, self.edge_types))

    def options(self, num_features: int, classes: int, rows: int = 0) -> dict[tuple[int, ...], list[int]]:
        """Expansions to choose from, by hops: those whose sums leave room for all classes, or else the narrowest."""
        tried = HOPS if self.hops == "auto" else (self.hops,)
        within = tuple(size for size in EXPANSIONS if size <= rows) or EXPANSIONS[:1]
        sizes = within if self.expansion == "auto" else (self.expansion,)
        columns = min(num_features, self.columns(rows))
        widths = {(hops, size): self._width(columns, hops, size) for hops in tried for size in sizes}
        room = max(self.expected_classes, classes)
        fits = {option for option, width in widths.items() if self.fits(self.last, width, room)}
        fits = fits or {option for option, width in widths.items() if width == min(widths.values())}
        by_hops = {hops: [size for size in sizes if (hops, size) in fits] for hops in tried}
        return {hops: some for hops, some in by_hops.items() if some}

    def check(self, classes: int, num_features: int, width: int | None) -> None:
        """Refuse classes for which there is no memory, before they are learned; the width may not be known yet."""
        if width is None:
            columns, options = min(num_features, self.columns(0)), self.options(num_features, classes)
            width = min(self._width(columns, hops, size) for hops, sizes in options.items() for size in sizes)
        if not self.fits(self.last, width, classes):
            raise ConfigError(
                f"The sums of {classes} classes at width {width} take {self.last.bytes_for(width, classes) / GIB:.2g} "
                f"GiB, more than analytic.memory={self.memory:g}: raise it, or set a smaller "
                "analytic.expansion or analytic.sketch."
            )
