"""Tables as columns of numbers or of words: from memory (pandas, arrays, lists), CSV files and Parquet files.

CSV: commas, semicolons or tabs; UTF-8; names of columns in the first line.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ipal.data.labels import WHOLE, Labels, is_missing, labels_of, written
from ipal.errors import CapacityError, DataError, say_unused, shortened
from ipal.system import free_memory
from ipal.system.files import open_plain
from ipal.system.optional import need_extra

MOST_LETTERS = 1000
"""Of one id, label or category."""
CELLS_AT_ONCE = 200_000
DELIMITERS = ",;\t"
PACKED = "\0"
SMALLER = "leave columns out, or convert it on a larger machine with 'ipal data --convert'"


@dataclass(frozen=True, eq=False)
class Words:
    """A column of texts, or of ids and labels of any kind: every different one once."""

    words: list[str]
    codes: NDArray[np.int32]
    """Place in `words` of each row's; -1 where there is none."""

    @classmethod
    def of(cls, values: Iterable[Any]) -> "Words":
        places: dict[Any, int] = {}
        try:
            codes = np.fromiter((places.setdefault(value, len(places)) for value in values), dtype=np.int32)
        except TypeError as error:
            raise DataError("An id or a label is a list or the like: ids and labels are numbers or text.") from error
        return cls._merged([written(value) for value in places], codes)

    @classmethod
    def _merged(cls, texts: list[str], codes: NDArray[np.int32]) -> "Words":
        """Of texts that may be alike or empty, and each row's place among them."""
        if long := next((text for text in texts if len(text) > MOST_LETTERS), None):
            raise DataError(
                f"'{shortened(long, 40)}' has {len(long)} letters: ids and labels have at most {MOST_LETTERS}."
            )
        place = {text: number for number, text in enumerate(dict.fromkeys(filter(None, texts)))}
        return cls(list(place), np.array([*(place.get(text, -1) for text in texts), -1], dtype=np.int32)[codes])

    @property
    def ids(self) -> Labels:
        """As ids, of which none is missing: whole numbers where all are plainly written as such, else strings."""
        is_whole = all(WHOLE.fullmatch(word) for word in self.words)
        return np.array(self.words, dtype=np.int64 if is_whole else np.str_)[self.codes]

    @property
    def labels(self) -> Labels:
        return labels_of([*self.words, ""])[self.codes]

    @property
    def there(self) -> "Words":
        """Without the words that say that there is nothing."""
        return self._merged(["" if is_missing(word) else word for word in self.words], self.codes)


