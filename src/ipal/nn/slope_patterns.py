"""Per-node gradients of the layer before the last, where the slopes of a ReLU agree over most neighbourhoods.

With u = g W^T the gradient of anchor i with respect to the weight from input f to unit k is u_ik T_ikf, where
T_ikf = sum_j a_ij s_jk p_jf: s are the slopes of the ReLU, p the rows that the layer multiplies with its weights. It
depends on k only through the slopes of the anchor's neighbours. Where all of them are one, T is row i of A p, and all
such pairs (i, k) are one dense product. Where they differ, T differs from that row, or from zero, by few neighbours.

Floor: n F K multiply-adds of the dense product, and F for every mixed pair and for every neighbour whose slope is not
that of most. On a task of Coauthor CS's size (n = 1,438, F = 6,805, K = 256, 8% of the pairs mixed) these are 2.5e9
dense and 0.5e9 sparse ones, on numbers that stay in the cache; by the rows of single anchors 2.1e9 sparse ones and as
many squares, on arrays that do not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ipal.backend.sparse import SparseMatrix, bags

Size = Callable[[Tensor], Tensor]
"""What is averaged over nodes: the square of a gradient, or its absolute value."""


@dataclass(frozen=True, eq=False)
class Patterns:
    """The slopes of units over the neighbourhoods of anchors, and how much each pair of anchor and unit counts."""

    a: SparseMatrix
    """Anchors x nodes: shares of neighbours in an anchor's sum."""
    open_weight: Tensor
    """Anchors x units: the size of u where the slopes of all neighbours are one, else zero."""
    mixed: SparseMatrix
    """Pairs where slopes differ x (anchors + nodes): T from the rows of A p and of p. Sorted by unit."""
    mixed_weight: Tensor
    """The size of u of each of these pairs."""
    units: Tensor
    """Where the pairs of each unit begin, and the end."""

    @classmethod
    def of(cls, a: SparseMatrix, slopes: Tensor, weight: Tensor) -> "Patterns":
        """From slopes (nodes x units), true or false, and the size of u (anchors x units)."""
        (anchors, nodes), degree = a.shape, a.indptr.diff()[:, None]
        on = bags(slopes.float(), a.indices, a.indptr)
        unit, owner = torch.nonzero(((on > 0) & (on < degree)).T).unbind(1)
        most = (2 * on > degree)[owner, unit]
        reach = a.picked(owner)
        pair = torch.arange(len(owner), device=owner.device)
        row = pair.repeat_interleave(reach.indptr.diff(), output_size=len(reach.indices))
        other = torch.nonzero(slopes[reach.indices, unit[row]] != most[row]).flatten()
        row, share = row[other], reach.values[other]
        # Of each pair first the row of A p, then the neighbours that are not as most.
        rows, order = torch.cat([pair, row]).sort(stable=True)
        columns = torch.cat([owner.int(), reach.indices[other] + anchors])[order]
        values = torch.cat([most.to(share.dtype), torch.where(most[row], -share, share)])[order]
        mixed = SparseMatrix(_starts(rows, len(pair)), columns, values, (len(pair), anchors + nodes))
        return cls(a, weight * (on == degree), mixed, weight[owner, unit], _starts(unit, weight.shape[1]))


def weight_importance(patterns: Patterns, p: Tensor, size: Size, room: int) -> Tensor:
    r"""Sum over anchors of the size of their gradients with respect to a layer's weights, units x inputs.

    .. math:: \sum_i |u_{ik}|^q \, |T_{ikf}|^q, \quad T_{ikf} = \sum_{j \in N(i)} a_{ij} s_{jk} p_{jf}
        = b_{ik} (A p)_{if} + \sum_{j \in N(i)} a_{ij} (s_{jk} - b_{ik}) p_{jf}

    b is the slope of most neighbours, and the second sum is empty where all have it. The size is a power q of the
    absolute value: that of a product is the product of sizes. At most `room` numbers of T are held at a time.
    """
    ap = patterns.a.matmul(p)
    total = patterns.open_weight.T @ size(ap)
    table, mixed, units, weight = torch.cat([ap, p]), patterns.mixed, patterns.units, patterns.mixed_weight
    cuts = [*range(0, len(weight), max(1, room // p.shape[1])), len(weight)]
    at = torch.tensor(cuts, device=p.device)
    # Of each cut the entry, and the unit: the last that begins there or before.
    marks = torch.stack([mixed.indptr[at], torch.searchsorted(units, at.int(), right=True) - 1], dim=1).tolist()
    for (begin, end), ((first, low), (last, high)) in zip(pairwise(cuts), pairwise(marks), strict=True):
        entries = slice(first, last)
        T = bags(table, mixed.indices[entries], mixed.indptr[begin : end + 1] - first, mixed.values[entries])
        place = torch.arange(end - begin, dtype=torch.int32, device=p.device)
        of_units = units[low : high + 2].clamp(begin, end) - begin
        total[low : high + 1] += bags(size(T), place, of_units, weight[begin:end])
    return total


def non_negative_importance(a_transposed: SparseMatrix, slopes: Tensor, u: Tensor) -> Tensor:
    r"""What non-negative inputs p are multiplied with for the sum of absolute gradients, nodes x units.

    .. math:: \sum_i |u_{ik} T_{ikf}| = \sum_j p_{jf} \Big( s_{jk} \sum_i a_{ij} |u_{ik}| \Big)

    Shares, slopes and inputs are not negative, and so the absolute value of their sum is the sum.
    """
    return a_transposed.matmul(u.abs()) * slopes


def _starts(ascending: Tensor, number: int) -> Tensor:
    """Where each of the numbers 0, 1, ... begins, and the end."""
    return torch.searchsorted(ascending, torch.arange(number + 1, device=ascending.device), out_int32=True)
