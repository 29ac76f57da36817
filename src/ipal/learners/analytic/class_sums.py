"""Sums over rows, by class: all that the closed form keeps. Immutable values; whatever is added can be taken away.

Two ways to keep them (what each can do exactly is checked, and the rest refused with the reason):

    PerClassSums   one matrix a class: a class may come in parts, be shared between merged models, be forgotten
    PooledSums     one matrix, every class weighted by 1 / its number of rows: small, but a class comes and goes whole

Rows are rounded to a fixed grid before they are added up, so that sums of a class are whole numbers of a unit: the same
bits in any order and any grouping, and half as large in a file.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from ipal.backend.distributed import ONE_PROCESS, Team
from ipal.errors import DataError
from ipal.learners.analytic.rows import Rows, grid

BLOCK = 1024
"""Columns of one piece of a Gram matrix: pieces above the diagonal are not computed."""
SLACK = 1e-8
"""Of the mean diagonal: how negative rounding alone may make a sum of squares."""


def add_gram(gram: Tensor, rows: Tensor, sign: float = 1.0) -> None:
    """Add the products of columns of `rows` to a matrix in place: its lower half, by blocks."""
    for begin in range(0, rows.shape[1], BLOCK):
        end = begin + BLOCK
        gram[begin:, begin:end].addmm_(rows[:, begin:].T, rows[:, begin:end], alpha=sign)


def check_taught(sums: "Sums", rows: Tensor, names: Sequence[str]) -> None:
    """Refuse more nodes of a class than stand behind it.

    Sums of many nodes do not show that the same ones are taken away a second time: their number does.
    """
    for place, taught in zip(*(part.tolist() for part in torch.unique(rows, return_counts=True)), strict=True):
        if taught > (behind := int(sums.count[place])):
            raise DataError(
                f"Class {names[place]} was learned from {behind} node(s), but {taught} are said to have taught in this "
                "graph: mark as training nodes only those that did, and were not forgotten before."
            )


def mirrored(lower: Tensor) -> Tensor:
    """The symmetric matrix of which the lower half is known."""
    return lower.tril() + lower.tril(-1).T


@dataclass(frozen=True, eq=False)
class Sums:
    """Number and sum of the rows of every class, in the learner's order; what more is kept, a subclass says."""

    count: Tensor
    """(classes,)"""
    total: Tensor
    """(classes, width)"""
    gram: Tensor

    @classmethod
    def empty(cls, width: int, device: torch.device) -> Self:
        total, gram = (
            torch.zeros(shape, dtype=torch.float64, device=device) for shape in ((0, width), cls.gram_shape(width, 0))
        )
        return cls(torch.zeros(0, dtype=torch.int64, device=device), total, gram)

    @classmethod
    def gram_shape(cls, width: int, classes: int) -> tuple[int, int]:
        """Rows and columns of the largest part."""
        raise NotImplementedError

    @classmethod
    def bytes_for(cls, width: int, classes: int) -> int:
        """What the largest part would take."""
        return 8 * math.prod(cls.gram_shape(width, classes))

    @classmethod
    def saved_shape(cls, width: int, classes: int) -> tuple[int, ...]:
        """Of the largest part, as it is saved."""
        return cls.gram_shape(width, classes)

    @property
    def width(self) -> int:
        return self.total.shape[1]

    @property
    def mean(self) -> Tensor:
        """(classes, width)"""
        return self.total / self.count.clamp_min(1)[:, None]

    def grown(self, classes: int) -> Self:
        """With room for more classes, empty ones."""
        more = classes - len(self.count)
        pad = torch.nn.functional.pad
        return replace(self, count=pad(self.count, (0, more)), total=pad(self.total, (0, 0, 0, more)))

    def exchanged(self, old: Rows | None, new: Rows | None, names: Sequence[str], team: Team = ONE_PROCESS) -> Self:
        """Without the old rows and with the new ones: learning, forgetting and correcting are this one operation."""
        leaving, coming = (_counted(rows, len(self.count), self.count.device) for rows in (old, new))
        for c in torch.nonzero(leaving > self.count).flatten().tolist():
            raise DataError(
                f"Class {names[c]} was learned from {int(self.count[c])} node(s), but {int(leaving[c])} are to be "
                "forgotten: these were never learned."
            )
        self.check_exchange(leaving, coming, names)
        remainder = self._changed(-1.0, old, self.count - leaving, self.count, team)
        # Looked at before anything new could hide that too much was taken away.
        remainder.check_remainder(self, torch.nonzero(leaving).flatten(), names)
        count = remainder.count + coming
        return remainder._changed(1.0, new, count, count, team)

    def _changed(self, sign: float, rows: Rows | None, count: Tensor, sizes: Tensor, team: Team) -> Self:
        """With rows added or taken away, which are weighted by these sizes of their classes."""
        if not rows:
            return self
        if team.size > 1:
            return self._changed_by_all(sign, rows, count, sizes, team)
        changed = replace(self, count=count, total=self.total.clone(), gram=self.gram.clone())
        changed.take_in(sign, rows, sizes)
        return changed

    def _changed_by_all(self, sign: float, rows: Rows, count: Tensor, sizes: Tensor, team: Team) -> Self:
        """The same, where every process takes in its share of the rows."""
        share = team.share(len(rows))
        own = rows.chosen(torch.arange(share.begin, share.end, device=rows.labels.device))
        change = replace(self, count=count, total=torch.zeros_like(self.total), gram=torch.zeros_like(self.gram))
        change.take_in(sign, own, sizes)
        team.all_reduce(change.total, change.gram)
        return replace(change, total=change.total.add_(self.total), gram=change.gram.add_(self.gram))

    def check_exchange(self, leaving: Tensor, coming: Tensor, names: Sequence[str]) -> None:
        """Refuse what cannot be done exactly."""

    def take_in(self, sign: float, rows: Rows, sizes: Tensor) -> None:
        """Add rows to `total` and `gram` in place, which nobody else holds yet."""
        raise NotImplementedError

    def check_remainder(self, before: Self, classes: Tensor, names: Sequence[str]) -> None:
        """Refuse a removal from these classes that leaves what no rows can add up to: others were learned."""
        for c in classes.tolist():
            # Rows are about one long, so that their number is the size of their sum before anything cancels.
            if self.count[c] == 0 and self.total[c].norm() > SLACK * before.count[c]:
                raise _never_learned(names[c])

    def balanced(self) -> tuple[Tensor, Tensor]:
        r"""G (its lower half) and Q in which every class counts the same, whatever its number of rows.

        .. math:: G = \sum_c \frac{1}{n_c} \sum_{i: y_i = c} \phi_i \phi_i^\top, \quad
            Q_c = \frac{1}{n_c} \sum_{i: y_i = c} \phi_i

        Source: weighted least squares with weights 1 / n_c, as King & Zeng 2001, "Logistic Regression in Rare Events
        Data", Sec. 4, weigh classes.
        """
        return self.balanced_gram(), self.mean.T

    def balanced_gram(self) -> Tensor:
        """Its lower half."""
        raise NotImplementedError

    def merged(self, other: Self, places: Tensor, classes: int, names: Sequence[str]) -> Self:
        """With the sums of another model, whose classes are to be at these places."""
        raise NotImplementedError

    def without(self, c: int, names: Sequence[str]) -> Self:
        """As if no row of class `c` had ever been learned."""
        raise NotImplementedError

    def of_classes(self, classes: Tensor) -> Self:
        """Some classes, in this order; the others must be empty where they cannot be told apart."""
        return replace(self, count=self.count[classes], total=self.total[classes])

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device) -> Self:
        return cls(**{field.name: tensors[field.name].to(device) for field in fields(cls)})


