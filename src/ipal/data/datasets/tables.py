"""A graph from a table of nodes and a table of edges, in memory (pandas, arrays, lists), CSV or Parquet files.

nodes   id; label; time, domain and split as in .npz files; every other column is features
edges   source, target: ids of nodes; weight; other columns are not used

Columns of numbers are features as they are, columns of texts one 0/1 column for every different text. Labels and values
may be missing (see labels.MISSING): a node without a label has none, a node without a value is refused.
CSV: commas, semicolons or tabs; UTF-8; names of columns in the first line.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from os.path import isfile
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ipal.data.dataset import FACTS
from ipal.data.datasets.readers import RawGraph
from ipal.data.feature_names import BETWEEN
from ipal.data.labels import WHOLE, is_missing, truth_as_numbers, written
from ipal.data.names import TABLES
from ipal.errors import DataError, say_unused, shortened
from ipal.system import free_memory
from ipal.system.files import open_plain
from ipal.system.optional import need_extra

MOST_LETTERS = 1000
"""Of one id, label or category."""
A_LETTER = 12
"""Bytes of memory that a byte of a CSV file takes: every cell is a string."""
SMALLER = "leave columns out, or convert it on a larger machine with 'ipal data --convert'"
OF_NODES = {
    "id": ("id", "node", "node_id"),
    "label": ("label", "class", "y", "target"),
    **{fact: (fact,) for fact in FACTS},
}
OF_EDGES = {
    "source": ("source", "src", "from"),
    "target": ("target", "dst", "to"),
    "weight": ("weight", "edge_weight"),
}
"""What a column is, by its name in any capitals."""


Column: TypeAlias = list[str] | NDArray[np.float64]
"""Texts, empty where there is none; or numbers, NaN where there is none, which may be a table, as vectors are."""


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by their names: arrays or lists of values, or of a CSV file lists of its cells."""

    where: str
    """As messages name it."""
    columns: Mapping[str, Any]
    delimiter: str = ""
    """Of a CSV file, whose numbers are texts; between semicolons 1.5 may be written 1,5."""

    @classmethod
    def of(cls, where: str, given: Iterable[tuple[str, Any]], delimiter: str = "") -> "Table":
        """Those columns that have a name, checked."""
        columns: dict[str, Any] = {}
        for name, values in given:
            if name in columns:
                raise DataError(f"{where} has two columns called {shortened(name)}: give each a name of its own.")
            if name:
                columns[name] = values
            else:
                say_unused(f"a column without a name in {where}")
        sizes = {name: len(values) for name, values in columns.items()}
        if len(set(sizes.values())) > 1:
            raise DataError(f"The columns of {where} have different lengths: {sizes}.")
        return cls(where, columns, delimiter)

    def words(self, name: str) -> list[str]:
        """A column as texts, even where it looks like numbers."""
        values = self.columns[name]
        values = values.tolist() if hasattr(values, "tolist") else list(values)
        try:
            known = {value: written(value) for value in set(values)}
        except TypeError as error:
            raise self.refused(name, "lists or the like") from error
        if wrong := next((text for text in known.values() if len(text) > MOST_LETTERS or "\0" in text), None):
            held = f"'{shortened(wrong, 40)}', {len(wrong)} letters (at most {MOST_LETTERS}) or with a zero byte"
            raise self.refused(name, held)
        return [known[value] for value in values]

    def column(self, name: str) -> Column:
        """A column as numbers where all are, else as texts."""
        values = self.columns[name]
        if self.delimiter:
            comma = self.delimiter == ";"
            numbers = ("nan" if is_missing(cell) else cell.replace(",", ".") if comma else cell for cell in values)
            with suppress(ValueError):
                if not any("_" in cell for cell in values):  # which Python reads over
                    return np.fromiter(map(float, numbers), dtype=np.float64)
            return self.words(name)
        kind = getattr(getattr(values, "dtype", None), "kind", "O")
        if kind in "fiub":
            is_pandas = hasattr(values, "isna")
            return values.to_numpy(np.float64, na_value=np.nan) if is_pandas else np.asarray(values, dtype=np.float64)
        values = values.tolist() if hasattr(values, "tolist") and kind not in "mM" else list(values)
        if values and all(isinstance(value, list | tuple | np.ndarray) for value in values):
            try:
                return np.array([np.asarray(value, dtype=np.float64) for value in values]).reshape(len(values), -1)
            except (ValueError, TypeError) as error:
                raise self.refused(name, "vectors of different lengths, or of no numbers") from error
        kinds = {type(value) for value in values if isinstance(value, np.ndarray) or written(value)}
        if kinds and all(issubclass(kind, str) for kind in kinds):
            return self.words(name)
        if all(issubclass(kind, int | float | np.number | np.bool_ | Decimal) for kind in kinds):
            return np.array([float(value) if written(value) else np.nan for value in values], dtype=np.float64)
        raise self.refused(name, f"values of the type {' and '.join(sorted(kind.__name__ for kind in kinds))}")

    def refused(self, name: str, held: str) -> DataError:
        return DataError(
            f"The column {shortened(name)} of {self.where} holds {held}: make it numbers or text, or leave it out."
        )


