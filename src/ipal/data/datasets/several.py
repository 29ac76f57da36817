"""Several graphs as one dataset: side by side, no edge between them, features of all in the same number of columns."""

import hashlib
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ipal.data.csr import joined
from ipal.data.dataset import FACTS, Dataset
from ipal.data.graph import VALUES_AT_ONCE, Features, Graph
from ipal.data.labels import UNLABELLED, labelled
from ipal.system import free_memory

WIDTH = 512
"""Columns of the features of several graphs."""


def projected(x: Features, seed: int) -> NDArray[np.float32]:
    r"""Features of any width in w = `WIDTH` columns; squared lengths and distances are kept on average.

    .. math:: x R / \sqrt w, \quad R_{jk} \sim \mathcal N(0, 1)

    Source: Johnson & Lindenstrauss 1984, with the Gaussian matrix of Indyk & Motwani 1998.
    """
    matrix = np.random.default_rng(seed).standard_normal((x.shape[1], WIDTH)) / np.sqrt(WIDTH)
    found = np.empty((x.shape[0], WIDTH), dtype=np.float32)
    step = VALUES_AT_ONCE // max(WIDTH, x.shape[1]) + 1
    for begin in range(0, len(found), step):
        found[begin : begin + step] = x[begin : begin + step] @ matrix
    return found


def side_by_side(datasets: Sequence[Dataset]) -> Dataset:
    """The disjoint union of graphs: labels are numbered on, `domain` is the place of a node's graph.

    A graph's projection is drawn from its hash: the same beside any other graph. The hash of all is made of theirs,
    so that it does not depend on how a product is rounded.
    """
    sizes = [one.graph.num_nodes for one in datasets]
    widest = max(one.graph.num_features for one in datasets)
    needed = WIDTH * (4 * sum(sizes) + 8 * widest)
    free_memory.need(needed, "The table of their features", "name fewer or smaller graphs")
    x = np.empty((sum(sizes), WIDTH), dtype=np.float32)
    y, spans, classes = [], [], [0]
    for one, end in zip(datasets, accumulate(sizes), strict=True):
        x[end - len(one.y) : end] = projected(one.graph.x, int(one.hash, 16))
        there = labelled(one.y)
        labels = np.unique(one.y[there])
        y.append(np.where(there, classes[-1] + np.searchsorted(labels, one.y), UNLABELLED))
        classes.append(classes[-1] + len(labels))
        spans.append(f"{one.name}: classes {classes[-2]} to {classes[-1] - 1}, {one.preprocessing}")
    neighbours = joined([one.graph.neighbours for one in datasets])
    known = [name for name in FACTS if all(name in one.facts for one in datasets)]
    facts = {name: np.concatenate([one.facts[name] for one in datasets]) for name in known}
    projection = f"features projected to {WIDTH} columns by a Gaussian matrix for each graph"
    hashes = [projection, *(one.hash for one in datasets)]
    return Dataset(
        name=",".join(one.name for one in datasets),
        graph=Graph(x, neighbours, symmetric=all(one.graph.symmetric for one in datasets)),
        y=np.concatenate(y),
        split=tuple(np.diff(classes).tolist()),
        preprocessing="; ".join([*spans, projection]),
        remark="; ".join([projection, *(f"{one.name}: {one.remark}" for one in datasets if one.remark)]),
        known_hash=hashlib.sha256("\n".join(hashes).encode()).hexdigest(),
        facts=facts | {"domain": np.repeat(np.arange(len(datasets)), sizes)},
    )
