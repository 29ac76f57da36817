"""From a table of nodes and a table of edges to the parts of a graph.

nodes   id; label; time, domain and split as in .npz files; every other column is features
edges   source, target: ids of nodes; weight; other columns are not used

Columns of numbers are features as they are, columns of texts one 0/1 column for every different text. Labels and values
may be missing (see labels.MISSING): a node without a label has none, a node without a value is refused.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ipal.data.datasets.readers import FACTS, RawGraph
from ipal.data.datasets.tables.columns import Column, Table, Words
from ipal.data.datasets.tables.files import pair_in, read_table
from ipal.data.feature_names import BETWEEN, category
from ipal.data.labels import Labels, truth_as_numbers
from ipal.errors import DataError, shortened
from ipal.system import free_memory

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

    said: Mapping[str, str]
    features: Sequence[str] | None = None

    def find(self, role: str, table: Table) -> str | None:
        """The column with a role; None where there is none."""
        if role in self.said:
            if self.said[role] not in table.names:
                raise DataError(f"{_title(table)} has no column {self.said[role]}: it has {_listed(table.names)}.")
            return self.said[role]
        roles = OF_NODES if role in OF_NODES else OF_EDGES
        taken = {self.said.get(other) for other in roles}
        alike = [name for name in table.names if name.lower() in roles[role] and name not in taken]
        if len(alike) > 1:
            raise DataError(
                f"{_title(table)} has two columns that may be its {role}, {alike[0]} and {alike[1]}: rename or remove "
                "the one that is not."
            )
        return alike[0] if alike else None

    def need(self, role: str, table: Table, what: str) -> str:
        found = self.find(role, table)
        if found is None:
            raise DataError(
                f"{_title(table)} has no column {role} ({what}): it has {_listed(table.names)}; rename the one that is "
                "meant."
            )
        return found

    def chosen(self, others: Sequence[str], table: Table) -> list[str]:
        """Those of the other columns of nodes that are features."""
        if self.features is None:
            roles = {name: role for role, names in OF_NODES.items() for name in names}
            if alike := next((name for name in others if name.lower() in roles), None):
                raise DataError(
                    f"{_title(table)} has a column {alike}, which may be another {roles[alike.lower()]}: rename or "
                    "remove it, or name the features in Python, features=[…]."
                )
            return list(others)
        if lacking := {*self.features} - {*others}:
            raise DataError(f"{_title(table)} has no column {min(lacking)} for features: it has {_listed(others)}.")
        return [name for name in others if name in self.features]


def read_tables(nodes: Path, edges: Path | None = None, roles: Roles | None = None) -> RawGraph:
    """Of a table of nodes and a table of edges; `nodes` alone is the folder of both."""
    if edges is None:
        pair = pair_in(nodes)
        if pair is None:
            raise FileNotFoundError(nodes)
        nodes, edges = pair
    try:
        return assembled(read_table(nodes), read_table(edges), roles or Roles({}))
    except FileNotFoundError as error:
        raise DataError(f"The table {error.filename} does not exist.") from error


def assembled(nodes: Table, edges: Table, roles: Roles) -> RawGraph:
    """The graph that two tables say."""
    if not roles.find("id", nodes) and all(roles.find(end, nodes) for end in ("source", "target")):
        raise DataError(f"{nodes.where} is a table of edges: name the table of nodes first, as nodes.csv,edges.csv.")
    name, label = roles.need("id", nodes, "one name or number for each node"), roles.find("label", nodes)
    facts = {fact: column for fact in FACTS if (column := roles.find(fact, nodes)) is not None}
    own = {name, label, *facts.values()}
    features = roles.chosen([column for column in nodes.names if column not in own], nodes)
    given, ids = None if label is None else nodes.words(label), nodes.words(name)
    _check_ids(ids, given, nodes)
    x, columns = _features(features, nodes)
    return RawGraph(
        edges=_ends(ids, edges, nodes, roles),
        y=np.full(nodes.rows, "") if given is None else _labels(given, nodes),
        x=x,
        preprocessing="features as in the table" if x is not None else "",
        edge_weight=_weights(edges, roles),
        ids=_in_order(ids),
        columns=columns,
        **{fact: _whole(nodes, column) for fact, column in facts.items()},
    )


# ---------------------------------------------------------------------- nodes


def _check_ids(ids: Words, labels: Words | None, nodes: Table) -> None:
    if nodes.rows == 0:
        raise DataError(f"{nodes.where} has no rows: it needs one for each node.")
    if (ids.codes < 0).any():
        raise DataError(f"Row {_first(ids.codes < 0)} of {nodes.where} has no id: every node needs one.")
    if len(ids.words) == nodes.rows:
        return
    twice = int(np.bincount(ids.codes).argmax())
    rows = np.flatnonzero(ids.codes == twice)
    word = shortened(ids.words[twice])
    found = [] if labels is None else sorted({labels.words[code] for code in labels.codes[rows] if code >= 0})
    if len(found) > 1:
        raise DataError(
            f"Node '{word}' has two labels in {nodes.where}, '{shortened(found[0])}' and '{shortened(found[1])}': keep "
            "one row for each node, with the right one."
        )
    raise DataError(
        f"Node '{word}' is in {len(rows)} rows of {nodes.where}, the first two {rows[0] + 1} and {rows[1] + 1}: keep "
        "one row for each node."
    )


def _labels(words: Words, nodes: Table) -> Labels:
    try:
        return words.labels
    except DataError as error:
        raise DataError(f"{nodes.where}: {error}") from error


def _in_order(ids: Words) -> Labels | None:
    """Ids of nodes; None where they are 0, 1, 2, … as nodes are numbered anyway."""
    values = ids.ids
    return None if values.dtype.kind == "i" and np.array_equal(values, np.arange(len(values))) else values


def _whole(nodes: Table, name: str) -> NDArray[np.float64]:
    column = nodes.read(name, False)
    if isinstance(column, Words):
        word = shortened(next(iter(column.words), ""))
        raise DataError(f"The column {name} of {nodes.where} holds text, as '{word}': number it, or rename it.")
    return column


def _features(chosen: Sequence[str], nodes: Table) -> tuple[NDArray[np.float32] | None, tuple[str, ...]]:
    """Features side by side, and what each column of them is."""
    checked = {name: _checked(name, nodes) for name in chosen}
    names = [each for name, column in checked.items() for each in _names(name, column)]
    if not names:
        return None, ()
    if len({*names}) < len(names):
        twice = shortened(Counter(names).most_common(1)[0][0])
        raise DataError(f"{nodes.where} has two features called {twice}: rename a column.")
    free_memory.need(4 * nodes.rows * len(names), f"The features of {nodes.where}", "leave columns out")
    x = np.zeros((nodes.rows, len(names)), dtype=np.float32)
    at = 0
    for column in checked.values():
        if isinstance(column, Words):
            order = np.argsort(np.argsort(column.words))  # the same columns whichever row comes first
            x[np.arange(nodes.rows), at + order[column.codes]] = 1
            at += len(column.words)
        else:
            wide = column.reshape(nodes.rows, -1)
            with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
                x[:, at : at + wide.shape[1]] = wide
            at += wide.shape[1]
    return x, tuple(names)


def _names(name: str, column: Column) -> list[str]:
    """Of the features that a column becomes."""
    if isinstance(column, Words):
        return [category(name, word) for word in sorted(column.words)]
    return [name] if column.ndim == 1 else [f"{name}[{place}]" for place in range(column.shape[1])]


def _checked(name: str, nodes: Table) -> Column:
    """A column of features, of which none is missing."""
    column = nodes.read(name, False)
    shown = f"The column {shortened(name)} of {nodes.where}"
    if BETWEEN in name:
        raise DataError(f"{shown} has a '{BETWEEN}' in its name, which is for categories: rename it.")
    if isinstance(column, Words):
        column = column.there
        missing = column.codes < 0
    else:
        missing = np.asarray(np.isnan(column).reshape(nodes.rows, -1).any(axis=1))
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


# ---------------------------------------------------------------------- edges


def _ends(ids: Words, edges: Table, nodes: Table, roles: Roles) -> NDArray[np.int64]:
    place = {word: number for word, number in zip(ids.words, np.argsort(ids.codes).tolist(), strict=True)}
    found = np.empty((2, edges.rows), dtype=np.int64)
    for row, end in enumerate(("source", "target")):
        words = edges.words(roles.need(end, edges, "the id of a node"))
        if (words.codes < 0).any():
            raise DataError(f"Row {_first(words.codes < 0)} of {edges.where} has no {end}: every edge needs two ends.")
        numbers = np.array([place.get(word, -1) for word in words.words] or [-1], dtype=np.int64)
        found[row] = numbers[words.codes]
        if (unknown := found[row] < 0).any():
            at = int(unknown.argmax())
            word = shortened(words.words[words.codes[at]])
            raise DataError(
                f"Row {at + 1} of {edges.where} names the node '{word}', which is no id in {nodes.where} "
                f"({int(unknown.sum())} such rows): add the node, or remove the edges."
            )
    return found


def _weights(edges: Table, roles: Roles) -> NDArray[np.float64] | None:
    name = roles.find("weight", edges)
    if name is None:
        return None
    column = edges.read(name, False)
    if isinstance(column, Words) or column.ndim > 1:
        raise DataError(f"The column {name} of {edges.where} must hold one number for each edge: make it numbers.")
    wrong = ~(column >= 0) | np.isinf(column)
    if wrong.any():
        value = column[wrong.argmax()]
        found = "no weight" if np.isnan(value) else f"the weight {value:g}"
        raise DataError(
            f"Row {_first(wrong)} of {edges.where} has {found}: weights are finite and not negative (0 leaves the edge "
            f"out); change it, or rename the column {name} if it is no weight."
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
