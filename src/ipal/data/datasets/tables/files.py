"""Tables in files: CSV (commas, semicolons or tabs; UTF-8; names of columns in the first line) and Parquet."""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
from numpy.typing import NDArray

from ipal.data.datasets.tables.columns import Column, Table, merged, words_of
from ipal.data.labels import is_missing
from ipal.errors import CapacityError, DataError, say_unused, shortened
from ipal.system import free_memory
from ipal.system.files import is_file, open_plain
from ipal.system.optional import need_extra

CELLS_AT_ONCE = 200_000
DELIMITERS = ",;\t"
PACKED = "\0"
SMALLER = "leave columns out, or convert it on a larger machine with 'ipal data --convert'"


def read_table(path: Path) -> Table:
    """The columns of a CSV or Parquet file that have a name."""
    try:
        with open_plain(path) as file:
            return KINDS[path.suffix.lower()](file, path.name)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}): give a CSV or Parquet file.") from error
    except CapacityError as error:
        raise CapacityError(f"{path}: {error}") from error


def pair_in(folder: Path) -> tuple[Path, Path] | None:
    """The tables of a folder: nodes.csv or nodes.parquet, and edges likewise."""
    found = [
        next((path for kind in KINDS if is_file(path := folder / f"{stem}{kind}")), None) for stem in ("nodes", "edges")
    ]
    return (found[0], found[1]) if found[0] and found[1] else None


# ---------------------------------------------------------------------- CSV


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
    names = _checked_names([name.strip() for name in next(reader, [])], where)
    packed: dict[str, list[str]] = {name: [] for name in names if name}
    rows, step = 0, max(1, CELLS_AT_ONCE // max(1, len(names)))
    filled = (row for row in reader if len(row) > 1 or "".join(row).strip())
    while some := list(islice(filled, step)):
        _check_widths(some, len(names), rows, where)
        for name, cells in zip(names, zip(*some, strict=True), strict=True):
            if name in packed:
                packed[name].append(PACKED.join(cells))
                if packed[name][-1].count(PACKED) >= len(cells):
                    raise DataError(f"{where} holds a zero byte, which is no text: save it again as CSV.")
        rows += len(some)
    return Table(where, rows, list(packed), lambda name, words: _unpacked(packed[name], words, comma=delimiter == ";"))


def _checked_names(names: list[str], where: str) -> list[str]:
    twice = next((name for name, count in Counter(names).items() if name and count > 1), None)
    if twice:
        raise DataError(f"{where} has two columns called {shortened(twice)}: give each column a name of its own.")
    if "" in names:
        say_unused(f"a column without a name in {where}")
    return names


def _check_widths(rows: list[list[str]], width: int, before: int, where: str) -> None:
    for place, row in enumerate(rows):
        if len(row) != width:
            raise DataError(
                f"Row {before + place + 1} of {where} has {len(row)} cells, and there are {width} columns: put quotes "
                "around text with separators in it, and write empty cells as such."
            )


def _unpacked(pieces: list[str], words: bool, *, comma: bool) -> Column:
    """A column of numbers where all cells are, else of words. `comma`: numbers may be written 1,5."""
    numbers: list[NDArray[np.float64]] = [np.zeros(0)]
    for piece in pieces if not words else ():
        cells = ["nan" if is_missing(cell) else cell for cell in piece.split(PACKED)]
        try:
            if "_" in piece:  # which Python reads over
                raise ValueError
            numbers.append(np.array([cell.replace(",", ".") for cell in cells] if comma else cells, dtype=np.float64))
        except ValueError:
            break
    if not words and len(numbers) > len(pieces):
        return np.concatenate(numbers)
    return words_of(cell for piece in pieces for cell in piece.split(PACKED))


# ---------------------------------------------------------------------- Parquet


def _read_parquet(file: BinaryIO, where: str) -> Table:
    need_extra("tables", "pyarrow")
    import pyarrow
    from pyarrow import parquet

    damaged = f"{where} is damaged or no Parquet file: write it again."
    try:
        source = parquet.ParquetFile(file)
        schema = source.schema_arrow
        names = [name for name in _checked_names(list(schema.names), where) if name]
        free_memory.need(16 * _values(source.metadata), "it", SMALLER)
        texts = [name for name in names if _is_text(schema.field(name).type)]
        file.seek(0)
        table = parquet.ParquetFile(file, read_dictionary=texts).read(columns=names)
        table.validate(full=True)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, UnicodeDecodeError) as error:
        raise DataError(damaged) from error
    return Table(where, int(table.num_rows), names, lambda name, words: _arrow_column(table[name], name, where, words))


def _values(metadata: Any) -> int:
    """How many values a file claims to hold, of all its columns."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    return sum(group.column(place).num_values for group in groups for place in range(group.num_columns))


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view") or str(kind).startswith("dictionary<values=string")


def _arrow_column(chunks: Any, name: str, where: str, words: bool) -> Column:
    from pyarrow import types

    values = chunks.combine_chunks()
    kind = values.type
    if words or _is_text(kind):
        coded = values if types.is_dictionary(kind) else values.dictionary_encode()
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return merged(coded.dictionary.to_pylist(), codes)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        flat, n = values.flatten(), len(values)
        sizes = values.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
        if values.null_count or (n and (sizes != sizes[0]).any()) or not _is_number(flat.type):
            raise DataError(f"The column {shortened(name)} of {where} must hold vectors of numbers, all of one length.")
        return _floats(flat).reshape(n, -1 if n else 0)
    if _is_number(kind) or types.is_null(kind):
        return _floats(values)
    raise DataError(f"The column {shortened(name)} of {where} holds {kind}: make it numbers or text, or leave it out.")


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def _floats(values: Any) -> NDArray[np.float64]:
    import pyarrow

    kind = pyarrow.float64()
    whole = values.cast(pyarrow.int8()) if pyarrow.types.is_boolean(values.type) else values
    return np.asarray(whole.cast(kind, safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False), dtype=np.float64)


KINDS: Mapping[str, Callable[[BinaryIO, str], Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
}
"""Readers by the ending of a file's name."""
