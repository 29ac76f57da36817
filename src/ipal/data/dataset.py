"""One labelled graph, what else is known of its nodes, and what its record must say."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.data.graph import Graph, check_finite, some_rows
from ipal.data.labels import Labels, labelled, whole_numbers
from ipal.errors import DataError

FACTS = {
    "time": ("as years, days or seconds", -(2**63), 2**63 - 1),
    "domain": ("0 or more", 0, 2**63 - 1),
    "split": ("0 training, 1 validation, 2 test, -1 not used", -1, 2),
}
"""What may be known of every node: when it came, which domain (as a graph or a community) it is of, what it is for.

What the whole number of a node says, and the smallest and largest one, by the name in files.
"""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A labelled graph, checked, and what its record must say."""

    name: str
    """As it was asked for."""
    graph: Graph
    """Features and edges."""
    y: Labels
    """Whole numbers or strings; see labels.py for nodes without one."""
    split: tuple[int, ...] | None
    """Classes per task where the benchmark says so; None leaves it to `ipal.TaskStream`, or to --split."""
    preprocessing: str
    """What was done to the features."""
    remark: str
    """What a result on this graph must say about itself; empty where nothing."""
    known_hash: str = ""
    """Of a graph folder: computed when it was written, verified at its first use. Of several graphs: made of theirs."""
    ids: Labels | None = None
    """What nodes are called, where that is not their number; no part of the hash."""
    facts: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """Those of `FACTS` that are known."""

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content."""
        return self.known_hash or content_hash(self.graph, self.y, self.facts)

    @property
    def num_classes(self) -> int:
        """Number of classes that nodes have as labels."""
        return len(np.unique(self.y[labelled(self.y)]))


def checked_facts(given: Mapping[str, Any], n: int) -> dict[str, NDArray[np.int64]]:
    """What a file or a value says of each of n nodes beside its label; what else it says is not looked at."""
    found = {}
    for name, (what, least, most) in FACTS.items():
        if (values := given.get(name)) is not None:
            numbers = whole_numbers(values) if values.shape == (n,) else None
            if numbers is None or ((numbers < least) | (numbers > most)).any():
                raise DataError(f"'{name}' must be {n} whole numbers, one per node, {what}.")
            found[name] = numbers
    return found


def content_hash(graph: Graph, y: Labels, facts: Mapping[str, NDArray[np.int64]] | None = None) -> str:
    """SHA-256 of features, edges, weights, labels and what is known of nodes, whatever file held them, some at a time.

    Features that are no finite numbers are refused in the same pass: a mapped graph is not read twice for it.
    """
    digest: Any = hashlib.sha256()
    x = graph.x
    for part in [x.indptr, x.indices, x.data] if isinstance(x, sp.csr_array) else [x]:
        _take_in(digest, part)
    by_source = graph.by_source
    digest.update(str((2, graph.num_edges)).encode())
    for end in (0, 1):
        for pair in by_source.edge_chunks():
            digest.update(pair[end])
    if by_source.weights is not None:
        digest.update(b"edge_weight")
        _take_in(digest, by_source.weights)
    if y.dtype.kind == "U":
        names, y = np.unique(y, return_inverse=True)
        digest.update(json.dumps(names.tolist()).encode())
    _take_in(digest, y)
    for name in FACTS:
        if facts and name in facts:
            digest.update(name.encode())
            _take_in(digest, facts[name])
    return str(digest.hexdigest())


def _take_in(digest: Any, values: NDArray[Any]) -> None:
    digest.update(str(values.shape).encode())
    for part in some_rows(values):
        whole = np.issubdtype(part.dtype, np.integer)
        if not whole:
            check_finite(part)
        digest.update(np.ascontiguousarray(part, dtype=np.int64 if whole else np.float32))