# ---------------------------------------------------------------------- files


def read_table(path: Path) -> Table:
    """The columns of a CSV or Parquet file that have a name."""
    try:
        with open_plain(path) as file:
            read = _read_parquet if path.suffix.lower() == ".parquet" else _read_csv
            return read(file, path.name)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}): give a CSV or Parquet file.") from error


def _read_csv(file: BinaryIO, where: str) -> Table:
    free_memory.need(A_LETTER * file.seek(0, io.SEEK_END), where, SMALLER)
    file.seek(0)
    try:
        with io.TextIOWrapper(file, "utf-8-sig", newline="") as lines:
            first = next((line for line in lines if line.strip()), "")
            delimiter = max(",;\t", key=re.sub('"[^"]*"', "", first).count)
            reader = csv.reader(chain([first], lines), delimiter=delimiter, skipinitialspace=True, strict=True)
            names = [name.strip() for name in next(reader, [])]
            columns: list[list[str]] = [[] for _ in names]
            for row in reader:
                if len(row) < 2 and not "".join(row).strip():  # a blank line
                    continue
                if len(row) != len(names):
                    raise DataError(
                        f"Row {len(columns[0]) + 1} of {where} has {len(row)} cells, and there are {len(names)} "
                        "columns: put quotes around text with separators in it, and write empty cells as such."
                    )
                for column, cell in zip(columns, row, strict=True):
                    column.append(cell)
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is no text in UTF-8: save it again as CSV in UTF-8.") from error
    except csv.Error as error:
        raise DataError(f"{where} is no sound CSV file ({error}): save it again as CSV.") from error
    return Table.of(where, zip(names, columns, strict=True), delimiter)


def _read_parquet(file: BinaryIO, where: str) -> Table:
    need_extra("tables", "pyarrow")
    import pyarrow
    from pyarrow import parquet

    try:
        source = parquet.ParquetFile(file)
        groups = map(source.metadata.row_group, range(source.metadata.num_row_groups))
        # As many values as it claims to hold, of all its columns.
        claimed = sum(group.column(place).num_values for group in groups for place in range(group.num_columns))
        free_memory.need(16 * claimed, where, SMALLER)
        read = source.read()
        read.validate(full=True)
        columns = [column.to_numpy() for column in read.columns]
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"{where} is damaged or no Parquet file: write it again.") from error
    return Table.of(where, zip(read.column_names, columns, strict=True))


# ---------------------------------------------------------------------- a graph


@dataclass(frozen=True)
class Roles:
    """Which column is what, where it is not called so; and which columns are features, None for all others."""

    said: Mapping[str, str] = field(default_factory=dict)
    features: Sequence[str] | None = None

    def of(self, table: Table, known: Mapping[str, tuple[str, ...]], needed: Sequence[str]) -> dict[str, str]:
        """The column of each role, which is the only one that is called so where others would become features."""
        said = {role: self.said[role] for role in known if role in self.said}
        found: dict[str, str] = {}
        for role, names in known.items():
            alike = [name for name in table.columns if name.lower() in names and name not in said.values()]
            if role in said:
                alike = [said[role], *(alike if known is OF_NODES and self.features is None else [])]
            if not alike and role not in needed:
                continue
            found[role] = alike[0] if alike else role
            if found[role] not in table.columns:
                has = f"it has {_listed(table.columns)}; rename the one that is meant"
                raise DataError(f"There is no column {found[role]} in {table.where}: {has}.")
            if len(alike) > 1:
                raise DataError(
                    f"Two columns of {table.where} may be its {role}, {alike[0]} and {alike[1]}: rename or remove the "
                    "one that is not, or name the features in Python, features=[…]."
                )
        return found


def pair_in(folder: Path) -> list[Path]:
    """The tables of a folder: nodes.csv or nodes.parquet, and the same for edges; none where one is missing."""
    paths = ([folder / f"{stem}{kind}" for kind in TABLES] for stem in ("nodes", "edges"))
    found = [next(filter(isfile, some), None) for some in paths]
    return [path for path in found if path] if all(found) else []


