"""The fixed map from a graph to the rows that the closed form adds up. Nothing here is learned or chosen.

Half of the columns are linear (propagated features, projected where they are wide), half are random ReLU features of
them. The same settings and seed give the same map, which is what makes sums of two models addable.
"""

import hashlib
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from ipal.backend.propagated import Columns, propagated
from ipal.backend.runtime import Runtime
from ipal.data.graph import Graph

ROWS_AT_ONCE = 4096
"""Expanded ones are wide."""


def random_features(projected: Tensor, factor: float) -> Tensor:
    r"""Random ReLU features, in place.

    .. math:: \phi(x) = \sqrt{2 / D} \; \mathrm{ReLU}(x R), \quad R_{ij} \sim N(0, 1)

    Source: Cho & Saul 2009, "Kernel Methods for Deep Learning", Eq. 1 with degree one: squared lengths stay the same in
    the mean, as the factor sqrt(2 / D) is for rows x of their own length; for closed forms McDonnell et al. 2023,
    "RanPAC", Sec. 4.
    """
    return torch.relu_(projected.mul_(factor))


@dataclass(frozen=True)
class Part:
    """The columns of one restart and one type of edges."""

    columns: Columns
    """What is propagated: narrow features, or the linear columns and those before the ReLU side by side."""
    rectified: int
    """Number of random ReLU features."""

    @property
    def random(self) -> Columns:
        """What is drawn at random: the projection, or directions of narrow features, which are not propagated."""
        columns = self.columns
        return columns if columns.is_projected else replace(columns, number=self.rectified, seed=(*columns.seed, 1))

    @cached_property
    def directions(self) -> Tensor:
        """(features, rectified)"""
        # Copied to where torch begins its own memory: the bits of later products may depend on it.
        return torch.tensor(self.random.drawn(self.columns.num_features))

    def expanded(self, x: Tensor) -> Tensor:
        """Rows of this part from propagated columns."""
        linear = self.columns.linear
        if self.columns.is_projected:  # and divided by a length that grows with the number of columns
            projected, squared_length = x[:, linear:].clone(), linear
        else:
            projected, squared_length = x @ self.directions.to(device=x.device, dtype=x.dtype), 1
        factor = (2 * squared_length / max(1, self.rectified)) ** 0.5
        return torch.cat([x[:, :linear], random_features(projected, factor)], dim=1)


@dataclass(frozen=True)
class FeatureMap:
    """From a graph to rows of a fixed width; a function of its fields alone."""

    num_features: int
    width: int
    steps: int
    restarts: tuple[float, ...]
    seed: int
    runtime: Runtime

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """One for every restart; they share the width equally."""
        ends = [self.width * number // len(self.restarts) for number in range(len(self.restarts) + 1)]
        features, found = self.num_features, []
        for number, restart in enumerate(self.restarts):
            width = ends[number + 1] - ends[number]
            linear = min(features, width // 2)
            is_wide = linear < features
            seed = (self.seed, number)
            columns = Columns(features, width if is_wide else linear, is_wide, linear, self.steps, restart, seed)
            found.append(Part(columns, width - linear))
        return tuple(found)

    @property
    def columns(self) -> tuple[Columns, ...]:
        """What is propagated."""
        return tuple(part.columns for part in self.parts)

    def propagated(self, graph: Graph) -> Tensor:
        """(nodes, columns); made once for a graph, and kept as long as it and the map live."""
        kept: Any = graph.derived("feature maps", None, weakref.WeakKeyDictionary)
        found: Tensor | None = kept.get(self)
        if found is None:
            found = kept[self] = propagated(graph, self.columns, self.runtime)
        return found

    def expanded(self, x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """The rows themselves, from propagated ones: in double precision to be added up, in single to be scored."""
        x = x.to(device=self.runtime.device, dtype=dtype)
        split = torch.split(x, [part.columns.number for part in self.parts], dim=1)
        rows = [part.expanded(own) for part, own in zip(self.parts, split, strict=True)]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1).mul_(len(rows) ** -0.5)

    def tensors(self) -> dict[str, Tensor]:
        """Nothing is saved of it: it follows from settings and seed."""
        return {}

    def of_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        return self

    @cached_property
    def fingerprint(self) -> str:
        """Tells two maps apart, also where a library drew other random numbers from the same seed.

        First rows are drawn for it, not all: who only reads a model makes no room for what it declares.
        """
        digest = hashlib.sha256(f"{self.width} {self.steps} {self.restarts}".encode())
        for part in self.parts:
            digest.update(part.random.drawn(min(8, self.num_features)).tobytes())
        return digest.hexdigest()[:16]
