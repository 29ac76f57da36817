"""One labelled graph, what else is known of its nodes, and what its record must say."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.data.graph import Given, Graph, check_finite, some_rows
from ipal.data.labels import Labels, labelled, whole_numbers
from ipal.errors import DataError


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeFacts:
    """One whole number for every node, of each kind that is known."""

    time: NDArray[np.int64] | None = None
    """When each node came; None where that is not known."""
    domain: NDArray[np.int64] | None = None
    """Which domain, as a graph or a community, each node is of; None where that is not known."""
    parts: NDArray[np.int64] | None = None
    """0 for training, 1 for validation, 2 for the test, -1 for nodes that are not used; None where nobody has said."""

    @property
    def known(self) -> dict[str, NDArray[np.int64]]:
        """Those that are known, by the names that they have in files."""
        every = {"time": self.time, "domain": self.domain, "split": self.parts}
        return {name: values for name, values in every.items() if values is not None}


@dataclass(frozen=True, eq=False)
class Dataset(NodeFacts):
    """A labelled graph, checked, and what its record must say."""

    name: str
    graph: Graph
    y: Labels
    """Whole numbers or strings; see labels.py for nodes without one."""
    split: tuple[int, ...] | None
    """Classes per task where the benchmark says so; None leaves it to `ipal.TaskStream`, or to --split."""
    preprocessing: str
    remark: str
    """What a result on this graph must say about itself; empty where nothing."""
    beyond_task: bool
    """Whether the features of a node were made by looking at nodes of other tasks."""
    known_hash: str = ""
    """Of a graph folder: computed when it was written, verified at its first use. Of several graphs: made of theirs."""

    ids: Labels | None = None
    """What nodes are called, where that is not their number; no part of the hash."""

    @cached_property
    def hash(self) -> str:
        return self.known_hash or content_hash(self.graph, self.y, self)

    @property
    def columns(self) -> tuple[str, ...]:
        """What each feature is, where that is known."""
        return self.graph.columns

    @property
    def num_classes(self) -> int:
        return len(np.unique(self.y[labelled(self.y)]))


def checked_facts(n: int, *, time: Given = None, domain: Given = None, split: Given = None) -> NodeFacts:
    """What a file or a `Data` says of each of n nodes beside its label; `split` are the parts."""
    return NodeFacts(
        time=_per_node("time", time, n, "as years, days or seconds"),
        domain=_per_node("domain", domain, n, "0 or more", 0),
        parts=_per_node("split", split, n, "0 training, 1 validation, 2 test, -1 not used", -1, 2),
    )


def _per_node(
    name: str, values: Given, n: int, what: str, least: int = -(2**63), most: int = 2**63 - 1
) -> NDArray[np.int64] | None:
    """One whole number for every node, within limits."""
    if values is None:
        return None
    numbers = whole_numbers(values) if values.shape == (n,) else None
    if numbers is None or ((numbers < least) | (numbers > most)).any():
        raise DataError(f"'{name}' must be {n} whole numbers, one per node, {what}.")
    return numbers


def content_hash(graph: Graph, y: Labels, facts: NodeFacts | None = None) -> str:
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
    for name, values in facts.known.items() if facts else ():
        digest.update(name.encode())
        _take_in(digest, values)
    return str(digest.hexdigest())


def _take_in(digest: Any, values: NDArray[Any]) -> None:
    digest.update(str(values.shape).encode())
    for part in some_rows(values):
        whole = np.issubdtype(part.dtype, np.integer)
        if not whole:
            check_finite(part)
        digest.update(np.ascontiguousarray(part, dtype=np.int64 if whole else np.float32))
