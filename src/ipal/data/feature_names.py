"""Features by their names: the columns of one table in the order of another's."""

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from ipal.data.graph import Graph
from ipal.errors import DataError, say_unused, shortened


def arranged(graph: Graph, wanted: Sequence[str]) -> Graph:
    """The graph with the wanted features, in that order; as it is where that is so already, or nothing is known.

    Of a column of text, `country=DE` is one category: one that the graph does not have is 0 everywhere. Features that
    are not wanted are left out, with a warning.
    """
    given = graph.columns
    if not given or not wanted or given == tuple(wanted):
        return graph
    place = {name: number for number, name in enumerate(given)}
    texts = {name.partition("=")[0] for name in given if "=" in name}
    for name in wanted:
        if name not in place and not ("=" in name and name.partition("=")[0] in texts):
            lacking = shortened(name.partition("=")[0])
            raise DataError(f"The graph has no column {lacking}, which the model has learned from: add it.")
    unused = sorted(set(given) - set(wanted))
    if unused:
        say_unused(f"{shortened(', '.join(unused))}, which the model has not learned from")
    found = [(place[name], number) for number, name in enumerate(wanted) if name in place]
    rows, columns = np.array(found, dtype=np.int64).reshape(-1, 2).T
    ones = np.ones(len(found), dtype=np.float32)
    x = graph.x @ sp.csr_array((ones, (rows, columns)), shape=(len(given), len(wanted)))
    return Graph.of(x, graph.neighbours, symmetric=graph.symmetric, columns=tuple(wanted))
