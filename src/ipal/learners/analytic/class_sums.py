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
from typing import Any, Self

import torch
from torch import Tensor

from ipal.backend.distributed import ONE_PROCESS, Team
from ipal.errors import DataError
from ipal.learners.analytic.lower_half import add_gram, is_positive, mirrored, packed, unpacked
from ipal.learners.analytic.rows import Rows, grid

SLACK = 1e-8
"""Of the mean diagonal: how negative rounding alone may make a sum of squares."""
MANY = 256
"""Rows of a class that are worth products of their own, where classes share a matrix."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Number and sum of the rows of every class, in the learner's order; what more is kept, a subclass says."""

    count: Tensor
    """(classes,)"""
    total: Tensor
    """(classes, width)"""
    gram: Any
    """Sums of products: one tensor, or one for every class."""

    @classmethod
    def empty(cls, width: int, device: torch.device) -> Self:
        count, total = torch.zeros(0, dtype=torch.int64, device=device), _zeros(0, width, device=device)
        return cls(count, total, cls.no_gram(width, device))

    @classmethod
    def no_gram(cls, width: int, device: torch.device) -> Any:
        """The sums of products before the first row."""
        raise NotImplementedError

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
        more, pad = classes - len(self.count), torch.nn.functional.pad
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
        remainder = self.less(old, team)
        # Looked at before anything new could hide that too much was taken away.
        remainder.check_remainder(self, torch.nonzero(leaving).flatten(), names)
        return remainder.more(new, team)

    def less(self, rows: Rows | None, team: Team) -> Self:
        """Without rows that are sure to have been learned."""
        return self._changed(
            -1.0, rows, self.count - _counted(rows, len(self.count), self.count.device), self.count, team
        )

    def more(self, rows: Rows | None, team: Team) -> Self:
        """With rows."""
        count = self.count + _counted(rows, len(self.count), self.count.device)
        return self._changed(1.0, rows, count, count, team)

    def _changed(self, sign: float, rows: Rows | None, count: Tensor, sizes: Tensor, team: Team) -> Self:
        """With rows added or taken away, which are weighted by these sizes of their classes.

        What changes is copied, and the rest is shared: a few rows of a few classes cost little. Of several processes
        each takes in its share of the rows.
        """
        if not rows:
            return self
        classes, alone, share = torch.unique(rows.labels).tolist(), team.size == 1, team.share(len(rows))
        before = self.parts(classes)
        after = [part.clone() if alone else torch.zeros_like(part) for part in before]
        changed = self.with_parts(classes, after, count)
        own = rows if alone else rows.chosen(torch.arange(share.begin, share.end, device=rows.labels.device))
        changed.take_in(sign, own, sizes)
        if not alone:
            team.all_reduce(*after)
            for part, old in zip(after, before, strict=True):
                part.add_(old)
        return changed

    def parts(self, classes: Sequence[int]) -> list[Tensor]:
        """All that rows of some classes are added to."""
        raise NotImplementedError

    def with_parts(self, classes: Sequence[int], parts: Sequence[Tensor], count: Tensor) -> Self:
        """With others in their place."""
        raise NotImplementedError

    def check_exchange(self, leaving: Tensor, coming: Tensor, names: Sequence[str]) -> None:
        """Refuse what cannot be done exactly."""

    def take_in(self, sign: float, rows: Rows, sizes: Tensor) -> None:
        """Add rows to the parts of their classes in place, which nobody else holds yet."""
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

    def united(self, places: Tensor, classes: int, names: Sequence[str]) -> Self:
        """So many classes, drawn together: class i is a part of class `places[i]`."""
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

    gram: Tensor

    @classmethod
    def no_gram(cls, width: int, device: torch.device) -> Tensor:
        return _zeros(width, width, device=device)

    def parts(self, classes: Sequence[int]) -> list[Tensor]:
        return [self.total, self.gram]

    def with_parts(self, classes: Sequence[int], parts: Sequence[Tensor], count: Tensor) -> Self:
        return replace(self, count=count, total=parts[0], gram=parts[1])

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
        large = torch.nonzero(torch.bincount(rows.labels, minlength=len(sizes)) >= MANY).flatten()
        for c, n in zip(large.tolist(), sizes[large].tolist(), strict=True):
            rows.add_class(c, self.total, self.gram, sign, sign / n)
        # Classes of few rows together, with the root of the weight in their rows.
        root = sizes.double().clamp_min(1).rsqrt()
        for piece, labels in rows.pieces(torch.nonzero(~torch.isin(rows.labels, large)).flatten()):
            self.total.index_add_(0, labels, piece, alpha=sign)
            add_gram(self.gram, piece * root[labels, None], sign)

    def check_remainder(self, before: Self, classes: Tensor, names: Sequence[str]) -> None:
        super().check_remainder(before, classes, names)
        slack = SLACK * before.gram.diagonal().mean()
        if len(classes) and not is_positive(mirrored(self.gram), float(slack)):
            raise _never_learned(", ".join(names[c] for c in classes.tolist()))

    def balanced_gram(self) -> Tensor:
        return self.gram

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"gram": packed(self.gram)}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device) -> Self:
        gram = tensors["gram"].to(device)
        # Files of earlier versions hold the whole matrix.
        whole = unpacked(gram, tensors["total"].shape[1]) if gram.dim() == 1 else gram
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

    def united(self, places: Tensor, classes: int, names: Sequence[str]) -> Self:
        shared = torch.bincount(places, minlength=classes) > 1
        some = ", ".join(names[c] for c in torch.nonzero(shared[places]).flatten().tolist())
        raise DataError(
            f"Pooled sums do not know which part of them is of the classes {some}, and cannot weigh them as one: learn "
            "with analytic.sums=per-class."
        )


