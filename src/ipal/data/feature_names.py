"""Features by their names: the columns of one table in the order of another's, and what a model keeps of them."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from ipal.data.graph import Graph
from ipal.errors import DataError, say_unused, shortened

BETWEEN = "="
"""Stands between the name of a column of text and one of its categories: country=DE says whether a node is of it."""
HASHED = re.compile("#[0-9a-f]{16}")
MOST_KEPT = 20
"""Categories of one column of text that a model keeps: a column with more may be names of people."""


def kept_names(columns: Sequence[str]) -> tuple[str, ...]:
    """What a model keeps of the names of its features: those of columns as they are, hashes of categories.

    A column of more than `MOST_KEPT` categories is refused.
    """
    texts = Counter(name.partition(BETWEEN)[0] for name in columns if BETWEEN in name)
    for column, count in texts.items():
        if count > MOST_KEPT:
            raise DataError(
                f"The column {shortened(column)} has {count} different texts, and a model keeps at most {MOST_KEPT} of "
                "a column, as more may be names of people: leave the column out, or make numbers of it."
            )
    return tuple(map(_kept, columns))


def _kept(name: str) -> str:
    """The text of a category is hashed, unless it is already."""
    column, between, word = name.partition(BETWEEN)
    if not between or HASHED.fullmatch(word):
        return name
    return f"{column}{BETWEEN}#{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def arranged(graph: Graph, wanted: Sequence[str]) -> Graph:
    """The graph with the features that a model keeps, in that order; as it is where that is so, or nothing is known.

    Of a column of text, `country=DE` is one category: one that the graph does not have is 0 everywhere. Features that
    are not wanted are left out, with a warning.
    """
    given = graph.columns
    if not given or not wanted:
        return graph
    place = {_kept(name): number for number, name in enumerate(given)}
    if tuple(place) == tuple(wanted):
        return graph
    texts = {name.partition(BETWEEN)[0] for name in given if BETWEEN in name}
    for name in wanted:
        column, between, _ = name.partition(BETWEEN)
        if name not in place and not (between and column in texts):
            kind = "text" if between else "numbers"
            raise DataError(
                f"The graph has no column {shortened(column)} of {kind}, which the model has learned: add it."
            )
    unused = sorted(given[place[name]] for name in place.keys() - {*wanted})
    if unused:
        say_unused(f"{shortened(', '.join(unused))}, which the model has not learned from")
    found = [(place[name], number) for number, name in enumerate(wanted) if name in place]
    rows, columns = np.array(found, dtype=np.int64).reshape(-1, 2).T
    ones = np.ones(len(found), dtype=np.float32)
    x = graph.x @ sp.csr_array((ones, (rows, columns)), shape=(len(given), len(wanted)))
    names = tuple(given[place[name]] if name in place else name for name in wanted)
    return Graph(x, graph.neighbours, symmetric=graph.symmetric, columns=names)
