"""Sums over rows: all that the closed form keeps of nodes. Immutable values; whatever is added can be taken away.

Every class has a number of rows and their sum; all classes share one matrix of sums of products. Rows are rounded to a
fixed grid before they are added up: all sums are whole numbers of a unit, the same bits in any order and any grouping.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor

from ipal.backend.checks import check_shapes, require
from ipal.closed_form.feature_map import ROWS_AT_ONCE
from ipal.methods.shared.propagated_features import picked

PANEL = 256
"""Columns of one panel."""
COLUMNS = 1024
"""Of the narrower model, whose columns are some of all."""


def numbers(width: int) -> int:
    """How many numbers the panels of a matrix have."""
    return sum((width - begin) * min(PANEL, width - begin) for begin in range(0, width, PANEL))


def panels(half: Tensor, width: int) -> Iterator[tuple[int, Tensor]]:
    """The first column of every panel, and the panel: a view, (rows from that column on, columns)."""
    offset = 0
    for begin in range(0, width, PANEL):
        rows, columns = width - begin, min(PANEL, width - begin)
        yield begin, half[offset : offset + rows * columns].view(rows, columns)
        offset += rows * columns


def add_products(half: Tensor, rows: Tensor) -> None:
    """Add the products of columns of `rows`, in place.

    Products are computed in the precision of the rows, and added in that of the matrix.
    """
    for begin, panel in panels(half, rows.shape[1]):
        left, right = rows[:, begin:].T, rows[:, begin : begin + PANEL]
        if rows.dtype == half.dtype:
            panel.addmm_(left, right)
        else:
            panel.add_(left @ right)


def square(half: Tensor, width: int, step: int = 1) -> Tensor:
    """The matrix of every `step`-th row and column, of which only the lower half is meant."""
    size = -(-width // step)
    found = half.new_zeros(size, size)
    for begin, panel in panels(half, width):
        first, end = (-(-edge // step) for edge in (begin, begin + panel.shape[1]))
        skipped = first * step - begin
        found[first:, first:end] = panel[skipped::step, skipped::step]
    return found


def mirrored(lower: Tensor) -> Tensor:
    """The symmetric matrix of which the lower half is known."""
    return lower.tril() + lower.tril(-1).T


BITS = 6
"""Of a typical entry of a row, 1 / sqrt(width), which are kept. What is lost is less than a ridge of 1e-4."""
WHOLE = 2**24
"""Whole numbers up to this are numbers of single precision."""
SUMMED = 1.001
"""More than a sum of some thousand squares in single precision may be too small."""
FEW = 512
"""Rows that are not cut into smaller parts for its sake."""


def grid(width: int) -> float:
    """The step of the grid that rows of this width are rounded to: a power of two."""
    return float(2.0 ** -(BITS + math.ceil(math.log2(max(1, width)) / 2)))


def rounded(rows: Tensor) -> Tensor:
    """Rows on the grid: their products are whole multiples of its square, and so are all sums of them."""
    step = grid(rows.shape[1])
    return (rows / step).round_().mul_(step)


def exact_parts(rows: Tensor) -> Iterator[Tensor]:
    r"""Rows on the grid, in parts whose products add up without an error: in single precision where a bound says so.

    .. math:: \Big| \sum_{i \in I} \phi_{ij} \phi_{ik} \Big| \le \max_j \sum_i \phi_{ij}^2 \le 2^{24} \delta^2

    The inequality of Cauchy and Schwarz. Products of rows on a grid of step delta are whole multiples of its square:
    where the bound holds, every sum of some of them (I), in any order, is a number of single precision. On a GPU rows
    stay in double precision: nothing waits there to look at the bound.
    """
    if rows.device.type != "cpu":
        yield rows
        return
    single = rows.float()
    squares = float(single.square().sum(dim=0).amax()) / grid(rows.shape[1]) ** 2
    times = squares * SUMMED / WHOLE
    if times <= 1:
        yield single
    elif len(rows) <= FEW:
        yield rows
    else:
        for part in rows.tensor_split(math.ceil(min(len(rows) / FEW, times))):
            yield from exact_parts(part)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows to be added or taken away, made in pieces only when they are needed."""

    inputs: Tensor
    """Rows of a graph's nodes, on any device or in a file."""
    labels: Tensor
    """The class of each row, as the learner numbers it."""
    expand: Callable[[Tensor], Tensor]
    nodes: Tensor
    """Which of the inputs are meant."""

    def pieces(self, chosen: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows (float64, rounded) and labels of the chosen ones, some at a time."""
        for some in torch.split(chosen, ROWS_AT_ONCE):
            yield rounded(self.expand(picked(self.inputs, self.nodes[some]))), self.labels[some]


@dataclass(frozen=True, eq=False)
class Normal:
    """The normal equations of a class-balanced ridge regression, and what leaving a row out needs."""

    gram: Tensor
    """A, of which only the lower half is meant."""
    mean: Tensor
    """M: class means as columns, (width, classes)."""
    count: Tensor
    """n: rows of each class."""
    row_weight: float
    """f, the weight of the products of a row."""
    mean_weight: Tensor
    """k, the weight of the products of each class mean."""


def balanced_weights(count: Tensor) -> tuple[float, Tensor]:
    r"""Weights of products of rows and of class means, in which every class counts the same.

    .. math:: A = f G + \sum_c k_c \, \mu_c \mu_c^\top, \quad f = \frac{C}{N}, \quad k_c = 1 - f n_c

    for the sum G of products of N rows of C classes. One scatter within classes stands for each of them, as in linear
    discriminant analysis (Fisher 1936); the classes' means count the same whatever their numbers n of rows.
    """
    there = (count > 0).double()
    f = float(there.sum()) / max(1, int(count.sum()))
    return f, there - f * count.double()


@dataclass(frozen=True, eq=False)
class Sums:
    """Number and sum of the rows of every class, in the learner's order, and the sum of products of all rows."""

    count: Tensor
    """(classes,)"""
    total: Tensor
    """(classes, width)"""
    gram: Tensor
    """The lower half, in panels."""

    @classmethod
    def empty(cls, width: int, device: torch.device) -> Self:
        count = torch.zeros(0, dtype=torch.int64, device=device)
        total = torch.zeros(0, width, dtype=torch.float64, device=device)
        gram = torch.zeros(numbers(width), dtype=torch.float64, device=device)
        return cls(count, total, gram)

    @property
    def width(self) -> int:
        return self.total.shape[1]

    @property
    def step(self) -> int:
        """Every so many-th column is one of the narrower model."""
        return max(1, self.width // COLUMNS)

    @property
    def mean(self) -> Tensor:
        """(classes, width)"""
        return self.total / self.count.clamp_min(1)[:, None]

    def normal(self, step: int = 1) -> Normal:
        """The normal equations; with a step those of every so many-th column, of rows about as long."""
        f, k = balanced_weights(self.count)
        mean = self.mean[:, ::step] * step**0.5
        gram = ((mean.T * k) @ mean).add_(square(self.gram, self.width, step), alpha=f * step)
        return Normal(gram, mean.T, self.count, f, k)

    def grown(self, classes: int) -> Self:
        """With room for more classes, empty ones."""
        more, pad = classes - len(self.count), torch.nn.functional.pad
        return replace(self, count=pad(self.count, (0, more)), total=pad(self.total, (0, 0, 0, more)))

    def changed(self, sign: Literal[-1, 1], rows: Rows) -> Self:
        """With rows, or without rows that are sure to have been learned."""
        total, gram = torch.zeros_like(self.total), torch.zeros_like(self.gram)
        for piece, labels in rows.pieces(torch.arange(len(rows.labels), device=rows.labels.device)):
            total.index_add_(0, labels, piece)
            for part in exact_parts(piece):
                add_products(gram, part)
        count = self.count + sign * torch.bincount(rows.labels, minlength=len(self.count))
        return type(self)(count, torch.add(self.total, total, alpha=sign), torch.add(self.gram, gram, alpha=sign))

    def merged(self, other: Self, places: Tensor, classes: int) -> Self:
        """With the sums of another model, whose classes are to be at these places."""
        mine, theirs = self.grown(classes), other.united(places, classes)
        return type(self)(mine.count + theirs.count, mine.total + theirs.total, self.gram + other.gram)

    def united(self, places: Tensor, classes: int) -> Self:
        """So many classes, drawn together: class i is a part of class `places[i]`."""
        count, total = self.count.new_zeros(classes), self.total.new_zeros(classes, self.width)
        return replace(self, count=count.index_add(0, places, self.count), total=total.index_add(0, places, self.total))

    @property
    def products(self) -> Tensor:
        """The sum of products of all rows, as a whole matrix."""
        return mirrored(square(self.gram, self.width))

    def tensors(self) -> dict[str, Tensor]:
        """Sums of products in whole numbers of their unit, of 32 bits where that is enough."""
        whole = self.gram / grid(self.width) ** 2
        dtype = torch.int32 if float(whole.abs().max()) < 2**31 else torch.int64
        return {"count": self.count, "total": self.total, "gram": whole.to(dtype)}

    def of_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """Sums of this width from what `tensors` gave."""
        given = {f"sums.{name}": tensor for name, tensor in tensors.items()}
        classes = tensors.get("count", self.count).numel()
        shapes = {"sums.count": (classes,), "sums.total": (classes, self.width), "sums.gram": (numbers(self.width),)}
        check_shapes(given, shapes.items())
        count, total, gram = (given[name] for name in shapes)
        holds = total.dtype == torch.float64 and count.dtype == torch.int64 and gram.dtype in (torch.int32, torch.int64)
        require(holds, "its sums hold numbers of another kind")
        return type(self)(count, total, gram.double() * grid(self.width) ** 2)