@dataclass(frozen=True, eq=False)
class PerClassSums(Sums):
    """A matrix a class: `gram` has its lower half, row by row, of every class: width * (width + 1) / 2 numbers."""

    gram: tuple[Tensor, ...]

    @classmethod
    def no_gram(cls, width: int, device: torch.device) -> tuple[Tensor, ...]:
        return ()

    def parts(self, classes: Sequence[int]) -> list[Tensor]:
        return [self.total, *(self.gram[c] for c in classes)]

    def with_parts(self, classes: Sequence[int], parts: Sequence[Tensor], count: Tensor) -> Self:
        gram = list(self.gram)
        for c, part in zip(classes, parts[1:], strict=True):
            gram[c] = part
        return replace(self, count=count, total=parts[0], gram=tuple(gram))

    @classmethod
    def gram_shape(cls, width: int, classes: int) -> tuple[int, int]:
        return classes, width * (width + 1) // 2

    def grown(self, classes: int) -> Self:
        size, device = self.gram_shape(self.width, 1)[1], self.total.device
        more = (_zeros(size, device=device) for _ in range(classes - len(self.count)))
        return replace(super().grown(classes), gram=(*self.gram, *more))

    def take_in(self, sign: float, rows: Rows, sizes: Tensor) -> None:
        for c in torch.unique(rows.labels).tolist():
            change = _zeros(self.width, self.width, device=self.total.device)
            rows.add_class(c, self.total, change, sign, sign)
            self.gram[c].add_(packed(change))

    def check_remainder(self, before: Self, classes: Tensor, names: Sequence[str]) -> None:
        super().check_remainder(before, classes, names)
        for c in classes.tolist():
            left, n = self.class_gram(c), int(self.count[c])
            size = before.class_gram(c).diagonal().mean()
            if n == 0:
                wrong = float(left.abs().max()) > SLACK * float(size)
            else:
                # What scatters around the mean of the remaining rows cannot be negative in any direction.
                scatter = left - torch.outer(self.total[c], self.total[c]) / n
                wrong = not is_positive(scatter, SLACK * float(size))
            if wrong:
                raise _never_learned(names[c])

    def class_gram(self, c: int) -> Tensor:
        """The matrix of one class, whole."""
        return mirrored(unpacked(self.gram[c], self.width))

    def balanced_gram(self) -> Tensor:
        whole = _zeros(self.gram_shape(self.width, 1)[1], device=self.total.device)
        for gram, n in zip(self.gram, self.count.clamp_min(1).tolist(), strict=True):
            whole.add_(gram, alpha=1 / n)
        return unpacked(whole, self.width)

    def merged(self, other: Self, places: Tensor, classes: int, names: Sequence[str]) -> Self:
        grown = self.grown(classes)
        count, total = grown.count.index_add(0, places, other.count), grown.total.index_add(0, places, other.total)
        gram = list(grown.gram)
        for place, theirs in zip(places.tolist(), other.gram, strict=True):
            gram[place] = gram[place] + theirs
        return replace(grown, count=count, total=total, gram=tuple(gram))

    def without(self, c: int, names: Sequence[str]) -> Self:
        count = self.count.clone()
        count[c] = 0
        return replace(self, count=count)

    def united(self, places: Tensor, classes: int, names: Sequence[str]) -> Self:
        return self.empty(self.width, self.total.device).merged(self, places, classes, names)

    def of_classes(self, classes: Tensor) -> Self:
        return replace(super().of_classes(classes), gram=tuple(self.gram[c] for c in classes.tolist()))

    def pooled(self) -> PooledSums:
        """The same model in one matrix."""
        return PooledSums(self.count, self.total, self.balanced_gram())

    def tensors(self) -> dict[str, Tensor]:
        """In whole numbers of 32 bits where that is exact."""
        whole = [_in_units(gram, grid(self.width) ** 2) for gram in self.gram]
        exact = [one for one in whole if one is not None]
        found = exact if len(exact) == len(whole) else self.gram
        none = self.count.new_zeros(self.gram_shape(self.width, 0), dtype=torch.int32)
        return super().tensors() | {"gram": torch.stack(list(found)) if found else none}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device) -> Self:
        gram = tensors["gram"].to(device)
        unit = grid(tensors["total"].shape[1]) ** 2 if gram.dtype == torch.int32 else 1.0
        count, total = (tensors[name].to(device) for name in ("count", "total"))
        return cls(count, total, tuple(one.double() * unit for one in gram))


SUMS: dict[str, type[Sums]] = {"pooled": PooledSums, "per-class": PerClassSums}


def _counted(rows: Rows | None, classes: int, device: torch.device) -> Tensor:
    if rows is None:
        return torch.zeros(classes, dtype=torch.int64, device=device)
    return torch.bincount(rows.labels, minlength=classes)


def _in_units(gram: Tensor, unit: float) -> Tensor | None:
    """In whole numbers of 32 bits, unless some are too large, or no whole ones, as in files of earlier versions."""
    units = gram / unit
    small = float(units.abs().max()) < 2**31
    return units.to(torch.int32) if small and torch.equal(units, units.round()) else None


def _zeros(*shape: int, device: torch.device) -> Tensor:
    return torch.zeros(*shape, dtype=torch.float64, device=device)


def _never_learned(name: str) -> DataError:
    return DataError(
        f"What would remain of class {name} is no sum over nodes: the nodes to be forgotten are not those that were "
        "learned, or their graph has changed since."
    )
