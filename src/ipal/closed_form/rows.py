"""Rows that are added up, or taken away: made in pieces, and rounded to a grid on which sums are exact."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from ipal.closed_form.feature_map import pieces, take

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
    nodes: Tensor | None = None
    """Which of the inputs are meant; all of them where None."""

    def __len__(self) -> int:
        return len(self.labels)

    def taken(self, some: Tensor) -> Tensor:
        """The inputs of some rows."""
        return take(self.inputs, some if self.nodes is None else self.nodes[some])

    def pieces(self, chosen: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows (float64, rounded) and labels of the chosen ones, some at a time."""
        for some in pieces(chosen):
            yield rounded(self.expand(self.taken(some))), self.labels[some]

    def chosen(self, some: Tensor) -> "Rows":
        """Some of the rows."""
        return replace(self, labels=self.labels[some], nodes=some if self.nodes is None else self.nodes[some])
