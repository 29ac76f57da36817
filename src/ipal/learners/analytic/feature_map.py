"""From a graph to the rows that a closed form adds up: propagated, normalised, expanded by fixed random directions.

Nothing here is learned: the same seed gives the same map, which is what makes sums of two models addable.
"""

import hashlib
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.propagate import SparseProduct, Spreading
from ipal.backend.runtime import Runtime
from ipal.data.graph import Graph
from ipal.learners.analytic.spread import Place, Spread, hop_weights, places
from ipal.system.tracing import Tracer, spanned

ROWS_AT_ONCE = 4096
BLOCK = 32
"""Columns that are spread together: few, so that a large graph's fit into caches."""
NARROWEST = 4
CACHED = 2**17
"""Values that fit into a cache: all columns of a graph with no more are spread together."""
COLUMNS_AT_ONCE = 8 * BLOCK
VALUES_AT_ONCE = 4_000_000
NODES_AT_ONCE = 2**22
"""Rows that are squared together: the squares of a block of a hundred million would take as much again."""


def to_unit(rows: Tensor, lengths: Tensor) -> None:
    """Divide rows by their lengths, in place and through double precision; a row of zeros stays."""
    for begin in range(0, len(rows), 16 * ROWS_AT_ONCE):
        some = slice(begin, begin + 16 * ROWS_AT_ONCE)
        by = lengths[some, None].clamp_min(1e-12).to(rows.device)
        rows[some] = rows[some].double().div_(by)


def unit_rows(x: sp.csr_array) -> sp.csr_array:
    """Sparse rows divided by their lengths, in double precision; a row of zeros stays."""
    unit = x.astype(np.float64)
    squares = sp.csr_array((np.square(unit.data), unit.indices, unit.indptr), shape=unit.shape)
    lengths = np.sqrt(squares @ np.ones(unit.shape[1]))
    unit.data /= np.repeat(np.where(lengths > 0, lengths, 1.0), np.diff(unit.indptr))
    return unit


def spreading_bytes(nodes: int, columns: int) -> int:
    """About what spreading so many columns takes: those of their block, then themselves, their sums, and two more."""
    return 4 * BLOCK * nodes + 5 * 8 * columns * nodes


def random_features(x: Tensor, directions: Tensor) -> Tensor:
    r"""Random ReLU features.

    .. math:: \phi(x) = \sqrt{2 / D} \; \mathrm{ReLU}(x R), \quad R_{ij} \sim N(0, 1)

    Source: McDonnell et al. 2023, "RanPAC: Random Projections and Pre-trained Models for Continual Learning", Sec. 4,
    with a factor that keeps squared lengths in the mean (Cho & Saul 2009, the arc-cosine kernel of degree one).
    """
    return torch.relu_(x @ directions).mul_((2 / directions.shape[1]) ** 0.5)