Column: TypeAlias = Words | NDArray[np.float64]
"""Numbers may be a table themselves, as vectors are; NaN where there is none."""


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of the same number of rows, each made when it is asked for."""

    where: str
    """As messages name it."""
    rows: int
    names: Sequence[str]
    words: Callable[[str], Words]
    """A column as words, even where it looks like numbers."""
    column: Callable[[str], Column]
    """A column as numbers where all are, else as words."""

    def refused(self, name: str, held: str) -> DataError:
        return DataError(
            f"The column {shortened(name)} of {self.where} holds {held}: make it numbers or text, or leave it out."
        )


# ---------------------------------------------------------------------- memory


def table_of(columns: Mapping[str, Any], where: str) -> Table:
    """A table from named columns in memory."""
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise DataError(f"The columns of {where} have different lengths: {sizes}.")

    def words(name: str) -> Words:
        values = columns[name]
        return Words.of(values.tolist() if hasattr(values, "tolist") else values)

    def column(name: str) -> Column:
        values = columns[name]
        if getattr(getattr(values, "dtype", None), "kind", "O") in "fiub":
            is_pandas = hasattr(values, "isna")
            return values.to_numpy(np.float64, na_value=np.nan) if is_pandas else np.asarray(values, dtype=np.float64)
        if hasattr(values, "cat"):  # of pandas, with the categories that no node is of
            return Words._merged(list(map(written, values.cat.categories)), values.cat.codes.to_numpy())
        values = values.tolist() if hasattr(values, "tolist") else values
        if len(values) and all(isinstance(value, list | tuple | np.ndarray) for value in values):
            try:
                return np.array([np.asarray(value, dtype=np.float64) for value in values]).reshape(len(values), -1)
            except (ValueError, TypeError) as error:
                raise table.refused(name, "vectors of different lengths, or of no numbers") from error
        kinds = {type(value) for value in values if written(value)}
        if kinds and all(issubclass(kind, str) for kind in kinds):
            return Words.of(values)
        if all(issubclass(kind, int | float | np.number | np.bool_) for kind in kinds):
            return np.array([float(value) if written(value) else np.nan for value in values], dtype=np.float64)
        raise table.refused(name, f"values of the type {' and '.join(sorted(kind.__name__ for kind in kinds))}")

    table = Table(where, next(iter(sizes.values()), 0), list(columns), words, column)
    return table


# ---------------------------------------------------------------------- files


def read_table(path: Path) -> Table:
    """The columns of a CSV or Parquet file that have a name."""
    try:
        with open_plain(path) as file:
            read = _read_parquet if path.suffix.lower() == ".parquet" else _read_csv
            return read(file, path.name)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}): give a CSV or Parquet file.") from error
    except CapacityError as error:
        raise CapacityError(f"{path}: {error}") from error


def _named(names: list[str], where: str) -> list[str]:
    twice = next((name for name, count in Counter(names).items() if name and count > 1), None)
    if twice:
        raise DataError(f"{where} has two columns called {shortened(twice)}: give each column a name of its own.")
    if "" in names:
        say_unused(f"a column without a name in {where}")
    return [name for name in names if name]


def _read_csv(file: BinaryIO, where: str) -> Table:
    free_memory.need(4 * file.seek(0, io.SEEK_END), "it", SMALLER)
    file.seek(0)
    try:
        with io.TextIOWrapper(file, "utf-8-sig", newline="") as lines:
            return _parsed(lines, where)
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is no text in UTF-8: save it again as CSV in UTF-8.") from error
    except csv.Error as error:
        raise DataError(f"{where} is no sound CSV file ({error}): save it again as CSV.") from error


def _parsed(lines: TextIO, where: str) -> Table:
    """The cells of a column stay text, packed, until all are there: one letter at the end makes all of them text."""
    first = next((line for line in lines if line.strip()), "")
    delimiter = max(DELIMITERS, key=re.sub('"[^"]*"', "", first).count)
    reader = csv.reader(chain([first], lines), delimiter=delimiter, skipinitialspace=True, strict=True)
    header = [name.strip() for name in next(reader, [])]
    packed: dict[str, list[str]] = {name: [] for name in _named(header, where)}
    rows, step = 0, max(1, CELLS_AT_ONCE // max(1, len(header)))
    filled = (row for row in reader if len(row) > 1 or "".join(row).strip())
    while some := list(islice(filled, step)):
        for place, row in enumerate(some):
            if len(row) != len(header):
                raise DataError(
                    f"Row {rows + place + 1} of {where} has {len(row)} cells, and there are {len(header)} columns: put "
                    "quotes around text with separators in it, and write empty cells as such."
                )
        for name, cells in zip(header, zip(*some, strict=True), strict=True):
            if name:
                packed[name].append(PACKED.join(cells))
                if packed[name][-1].count(PACKED) >= len(cells):
                    raise DataError(f"{where} holds a zero byte, which is no text: save it again as CSV.")
        rows += len(some)

    def words(name: str) -> Words:
        return Words.of(cell for piece in packed[name] for cell in piece.split(PACKED))

    def column(name: str) -> Column:
        try:
            return np.concatenate([np.zeros(0), *(_numbers(piece, delimiter == ";") for piece in packed[name])])
        except ValueError:
            return words(name)

    return Table(where, rows, list(packed), words, column)


def _numbers(piece: str, comma: bool) -> NDArray[np.float64]:
    """A ValueError where not all are. `comma`: numbers may be written 1,5."""
    if "_" in piece:  # which Python reads over
        raise ValueError
    cells = ("nan" if is_missing(cell) else cell for cell in piece.split(PACKED))
    return np.array([cell.replace(",", ".") if comma else cell for cell in cells], dtype=np.float64)


def _read_parquet(file: BinaryIO, where: str) -> Table:
    need_extra("tables", "pyarrow")
    import pyarrow
    from pyarrow import parquet, types

    def is_text(kind: Any) -> bool:
        return str(kind) in ("string", "large_string", "string_view") or str(kind).startswith("dictionary<values=str")

    def is_number(kind: Any) -> bool:
        known = types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null
        return any(is_one(kind) for is_one in known)

    try:
        source = parquet.ParquetFile(file)
        schema, groups = source.schema_arrow, map(source.metadata.row_group, range(source.metadata.num_row_groups))
        names = _named(list(schema.names), where)
        # As many values as it claims to hold, of all its columns; each different text is kept once.
        claimed = sum(group.column(place).num_values for group in groups for place in range(group.num_columns))
        free_memory.need(16 * claimed, "it", SMALLER)
        texts = [name for name in names if is_text(schema.field(name).type)]
        file.seek(0)
        read = parquet.ParquetFile(file, read_dictionary=texts).read(columns=names)
        read.validate(full=True)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{where} is damaged or no Parquet file: write it again.") from error

    def words(name: str) -> Words:
        return Words.of(chain.from_iterable(chunk.to_pylist() for chunk in read[name].chunks))

    def column(name: str) -> Column:
        values = read[name].combine_chunks()
        if is_text(values.type):
            return words(name)
        if is_number(values.type):
            return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64)
        is_list = types.is_list, types.is_large_list, types.is_fixed_size_list
        if not (any(is_one(values.type) for is_one in is_list) and is_number(values.type.value_type)):
            raise table.refused(name, str(values.type))
        if values.null_count or len(values.value_lengths().unique()) > 1:
            raise table.refused(name, "vectors of different lengths")
        flat = np.asarray(values.flatten().to_numpy(zero_copy_only=False), dtype=np.float64)
        return flat.reshape(len(values), -1 if len(values) else 0)

    table = Table(where, int(read.num_rows), names, words, column)
    return table