@dataclass(frozen=True, eq=False)
class PooledSums(Sums):
    """One weighted matrix for all classes: `gram` is (width, width), of which only the lower half is read and saved."""

    @classmethod
    def gram_shape(cls, width: int, classes: int) -> tuple[int, int]:
        return width, width

    @classmethod
    def saved_shape(cls, width: int, classes: int) -> tuple[int, ...]:
        return (width * (width + 1) // 2,)

    def check_exchange(self, leaving: Tensor, coming: Tensor, names: Sequence[str]) -> None:
        # The weight of a class is inside the matrix: it changes only where all rows of the class are at hand.
        partly = (coming != leaving) & (leaving != self.count)
        for c in torch.nonzero(partly).flatten().tolist():
            raise DataError(
                f"Pooled sums cannot change the number of nodes of class {names[c]} exactly ({int(self.count[c])} "
                f"were learned, {int(leaving[c])} of them given back): give all its nodes at once, or learn with "
                "analytic.sums=per-class."
            )

    def take_in(self, sign: float, rows: Rows, sizes: Tensor) -> None:
        root = sizes.double().clamp_min(1).rsqrt()
        for piece, labels in rows.pieces(torch.arange(len(rows), device=root.device)):
            self.total.index_add_(0, labels, piece, alpha=sign)
            add_gram(self.gram, piece * root[labels, None], sign)

    def check_remainder(self, before: Self, classes: Tensor, names: Sequence[str]) -> None:
        super().check_remainder(before, classes, names)
        slack = SLACK * before.gram.diagonal().mean()
        if len(classes) and not _is_positive(mirrored(self.gram), float(slack)):
            raise _never_learned(", ".join(names[c] for c in classes.tolist()))

    def balanced_gram(self) -> Tensor:
        return self.gram

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"gram": packed(self.gram)}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device) -> Self:
        gram = tensors["gram"].to(device)
        # Files of earlier versions hold the whole matrix.
        whole = _unpacked(gram, tensors["total"].shape[1]) if gram.dim() == 1 else gram
        return super().of_tensors({**tensors, "gram": whole}, device)

    def merged(self, other: Self, places: Tensor, classes: int, names: Sequence[str]) -> Self:
        grown = self.grown(classes)
        shared = places[grown.count[places] > 0]
        if len(shared):
            raise DataError(
                f"Both models have learned class {names[int(shared[0])]}, and pooled sums cannot be weighted anew: "
                "learn with analytic.sums=per-class to merge models that share classes."
            )
        count, total = grown.count.index_add(0, places, other.count), grown.total.index_add(0, places, other.total)
        return replace(grown, count=count, total=total, gram=self.gram + other.gram)

    def without(self, c: int, names: Sequence[str]) -> Self:
        raise DataError(
            f"Pooled sums do not know which part of them is class {names[c]}: give all its nodes with --rows, "
            "or learn with analytic.sums=per-class."
        )


