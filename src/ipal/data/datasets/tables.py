"""From a table of nodes and a table of edges to the parts of a graph.

nodes   id; label; time, domain and split as in .npz files; every other column is features
edges   source, target: ids of nodes; weight; other columns are not used

Columns of numbers are features as they are, columns of texts one 0/1 column for every different text. Labels and values
may be missing (see labels.MISSING): a node without a label has none, a node without a value is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ipal.data.datasets.columns import Column, Table, Words, read_table
from ipal.data.datasets.readers import FACTS, RawGraph
from ipal.data.feature_names import BETWEEN, category
from ipal.data.labels import truth_as_numbers
from ipal.data.names import TABLES
from ipal.errors import DataError, shortened
from ipal.system import free_memory
from ipal.system.files import is_file

MOST_CATEGORIES = 256
"""Different texts of one column: a column with more is no category but a name."""
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


@dataclass(frozen=True)
class Roles:
    """Which column is what, where it is not called so; and which columns are features, None for all others."""

    said: Mapping[str, str] = field(default_factory=dict)
    features: Sequence[str] | None = None

    def of_nodes(self, table: Table) -> dict[str, str]:
        return self._found(table, OF_NODES, ("id",), others_count=self.features is None)

    def of_edges(self, table: Table) -> dict[str, str]:
        return self._found(table, OF_EDGES, ("source", "target"), others_count=False)

    def _found(
        self, table: Table, known: Mapping[str, tuple[str, ...]], needed: tuple[str, ...], *, others_count: bool
    ) -> dict[str, str]:
        """Which column has which role. `others_count`: a column that is like one of another role is not left alone."""
        said = {role: self.said[role] for role in known if role in self.said}
        found: dict[str, str] = {}
        for role, names in known.items():
            alike = [name for name in table.names if name.lower() in names and name not in said.values()]
            alike = [said[role], *(alike if others_count else [])] if role in said else alike
            if said.get(role, role) not in table.names and (role in said or (role in needed and not alike)):
                raise DataError(
                    f"{_title(table)} has no column {said.get(role, role)}: it has {_listed(table.names)}; rename the "
                    "one that is meant."
                )
            if len(alike) > 1:
                raise DataError(
                    f"{_title(table)} has two columns that may be its {role}, {alike[0]} and {alike[1]}: rename or "
                    "remove the one that is not, or name the features in Python, features=[…]."
                )
            found |= {role: alike[0]} if alike else {}
        return found

    def chosen(self, table: Table, taken: Mapping[str, str]) -> list[str]:
        """The columns of nodes that are features."""
        others = [name for name in table.names if name not in taken.values()]
        if lacking := {*(self.features or ())} - {*others}:
            raise DataError(f"{_title(table)} has no column {min(lacking)} for features: it has {_listed(others)}.")
        return [name for name in others if self.features is None or name in self.features]


def pair_in(folder: Path) -> tuple[Path, Path] | None:
    """The tables of a folder: nodes.csv or nodes.parquet, and edges likewise."""
    paths = ([folder / f"{stem}{kind}" for kind in TABLES] for stem in ("nodes", "edges"))
    nodes, edges = (next(filter(is_file, some), None) for some in paths)
    return (nodes, edges) if nodes and edges else None


def read_tables(nodes: Path, edges: Path | None = None, roles: Roles | None = None) -> RawGraph:
    """Of a table of nodes and a table of edges; `nodes` alone is the folder of both."""
    if edges is None:
        pair = pair_in(nodes)
        if pair is None:
            raise FileNotFoundError(nodes)
        nodes, edges = pair
    try:
        return assembled(read_table(nodes), read_table(edges), roles or Roles())
    except FileNotFoundError as error:
        raise DataError(f"The table {error.filename} does not exist.") from error


def assembled(nodes: Table, edges: Table, roles: Roles) -> RawGraph:
    """The graph that two tables say."""
    mine, theirs = roles.of_nodes(nodes), roles.of_edges(edges)
    features = roles.chosen(nodes, mine)
    ids = _ids(nodes, mine["id"])
    try:
        y = nodes.words(mine["label"]).labels if "label" in mine else np.full(nodes.rows, "")
    except DataError as error:
        raise DataError(f"{nodes.where}: {error}") from error
    x, columns = _features(features, nodes)
    names = ids.ids
    in_order = names.dtype.kind == "i" and np.array_equal(names, np.arange(len(names)))
    return RawGraph(
        edges=_ends(ids, edges, nodes, theirs),
        y=y,
        x=x,
        preprocessing="features as in the table" if x is not None else "",
        edge_weight=_weights(edges, theirs["weight"]) if "weight" in theirs else None,
        ids=None if in_order else names,
        columns=columns,
        **{fact: _numbers(nodes, mine[fact]) for fact in FACTS if fact in mine},
    )


def _ids(nodes: Table, name: str) -> Words:
    """What nodes are called, each once."""
    if nodes.rows == 0:
        raise DataError(f"{nodes.where} has no rows: it needs one for each node.")
    ids = nodes.words(name)
    if (ids.codes < 0).any():
        raise DataError(f"Row {_first(ids.codes < 0)} of {nodes.where} has no id: every node needs one.")
    if len(ids.words) < nodes.rows:
        twice = int(np.bincount(ids.codes).argmax())
        rows = np.flatnonzero(ids.codes == twice)
        raise DataError(
            f"Node '{shortened(ids.words[twice])}' is in {len(rows)} rows of {nodes.where}, rows {rows[0] + 1} "
            f"and {rows[1] + 1}: keep one row for each node."
        )
    return ids


def _numbers(table: Table, name: str) -> NDArray[np.float64]:
    column = table.column(name)
    if isinstance(column, Words) or column.ndim > 1:
        raise table.refused(name, "text" if isinstance(column, Words) else "vectors")
    return column


def _features(chosen: Sequence[str], nodes: Table) -> tuple[NDArray[np.float32] | None, tuple[str, ...]]:
    """Features side by side, and what each column of them is."""
    checked = {name: _checked(name, nodes) for name in chosen}
    names = [each for name, column in checked.items() for each in _names(name, column)]
    if not names:
        return None, ()
    if len({*names}) < len(names):
        raise DataError(f"{nodes.where} has two features of the same name: rename columns that end like vector[0].")
    free_memory.need(4 * nodes.rows * len(names), f"The features of {nodes.where}", "leave columns out")
    x = np.zeros((nodes.rows, len(names)), dtype=np.float32)
    at = 0
    for name, column in checked.items():
        part = x[:, at : at + len(_names(name, column))]
        if isinstance(column, Words):
            order = np.argsort(np.argsort(column.words))  # the same columns whichever row comes first
            part[np.arange(nodes.rows), order[column.codes]] = 1
        else:
            with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
                part[:] = column.reshape(nodes.rows, -1)
        at += part.shape[1]
    return x, tuple(names)


def _names(name: str, column: Column) -> list[str]:
    """Of the features that a column becomes."""
    if isinstance(column, Words):
        return [category(name, word) for word in sorted(column.words)]
    return [name] if column.ndim == 1 else [f"{name}[{place}]" for place in range(column.shape[1])]


def _checked(name: str, nodes: Table) -> Column:
    """A column of features, of which none is missing."""
    shown = f"The column {shortened(name)} of {nodes.where}"
    if BETWEEN in name:
        raise DataError(f"{shown} has a '{BETWEEN}' in its name, which is for categories: rename it.")
    column = nodes.column(name)
    column = column.there if isinstance(column, Words) else column
    missing = np.asarray(
        column.codes < 0 if isinstance(column, Words) else np.isnan(column).reshape(nodes.rows, -1).any(axis=1)
    )
    if missing.any():
        raise DataError(
            f"{shown} has no value in row {_first(missing)}: fill it in, for example with the mean of the others, or "
            "with a word of its own, as 'unknown', or leave the column out."
        )
    if not isinstance(column, Words):
        if np.isinf(column).any():
            raise DataError(f"{shown} holds an infinite number: replace it.")
        return column
    if len(column.words) > MOST_CATEGORIES:
        raise DataError(
            f"{shown} has {len(column.words)} different texts, as '{shortened(column.words[0], 40)}': at most "
            f"{MOST_CATEGORIES} can be categories; leave the column out, or make numbers of it."
        )
    truth = truth_as_numbers(column.words)
    return column if truth == column.words else np.array(truth, dtype=np.float64)[column.codes]


def _ends(ids: Words, edges: Table, nodes: Table, roles: Mapping[str, str]) -> NDArray[np.int64]:
    place = dict(zip(ids.words, np.argsort(ids.codes).tolist(), strict=True))
    found = np.empty((2, edges.rows), dtype=np.int64)
    for row, end in enumerate(("source", "target")):
        words = edges.words(roles[end])
        numbers = np.array([*(place.get(word, -1) for word in words.words), -1], dtype=np.int64)
        found[row] = numbers[words.codes]
        if (unknown := found[row] < 0).any():
            word = [*words.words, ""][words.codes[unknown.argmax()]]
            raise DataError(
                f"Row {_first(unknown)} of {edges.where} names the {end} '{shortened(word)}', which is no id in "
                f"{nodes.where} ({int(unknown.sum())} such rows): add the node, or remove the edges."
            )
    return found


def _weights(edges: Table, name: str) -> NDArray[np.float64]:
    column = _numbers(edges, name)
    wrong = ~(column >= 0) | np.isinf(column)
    if wrong.any():
        raise DataError(
            f"Row {_first(wrong)} of {edges.where} has the weight {column[wrong.argmax()]:g}: weights are finite and "
            f"not negative (0 leaves the edge out); change it, or rename the column {name} if it is no weight."
        )
    return column


def _first(wrong: NDArray[np.bool_]) -> int:
    """The first row that is wrong, counted from one."""
    return int(wrong.argmax()) + 1


def _title(table: Table) -> str:
    """Its name at the beginning of a sentence."""
    return f"The {table.where[4:]}" if table.where.startswith("the ") else table.where


def _listed(names: Sequence[str]) -> str:
    return shortened(", ".join(names), 200) if names else "none"
