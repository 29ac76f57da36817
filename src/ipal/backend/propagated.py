"""Features propagated over a graph with restarts: the fixed rows that the closed form and the `appnp` encoder read.

Rows of features are scaled to unit length, projected to fewer columns where they are wide, and propagated. Projection
and propagation commute, so a few columns at a time go through all steps, in double precision: a node's row then does
not depend on how the rest of its graph is numbered, nor on the processor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.runtime import Runtime
from ipal.backend.sparse import Cut, SparseMatrix, bags, read_only
from ipal.config import TestGraph
from ipal.data.csr import EDGES_AT_ONCE, MOST_ENTRIES, Neighbours
from ipal.data.graph import Graph

BLOCK = 128
"""Columns that are propagated together."""
NARROWEST = 4
ROWS_AT_ONCE = 2**20
VALUES_AT_ONCE = 2**22

DEFAULTS: dict[TestGraph, tuple[int, tuple[float, ...]]] = {
    "isolated": (16, (0.02, 0.3)),
    "seen": (10, (0.2,)),
    "both": (10, (0.2,)),
}
"""Steps and restarts by the graphs that are predicted."""


def settled(
    steps: int | None, restart: float | tuple[float, ...] | None, test_graph: TestGraph = "both"
) -> tuple[int, tuple[float, ...]]:
    """Steps and restarts: those that are set, else by the graphs that are predicted."""
    usual_steps, usual = DEFAULTS[test_graph]
    restarts = (restart,) if isinstance(restart, float | int) else restart
    return usual_steps if steps is None else steps, usual if restarts is None else restarts


@dataclass(frozen=True)
class Columns:
    """Columns of features propagated with one restart."""

    num_features: int
    number: int
    is_projected: bool
    """Whether columns are random projections of the features, or the features themselves."""
    linear: int
    """The first so many columns give a row its length, which all columns are divided by."""
    steps: int
    restart: float
    seed: tuple[int, ...]
    """Of the projection."""

    def drawn(self, rows: int) -> NDArray[np.float32]:
        """The first rows of the projection, (rows, columns)."""
        return np.random.default_rng(self.seed).standard_normal((rows, self.number), dtype=np.float32)

    @cached_property
    def projection(self) -> NDArray[np.float32]:
        """(features, columns)"""
        return self.drawn(self.num_features)


class RowSource(Protocol):
    """A fixed map from a graph to rows of propagated features."""

    @property
    def columns(self) -> Sequence[Columns]: ...

    def propagated(self, graph: Graph) -> Tensor:
        """Rows of all nodes."""


@dataclass(frozen=True)
class Propagated:
    """What an encoder needs of a graph where it reads nothing else: a row of propagated features for every node."""

    columns: tuple[Columns, ...]

    def of(self, graph: Graph, runtime: Runtime) -> Tensor:
        """Rows of all nodes; made once, and kept as long as the graph lives."""
        return graph.derived("rows", (runtime, self), lambda: propagated(graph, self.columns, runtime))

    def __deepcopy__(self, memo: object) -> Self:
        return self


class Spreading:
    """Values of all nodes to those one hop further.

    The propagation matrix is made of a scale a node, s_i s_j, so that rows are scaled before and after a plain sum over
    neighbours. Sums add in a fixed order, whatever the number of threads.
    """

    def __init__(self, neighbours: Neighbours, device: torch.device, dtype: torch.dtype = torch.float64) -> None:
        self._neighbours, self._device, self._dtype = neighbours, device, dtype
        self._scale = torch.from_numpy(1.0 / np.sqrt(neighbours.degree + 1.0)[:, None]).to(device, dtype)
        # As many rows at a time as 32-bit row starts allow; in main memory few, read from where they lie.
        on_gpu = device.type == "cuda"
        self._ranges = list(neighbours.chunks(MOST_ENTRIES if on_gpu else EDGES_AT_ONCE))
        keeps = on_gpu or len(self._ranges) == 1
        self._kept = [self._piece(*some) for some in self._ranges] if keeps else None

    def __call__(self, x: Tensor) -> Tensor:
        """One hop, D^-1/2 (A + I) D^-1/2 x; `x` is used up."""
        x *= self._scale
        if len(self._ranges) == 1:
            sums = self._summed(x, 0)
        else:
            sums = torch.empty_like(x)
            for number, (begin, end) in enumerate(self._ranges):
                sums[begin:end] = self._summed(x, number)
        return sums.add_(x).mul_(self._scale)

    def _summed(self, x: Tensor, number: int) -> Tensor:
        """The sums of one range of rows."""
        indices, indptr, cut, weights = self._kept[number] if self._kept else self._piece(*self._ranges[number])
        sums = bags(x, indices, indptr, weights)
        return sums if cut is None else bags(sums, cut.order, cut.rows)

    def _piece(self, begin: int, end: int) -> tuple[Tensor, Tensor, Cut | None, Tensor | None]:
        """Neighbours of some rows, where those of each begin, long rows in parts, and weights: none on a GPU of one."""
        neighbours, device = self._neighbours, self._device
        starts = neighbours.indptr[begin : end + 1]
        indices, indptr = read_only(neighbours.indices[starts[0] : starts[-1]]).to(device), starts - starts[0]
        weights = None
        if neighbours.weights is not None or device.type == "cpu":
            weights = read_only(neighbours.values(begin, end)).to(device, self._dtype)
        cut = Cut.of(indptr, device) if device.type == "cuda" else None
        return indices, read_only(indptr.astype(np.int32)).to(device) if cut is None else cut.parts, cut, weights


def walk(start: Tensor, spread: Spreading, steps: int, restart: float) -> Tensor:
    r"""Personalised PageRank by power iteration.

    .. math:: H^{(k + 1)} = (1 - r) \, \hat A H^{(k)} + r H^{(0)}

    Source: Gasteiger et al. 2019, "Predict then Propagate: Graph Neural Networks meet Personalized PageRank", Eq. 4.
    """
    found = start.clone()
    for _ in range(steps):
        found = spread(found)
        if restart:
            found.mul_(1 - restart).add_(start, alpha=restart)
    return found


def blocks(
    graph: Graph,
    steps: int,
    restart: float,
    runtime: Runtime,
    directions: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> Iterator[tuple[int, Tensor]]:
    """Propagated unit rows of features, times (features x columns) directions if given.

    Some columns at a time, and the number of the first of them.
    """
    spread = Spreading(graph.neighbours, runtime.device, dtype)
    for begin, start in unit_columns(graph, directions, runtime):
        yield begin, walk(start.to(dtype), spread, steps, restart)


def propagated(graph: Graph, parts: Sequence[Columns], runtime: Runtime) -> Tensor:
    """Columns of all parts side by side, in single precision."""
    n = graph.num_nodes
    found = _room(graph, n, sum(part.number for part in parts), runtime)
    lengths = torch.zeros(len(parts), n, dtype=torch.float64, device=runtime.device)
    offset = 0
    for part, squares in zip(parts, lengths, strict=True):
        directions = torch.from_numpy(part.projection) if part.is_projected else None
        for begin, block in blocks(graph, part.steps, part.restart, runtime, directions):
            if begin < part.linear:
                for some in _some_rows(n):
                    squares[some] += block[some, : part.linear - begin].square().sum(dim=1)
            found[:, offset + begin : offset + begin + block.shape[1]] = block
        _divide(found[:, offset : offset + part.number], squares.sqrt_())
        offset += part.number
    return found


def unit_rows(x: sp.csr_array) -> sp.csr_array:
    """Sparse rows divided by their lengths, in double precision; a row of zeros stays."""
    unit = x.astype(np.float64)
    squares = sp.csr_array((np.square(unit.data), unit.indices, unit.indptr), shape=unit.shape)
    lengths = np.sqrt(squares @ np.ones(unit.shape[1]))
    unit.data /= np.repeat(np.where(lengths > 0, lengths, 1.0), np.diff(unit.indptr))
    return unit


def unit_columns(graph: Graph, directions: Tensor | None, runtime: Runtime) -> Iterator[tuple[int, Tensor]]:
    """Unit rows, times directions if given, in double precision: some columns at a time, and the first of them."""
    x, device = graph.x, runtime.device
    number = graph.num_features if directions is None else directions.shape[1]
    width = _width(graph.num_nodes, runtime)
    begins = [begin for block in range(0, number, BLOCK) for begin in range(block, min(block + BLOCK, number), width)]

    def chosen(begin: int, rows: Any = slice(None)) -> Tensor:
        assert directions is not None, "they were given"
        return directions[rows, begin : begin + width].to(device, torch.float64).contiguous()

    if isinstance(x, sp.csr_array):
        unit = unit_rows(x)
        if directions is not None:
            used = np.flatnonzero(np.bincount(unit.indices))  # of a small graph few
            product = SparseMatrix.of(unit[:, used], device)
            for begin in begins:
                yield begin, product.matmul(chosen(begin, torch.from_numpy(used)))
            return
        by_column: Any = unit.tocsc()
        for begin in begins:
            yield begin, torch.from_numpy(by_column[:, begin : begin + width].toarray(order="C")).to(device)
        return
    lengths = torch.cat([rows.square().sum(dim=1, keepdim=True).sqrt_() for rows in _dense(x, device)])
    lengths[lengths == 0] = 1.0
    for begin in begins:
        if directions is None:
            some = read_only(np.ascontiguousarray(x[:, begin : begin + width]))
            yield begin, some.to(device).double().div_(lengths)
        else:
            by = chosen(begin)
            yield begin, torch.cat([rows @ by for rows in _dense(x, device)]).div_(lengths)


def _dense(x: NDArray[np.float32], device: torch.device) -> Iterator[Tensor]:
    """All rows in double precision, some at a time."""
    step = max(1, VALUES_AT_ONCE // x.shape[1])
    for begin in range(0, len(x), step):
        yield read_only(np.ascontiguousarray(x[begin : begin + step])).to(device).double()


def _width(nodes: int, runtime: Runtime) -> int:
    """Columns that are propagated together: a block, or fewer where a GPU has no room for it."""
    width = BLOCK
    if runtime.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(runtime.device)
        while width > NARROWEST and walking_bytes(nodes, width) > free:
            width //= 2
    return width


def walking_bytes(nodes: int, columns: int) -> int:
    """About what propagating so many columns takes: the start, the sums, two more, and a copy in single precision."""
    return (5 * 8 + 4) * columns * nodes


def _room(graph: Graph, n: int, width: int, runtime: Runtime) -> Tensor:
    """Where rows are kept: on the device, where they leave room there for what is propagated, and else on the host."""
    if runtime.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(runtime.device)
        needed = walking_bytes(graph.num_nodes, NARROWEST) + 4 * graph.num_edges
        if 4 * n * width <= min(free // 2, free - needed):
            return torch.empty(n, width, device=runtime.device)
    return torch.from_numpy(runtime.budget.room((n, width), np.float32))


def _divide(rows: Tensor, lengths: Tensor) -> None:
    """Divide rows by their lengths, in place and through double precision; a row of zeros stays."""
    for some in _some_rows(len(rows)):
        by = lengths[some, None].clamp_min(1e-12).to(rows.device)
        rows[some] = rows[some].double().div_(by)


def _some_rows(n: int) -> Iterator[slice]:
    return (slice(begin, begin + ROWS_AT_ONCE) for begin in range(0, n, ROWS_AT_ONCE))
