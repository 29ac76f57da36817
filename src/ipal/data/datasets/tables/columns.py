"""A table as columns of numbers or of words, from whatever holds them: pandas, arrays, lists, files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ipal.data.labels import WHOLE, Labels, is_missing, labels_of, written
from ipal.errors import DataError, shortened

MOST_LETTERS = 1000
"""Of one id, label or category."""


@dataclass(frozen=True, eq=False)
class Words:
    """A column of texts, or of ids and labels of any kind: every different one once."""

    words: list[str]
    codes: NDArray[np.int32]
    """Place in `words` of each row's; -1 where there is none."""

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def ids(self) -> Labels:
        """As ids, of which none is missing: whole numbers where all are plainly written as such, else strings."""
        is_whole = all(WHOLE.fullmatch(word) for word in self.words)
        return np.array(self.words, dtype=np.int64 if is_whole else np.str_)[self.codes]

    @property
    def labels(self) -> Labels:
        """As labels."""
        return labels_of([*self.words, ""])[self.codes]

    @property
    def there(self) -> "Words":
        """Without the words that say that there is nothing."""
        return merged(["" if is_missing(word) else word for word in self.words], self.codes)


Column: TypeAlias = Words | NDArray[np.float64]
"""Numbers may be a table themselves, as vectors are; NaN where there is none."""


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of the same number of rows, each made when it is asked for."""

    where: str
    """As messages name it."""
    rows: int
    names: Sequence[str]
    read: Callable[[str, bool], Column]
    """A column by its name; as words even where it looks like numbers, if so asked."""

    def words(self, name: str) -> Words:
        """A column of ids or labels, without words that no row has, as categories of pandas may be."""
        column = self.read(name, True)
        assert isinstance(column, Words), "asked for as words"
        every, codes = np.unique(np.append(column.codes, -1), return_inverse=True)
        return Words([column.words[place] for place in every[1:].tolist()], (codes[:-1] - 1).astype(np.int32))


def merged(values: Sequence[Any], codes: NDArray[Any]) -> Words:
    """A column of words from different values and each row's place among them (-1: none)."""
    texts = [written(value) for value in values]
    if long := next((text for text in texts if len(text) > MOST_LETTERS), None):
        raise DataError(f"'{shortened(long, 40)}' has {len(long)} letters: ids and labels have at most {MOST_LETTERS}.")
    place = {text: number for number, text in enumerate(dict.fromkeys(filter(None, texts)))}
    number = np.array([*(place.get(text, -1) for text in texts), -1], dtype=np.int32)
    return Words(list(place), number[codes])


def column_of(values: Any, name: str, where: str) -> Column:
    """A column of numbers, vectors or texts from an array, a list or a column of pandas."""
    values = _plain(values)
    if isinstance(values, Words):
        return values
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return values.astype(np.float64)
    kinds = {type(value) for value in values if written(value)} if not _holds_vectors(values) else {list}
    refused = f"The column {shortened(name)} of {where} holds {{}}: make it numbers or text, or leave it out."
    if kinds == {list}:
        try:
            return np.array([np.asarray(value, dtype=np.float64) for value in values]).reshape(len(values), -1)
        except (ValueError, TypeError) as error:
            raise DataError(refused.format("vectors of different lengths, or of no numbers")) from error
    if kinds and all(issubclass(kind, str) for kind in kinds):
        return words_of(values)
    if all(issubclass(kind, int | float | np.number | np.bool_) for kind in kinds):
        return np.array([float(value) if written(value) else np.nan for value in values], dtype=np.float64)
    raise DataError(refused.format(f"values of the type {' and '.join(sorted(kind.__name__ for kind in kinds))}"))


def words_of(values: Any) -> Words:
    """A column of ids, labels or categories from an array, a list or a column of pandas."""
    values = _plain(values)
    if isinstance(values, Words):
        return values
    places: dict[Any, int] = {}
    every = values.tolist() if isinstance(values, np.ndarray) else values
    try:
        codes = np.fromiter((places.setdefault(value, len(places)) for value in every), dtype=np.int32)
    except TypeError as error:
        raise DataError("An id or a label is a list or the like: ids and labels are numbers or text.") from error
    return merged(list(places), codes)


def _plain(values: Any) -> Any:
    """A column of pandas as categories or an array; others as they are."""
    categories = getattr(values, "cat", None)
    if categories is not None:
        return merged(categories.categories.tolist(), categories.codes.to_numpy())
    if callable(getattr(values, "to_numpy", None)):
        kind = getattr(values.dtype, "kind", "O")
        if kind == "f" or (kind in "iub" and values.isna().any()):
            return values.to_numpy(dtype=np.float64, na_value=np.nan)
        return values.to_numpy()
    if callable(getattr(values, "numpy", None)):  # a tensor
        return values.numpy()
    return values


def _holds_vectors(values: Sequence[Any]) -> bool:
    return len(values) > 0 and all(isinstance(v, list | tuple | np.ndarray) or hasattr(v, "numpy") for v in values)


def table_of(columns: Mapping[str, Any], where: str) -> Table:
    """A table from named columns in memory."""
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise DataError(f"The columns of {where} have different lengths: {sizes}.")

    def read(name: str, words: bool) -> Column:
        return words_of(columns[name]) if words else column_of(columns[name], name, where)

    return Table(where, next(iter(sizes.values()), 0), list(columns), read)