def read_tables(nodes: Path, edges: Path, roles: Roles | None = None) -> RawGraph:
    """Of a table of nodes and a table of edges."""
    return assembled(read_table(nodes), read_table(edges), roles or Roles())


def assembled(nodes: Table, edges: Table, roles: Roles) -> RawGraph:
    """The graph that two tables say."""
    mine = roles.of(nodes, OF_NODES, ("id",))
    theirs = roles.of(edges, OF_EDGES, ("source", "target"))
    words = nodes.words(mine["id"])
    if not words:
        raise DataError(f"{nodes.where} has no rows: it needs one for each node.")
    place = {word: row for row, word in enumerate(words)}
    if "" in place:
        raise DataError(f"Row {words.index('') + 1} of {nodes.where} has no id: every node needs one.")
    for row, word in enumerate(words):
        if place[word] != row:
            raise DataError(
                f"Rows {row + 1} and {place[word] + 1} of {nodes.where} are both '{shortened(word)}': keep one."
            )
    ids = np.array(words, dtype=np.int64 if all(WHOLE.fullmatch(word) for word in words) else np.str_)
    y = nodes.words(mine["label"]) if "label" in mine else [""] * len(words)
    others = [name for name in nodes.columns if name not in mine.values()]
    chosen = others if roles.features is None else roles.features
    if lacking := {*chosen} - {*others}:
        raise DataError(f"{nodes.where} has no column {min(lacking)} for features: it has {_listed(others)}.")
    x, columns = _features([name for name in others if name in chosen], nodes, len(words))
    return RawGraph(
        edges=np.array([_ends(place, edges, theirs[end], nodes.where) for end in ("source", "target")], dtype=np.int64),
        y=np.array(y, dtype=object),
        x=x,
        preprocessing="features as in the table",
        edge_weight=np.asarray(edges.column(theirs["weight"])) if "weight" in theirs else None,
        ids=None if ids.dtype.kind == "i" and np.array_equal(ids, np.arange(len(ids))) else ids,
        columns=columns,
        **{fact: np.asarray(nodes.column(mine[fact])) for fact in FACTS if fact in mine},
    )


def _ends(place: Mapping[str, int], edges: Table, name: str, where: str) -> list[int]:
    words = edges.words(name)
    for row, word in enumerate(words):
        if word not in place:
            raise DataError(
                f"Row {row + 1} of {edges.where} names the {name} '{shortened(word)}', which is not in {where}: add it."
            )
    return [place[word] for word in words]


def _features(chosen: Sequence[str], nodes: Table, n: int) -> tuple[NDArray[np.float32] | None, tuple[str, ...]]:
    """Features side by side, and what each column of them is."""
    names: list[str] = []
    parts: list[tuple[Any, Any]] = []  # where in the table of features, and what
    for name in chosen:
        column = _complete(name, nodes)
        if isinstance(column, list):
            place = {word: at for at, word in enumerate(sorted({*column}), len(names))}
            names += [f"{name}{BETWEEN}{word}" for word in place]
            parts.append(((range(n), [place[word] for word in column]), 1))
        else:
            values = column.reshape(n, -1)
            parts.append((np.s_[:, len(names) : len(names) + values.shape[1]], values))
            names += [name] if column.ndim == 1 else [f"{name}[{at}]" for at in range(column.shape[1])]
    if not names:
        return None, ()
    if len({*names}) < len(names):
        raise DataError(f"{nodes.where} has two features of the same name: rename columns that end like vector[0].")
    free_memory.need(4 * n * len(names), f"The features of {nodes.where}", "leave columns out")
    x = np.zeros((n, len(names)), dtype=np.float32)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        for where, values in parts:
            x[where] = values
    return x, tuple(names)


def _complete(name: str, nodes: Table) -> Column:
    """A column of features, of which none is missing."""
    shown = f"The column {shortened(name)} of {nodes.where}"
    if BETWEEN in name:
        raise DataError(f"{shown} has a '{BETWEEN}' in its name, which is for categories: rename it.")
    column = nodes.column(name)
    missing = np.array([is_missing(word) for word in column]) if isinstance(column, list) else np.isnan(column)
    if missing.any():
        raise DataError(
            f"{shown} has no value in row {np.argwhere(missing)[0][0] + 1}: fill it in, for example with the mean of "
            "the others or the word 'unknown', or leave the column out; if it holds the classes, its name is label "
            f"(in Python label='{shortened(name, 40)}')."
        )
    if isinstance(column, list) and (truth := truth_as_numbers(column)) != column:
        return np.array(truth, dtype=np.float64)
    return column


def _listed(names: Iterable[str]) -> str:
    return shortened(", ".join(names), 200) or "none"