@dataclass(frozen=True)
class Propagation:
    """Features spread over the graph: wide ones are first projected to fewer columns, which commutes with it.

    A few columns go through all hops, then the next: what is spread in double precision is never there as a whole.
    Every column is computed alike, whatever memory there is. In a team each process takes some blocks. A small graph
    is one block.
    """

    num_features: int
    sketch: int
    """Features wider than this are projected to so many columns."""
    seed: int
    runtime: Runtime
    edge_types: int = 1
    """How many types of edges there are; each is propagated over on its own."""

    def places(self, spread: Spread) -> list[Place]:
        """What stands side by side: each hop of each type of edges, no hop once."""
        return places(spread, self.edge_types)

    @property
    def device(self) -> torch.device:
        return self.runtime.device

    @property
    def tracer(self) -> Tracer:
        return self.runtime.tracer

    @property
    def columns(self) -> int:
        """Columns of one hop."""
        return min(self.num_features, self.sketch)

    @property
    def projection(self) -> NDArray[np.float64]:
        """What wide features are projected with, (features, columns)."""
        return self._projection.numpy()

    def drawn(self, rows: int) -> NDArray[np.float64]:
        """The first rows of the projection."""
        random = np.random.default_rng([self.seed, 2])
        return np.asarray(random.standard_normal((rows, self.columns)) / self.columns**0.5)

    @cached_property
    def _projection(self) -> Tensor:
        return torch.tensor(self.drawn(self.num_features))

    @cached_property
    def _projection_blocks(self) -> list[Tensor]:
        """The same in blocks of columns, each on its own: to cut them out anew would cost more than a small graph."""
        whole = self.drawn(self.num_features)
        return [torch.tensor(whole[:, begin : begin + BLOCK]) for begin in range(0, self.columns, BLOCK)]

    @spanned("propagation")
    def rows(self, graph: Graph, wanted: Sequence[Place], at: Tensor | None = None) -> Tensor:
        """Unit rows of all places side by side, in single precision, of all nodes or of those `at`.

        What is spread are unit rows as well, summed in double precision: so a node's row does not depend on how the
        rest of its graph is numbered.
        """
        n = graph.num_nodes if at is None else len(at)
        found = self._room(graph, n, len(wanted) * self.columns)
        if self.runtime.team.size > 1:
            found.zero_()  # others' columns are added
        squares = torch.zeros(len(wanted), n, dtype=torch.float64, device=self.device)
        spreads = [Spreading(rows, self.device) for rows in graph.by_type] if max(wanted)[0] else []
        for begin, unspread in self._blocks(graph):
            for found_at, block in _hop_by_hop(unspread, spreads, wanted):
                for place in (place for place, one in enumerate(wanted) if one == found_at):
                    chosen = block if at is None else block[at]
                    for begun in range(0, n, NODES_AT_ONCE):
                        rows = slice(begun, begun + NODES_AT_ONCE)
                        for some in torch.split(chosen[rows].square(), BLOCK, dim=1):  # in one order, however many
                            squares[place, rows] += some.sum(dim=1)
                    first = place * self.columns + begin
                    found[:, first : first + block.shape[1]] = chosen
        self.runtime.team.all_reduce(found, squares)
        for place, square in enumerate(squares):
            to_unit(found[:, place * self.columns : (place + 1) * self.columns], square.sqrt_())
        return found

    def by_place(self, graph: Graph, wanted: Sequence[Place], at: Tensor) -> dict[Place, Tensor]:
        """What stands side by side in `rows`, each on its own."""
        found = torch.split(self.rows(graph, wanted, at), self.columns, dim=1)
        return dict(zip(wanted, found, strict=True))

    def _room(self, graph: Graph, n: int, width: int) -> Tensor:
        """Where rows are kept: on the device, where they leave room there for what is spread, and else on the host."""
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            spread = spreading_bytes(graph.num_nodes, NARROWEST) + 4 * graph.num_edges
            if 4 * n * width <= min(free // 2, free - spread):
                return torch.empty(n, width, device=self.device)
        return torch.from_numpy(self.runtime.budget.room((n, width), np.float32))

    def _blocks(self, graph: Graph) -> Iterator[tuple[int, Tensor]]:
        """Unit rows to be spread, projected where they are wide: some columns at a time, and the first of them."""
        x = graph.x
        narrower = self.columns < self.num_features
        if isinstance(x, sp.csr_array):
            unit = unit_rows(x)
            if narrower:
                product = SparseProduct(unit, self.device)
                yield from (
                    (begin, product(some))
                    for begin, some in self._directions(together=x.shape[0] * self.columns <= CACHED)
                )
                return
            by_column = unit.tocsc()
            for begin in self._own_blocks(0, self.columns):
                some = by_column[:, begin : begin + BLOCK].toarray(order="C")
                yield begin, torch.from_numpy(some).to(self.device)
            return
        whole = self._whole(x)
        lengths = torch.cat([rows.square().sum(dim=1, keepdim=True).sqrt_() for rows in self._dense(x, whole)])
        lengths[lengths == 0] = 1.0
        if narrower:
            for begin, some in self._directions():
                yield begin, torch.cat([rows @ some for rows in self._dense(x, whole)]).div_(lengths)
            return
        # Read from a file, or moved to a device, in fewer goes.
        step = COLUMNS_AT_ONCE if self._is_small(4 * len(x) * min(self.columns, COLUMNS_AT_ONCE)) else BLOCK
        width = self._width(len(x))
        for first in range(0, self.columns, step):
            end = first + step
            columns = self._moved(x[:, first:end]) if whole is None else whole[:, first:end]
            for block in self._own_blocks(first, first + columns.shape[1]):
                last = min(block + BLOCK, first + columns.shape[1])
                for begin in range(block, last, width):
                    some = slice(begin - first, min(begin + width, last) - first)
                    yield begin, columns[:, some].double().div_(lengths)

    def _width(self, nodes: int) -> int:
        """Columns that are spread together: a block, or fewer where a GPU has no room for it."""
        width = BLOCK
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            while width > NARROWEST and spreading_bytes(nodes, width) > free:
                width //= 2
        return width

    def _own_blocks(self, first: int, end: int) -> Iterator[int]:
        """Where blocks of columns begin: every so many-th block of a graph is this process's."""
        us = self.runtime.team
        return (begin for begin in range(first, end, BLOCK) if begin // BLOCK % us.size == us.rank)

    def _directions(self, *, together: bool = False) -> Iterator[tuple[int, Tensor]]:
        """Columns of the projection, in blocks or all together."""
        if together and self.runtime.team.size == 1:
            yield 0, self._projection.to(self.device)
            return
        for begin in self._own_blocks(0, self.columns):
            yield begin, self._projection_blocks[begin // BLOCK].to(self.device)

    def _whole(self, x: NDArray[np.float32]) -> Tensor | None:
        """All features at hand: on a CPU where they are in memory, on a GPU where they take little of what is free."""
        if self.device.type == "cuda":
            return self._moved(x) if self._is_small(x.nbytes) else None
        return None if isinstance(x, np.memmap) else torch.from_numpy(np.require(x, requirements="W"))

    def _is_small(self, size: int) -> bool:
        """Whether so many bytes are little of what is free on a GPU: spreading takes several times as much."""
        return self.device.type != "cuda" or size <= torch.cuda.mem_get_info(self.device)[0] // 8

    def _dense(self, x: NDArray[np.float32], whole: Tensor | None) -> Iterator[Tensor]:
        """All rows in double precision, some at a time."""
        step = max(1, VALUES_AT_ONCE // self.num_features)
        for begin in range(0, len(x), step):
            some = slice(begin, begin + step)
            yield (self._moved(x[some]) if whole is None else whole[some]).double()

    def _moved(self, x: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(np.require(x, requirements=["C", "W"])).to(self.device)


@dataclass(frozen=True)
class FeatureMap:
    """Propagated features of the chosen hops side by side, then expanded; a function of its fields alone."""

    propagation: Propagation
    spread: Spread
    expansion: int
    """Number of random ReLU features; 0 for none."""

    @property
    def tracer(self) -> Tracer:
        return self.propagation.tracer

    @property
    def places(self) -> list[Place]:
        """What stands side by side."""
        return self.propagation.places(self.spread)

    @property
    def reach(self) -> int:
        """Hops to the farthest node that counts."""
        return max(self.spread.hops)

    @property
    def inputs(self) -> int:
        return self.propagation.columns * len(self.places)

    @property
    def width(self) -> int:
        """Length of the rows it gives."""
        return self.expansion or self.inputs

    @cached_property
    def directions(self) -> Tensor:
        """The random ones of the expansion, (inputs, expansion)."""
        return self._drawn(self.inputs).to(self.propagation.device)

    def _drawn(self, rows: int) -> Tensor:
        """The first rows of them, drawn into memory of torch's own."""
        random = np.random.default_rng([self.propagation.seed, 3])
        drawn = torch.empty(rows, self.expansion)
        random.standard_normal(dtype=np.float32, out=drawn.numpy())
        return drawn

    @cached_property
    def _directions_double(self) -> Tensor:
        return self.directions.double()

    def propagated(self, graph: Graph) -> Tensor:
        """(nodes, inputs); made once for a graph, and kept as long as it and the map live."""
        maps: Any = graph.derived("feature maps", None, weakref.WeakKeyDictionary)
        by_spread: dict[Spread, Tensor] = maps.setdefault(self.propagation, {})
        if self.spread not in by_spread:
            by_spread[self.spread] = self.propagation.rows(graph, self.places)
        return by_spread[self.spread]

    @spanned("expansion")
    def expanded(self, x: Tensor, dtype: torch.dtype = torch.float64, columns: int | None = None) -> Tensor:
        """The rows themselves, from propagated ones: in double precision to be added up, in single to be scored.

        Of random features only the first columns, where these are given.
        """
        x = x.to(device=self.propagation.device, dtype=dtype)
        if not self.expansion:
            return x
        directions = self._directions_double if dtype == torch.float64 else self.directions
        if columns is None or columns == self.expansion:
            return random_features(x, directions)
        return random_features(x, directions[:, :columns]).mul_((columns / self.expansion) ** 0.5)

    def exported(self, rows: Any) -> Any:
        """The map in the words of an exported program, before the factor of random features."""
        hops = [rows.within_one().unit()]
        if self.propagation.columns < self.propagation.num_features:
            hops = [hops[0] @ self.propagation.projection]
        for _ in range(self.reach):
            hops.append(hops[-1].spread())

        def blended(number: int) -> Any:
            weights = hop_weights(number, self.spread.restart)
            return reduce(add, (hop * weight for hop, weight in zip(hops, weights, strict=False) if weight)).unit()

        first, *others = map(blended, self.spread.hops)
        joined = first.beside(*others)
        return (joined @ self.directions).relu() if self.expansion else joined

    @cached_property
    def fingerprint(self) -> str:
        """Tells two maps apart, also where a library drew other random numbers from the same seed.

        Its first rows are drawn for it, not all: who only reads a model makes no room for what it declares.
        """
        restart = f" {self.spread.restart!r}" * bool(self.spread.restart)
        digest = hashlib.sha256(f"{self.spread.hops} {self.expansion}{restart}".encode())
        if self.expansion:
            digest.update(self._drawn(min(8, self.inputs)).numpy().tobytes())
        if self.propagation.columns < self.propagation.num_features:
            digest.update(self.propagation.drawn(min(8, self.propagation.num_features)).tobytes())
        return digest.hexdigest()[:16]


def pieces(x: Tensor) -> list[Tensor]:
    """Rows, some at a time: expanded ones are wide."""
    return [x[begin : begin + ROWS_AT_ONCE] for begin in range(0, max(1, len(x)), ROWS_AT_ONCE)]


def take(rows: Tensor, at: Tensor) -> Tensor:
    """Some rows, which may be kept on another device than `at`."""
    return rows[at.to(rows.device)]


def _hop_by_hop(block: Tensor, spreads: Sequence[Spreading], wanted: Sequence[Place]) -> Iterator[tuple[Place, Tensor]]:
    """Columns after each hop over each type of edges, with their places (see `hop_weights`); `block` is used up."""
    yield (0, 0, 0.0), block
    for kind, spread_once in enumerate(spreads):
        there = block if kind == len(spreads) - 1 else block.clone()
        passed = {restart: restart * there for restart in sorted({restart for *_, restart in wanted}) if restart}
        for hop in range(1, max(wanted)[0] + 1):
            there = spread_once(there)
            yield (hop, kind, 0.0), there
            for restart, before in passed.items():
                last = (1 - restart) ** hop
                if (hop, kind, restart) in wanted:
                    yield (hop, kind, restart), torch.add(before, there, alpha=last)
                before.add_(there, alpha=restart * last)