@dataclass(frozen=True, eq=False)
class PerClassSums(Sums):
    """A matrix a class: `gram` is (classes, width * (width + 1) / 2), lower halves row by row."""

    @classmethod
    def gram_shape(cls, width: int, classes: int) -> tuple[int, int]:
        return classes, width * (width + 1) // 2

    def grown(self, classes: int) -> Self:
        grown = super().grown(classes)
        return replace(grown, gram=torch.nn.functional.pad(self.gram, (0, 0, 0, classes - len(self.count))))

    def take_in(self, sign: float, rows: Rows, sizes: Tensor) -> None:
        for c in torch.unique(rows.labels).tolist():
            change = torch.zeros(self.width, self.width, dtype=torch.float64, device=self.gram.device)
            for piece, _ in rows.pieces(torch.nonzero(rows.labels == c).flatten()):
                self.total[c].add_(piece.sum(dim=0), alpha=sign)
                add_gram(change, piece, sign)
            self.gram[c] += packed(change)

    def check_remainder(self, before: Self, classes: Tensor, names: Sequence[str]) -> None:
        super().check_remainder(before, classes, names)
        for c in classes.tolist():
            whole = self.class_gram(c, before)
            size, n = whole.diagonal().mean(), int(self.count[c])
            left = self.class_gram(c)
            if n == 0:
                wrong = float(left.abs().max()) > SLACK * float(size)
            else:
                # What scatters around the mean of the remaining rows cannot be negative in any direction.
                scatter = left - torch.outer(self.total[c], self.total[c]) / n
                wrong = not _is_positive(scatter, SLACK * float(size))
            if wrong:
                raise _never_learned(names[c])

    def class_gram(self, c: int, of: Self | None = None) -> Tensor:
        """The matrix of one class, whole."""
        return mirrored(_unpacked((of or self).gram[c], self.width))

    def balanced_gram(self) -> Tensor:
        weights = self.count.double().clamp_min(1).reciprocal()
        return _unpacked(weights @ self.gram, self.width)

    def merged(self, other: Self, places: Tensor, classes: int, names: Sequence[str]) -> Self:
        grown = self.grown(classes)
        return replace(
            grown,
            count=grown.count.index_add(0, places, other.count),
            total=grown.total.index_add(0, places, other.total),
            gram=grown.gram.index_add(0, places, other.gram),
        )

    def without(self, c: int, names: Sequence[str]) -> Self:
        count = self.count.clone()
        count[c] = 0
        return replace(self, count=count)

    def of_classes(self, classes: Tensor) -> Self:
        return replace(super().of_classes(classes), gram=self.gram[classes])

    def pooled(self) -> PooledSums:
        """The same model in one matrix."""
        return PooledSums(self.count, self.total, self.balanced_gram())

    def tensors(self) -> dict[str, Tensor]:
        """In whole numbers of 32 bits where that is exact."""
        units = self.gram / grid(self.width) ** 2
        small = not len(units) or float(units.abs().max()) < 2**31
        whole = small and torch.equal(units, units.round())  # not so in files of earlier versions
        return super().tensors() | ({"gram": units.to(torch.int32)} if whole else {})

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device) -> Self:
        gram = tensors["gram"].to(device)
        if gram.dtype == torch.int32:
            gram = gram.double().mul_(grid(tensors["total"].shape[1]) ** 2)
        return super().of_tensors({**tensors, "gram": gram}, device)


SUMS: dict[str, type[Sums]] = {"pooled": PooledSums, "per-class": PerClassSums}


def _counted(rows: Rows | None, classes: int, device: torch.device) -> Tensor:
    if rows is None:
        return torch.zeros(classes, dtype=torch.int64, device=device)
    return torch.bincount(rows.labels, minlength=classes)


def packed(lower: Tensor) -> Tensor:
    """The lower half row by row: half the numbers. Without an index of every number, which would take twice as much."""
    return torch.cat([lower[row, : row + 1] for row in range(len(lower))])


def _unpacked(packed: Tensor, width: int) -> Tensor:
    lower = torch.zeros(width, width, dtype=packed.dtype, device=packed.device)
    for row, numbers in enumerate(torch.split(packed, list(range(1, width + 1)))):
        lower[row, : row + 1] = numbers
    return lower


def _is_positive(matrix: Tensor, slack: float) -> bool:
    """Whether a symmetric matrix is positive semi-definite but for rounding."""
    shifted = matrix.clone()
    shifted.diagonal().add_(max(slack, torch.finfo(matrix.dtype).tiny))
    return int(torch.linalg.cholesky_ex(shifted).info) == 0


def _never_learned(name: str) -> DataError:
    return DataError(
        f"What would remain of class {name} is no sum over nodes: the nodes to be forgotten are not those that were "
        "learned, or their graph has changed since."
    )
