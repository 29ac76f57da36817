"""A graph of six nodes, written in every raw format; the stream of a dataset."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ipal.config import run_config
from ipal.data.datasets import Dataset, catalog
from ipal.data.graph import Graph
from ipal.runs.resolved import Resolver
from tests.support import sparse_parts

# Six nodes: an edge both ways, a self-loop, edges one way, and node 5 alone.
EDGES = np.array([[0, 1, 1, 2, 2, 3], [1, 0, 2, 2, 3, 4]])
UNDIRECTED = {(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (3, 4), (4, 3)}
DIRECTED = {(0, 1), (1, 0), (1, 2), (2, 3), (3, 4)}
Y = np.array([0, 0, 1, 1, 2, 2])
COUNTS = np.array(
    [[2, 0, 0, 1], [0, 3, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 5, 0], [0, 0, 0, 7]], dtype=np.float32
)


def pairs(edges: NDArray[np.int64]) -> set[tuple[int, int]]:
    found = list(map(tuple, edges.T.tolist()))
    assert len(found) == len(set(found)), "an edge is there twice"
    return set(found)


def dense(graph: Graph) -> NDArray[np.float32]:
    return graph.x.toarray() if isinstance(graph.x, sp.csr_array) else graph.x


def adjacency(edges: NDArray[np.int64] = EDGES, n: int = 6) -> sp.csr_array:
    return sp.csr_array((np.ones(edges.shape[1], dtype=np.float32), (edges[0], edges[1])), shape=(n, n))


def stream_of(dataset: Dataset, stream: Any = "class", seed: int = 0, **protocol: Any) -> Any:
    """The stream of a run on a dataset."""
    config = run_config({"dataset": dataset.name, "seed": seed, "protocol": {"stream": stream, **protocol}})
    return Resolver().resolve(config, dataset).stream


def put_benchmark(root: Path, name: str = "cs", **changes: object) -> Path:
    """A file in the format of Coauthor, Amazon and CitationFull, where `name` is looked for."""
    path = root / catalog.CATALOG[name].path
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        **sparse_parts("adj", adjacency()),
        **sparse_parts("attr", sp.csr_array(COUNTS)),
        "labels": Y,
        **changes,
    }
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return path


def put_ogb(root: Path, **changes: str) -> Path:
    """The raw folder of an OGB node data set: gzipped tables without header."""
    folder = root / catalog.CATALOG["arxiv"].path
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "edge": "".join(f"{a},{b}\n" for a, b in EDGES.T),
        "node-feat": "".join(",".join(f"{value:.6f}" for value in row) + "\n" for row in COUNTS / 8),
        "node-label": "".join(f"{label}\n" for label in Y),
        **{name.replace("_", "-"): text for name, text in changes.items()},
    }
    for name, text in texts.items():
        with gzip.open(folder / f"{name}.csv.gz", "wt") as file:
            file.write(text)
    return folder


def put_reddit(root: Path, **changes: object) -> Path:
    """The two raw files of PyTorch Geometric's Reddit: arrays, and the adjacency as scipy saves a COO matrix."""
    folder = root / catalog.CATALOG["reddit"].path
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.array([0, 40, 1, 1, 2, 2])
    data: dict[str, Any] = {"feature": COUNTS.astype(np.float64), "label": labels, "node_types": np.ones(6, dtype=int)}
    coo = {"row": EDGES[0].astype(np.int32), "col": EDGES[1].astype(np.int32)}
    data |= {name: value for name, value in changes.items() if name in data}
    coo |= {name: value for name, value in changes.items() if name in coo}  # type: ignore[misc]
    np.savez(folder / "reddit_data.npz", **data)
    shape = {"data": np.ones(len(coo["row"])), "format": np.array(b"coo"), "shape": np.array([6, 6])}
    np.savez(folder / "reddit_graph.npz", **coo, **shape)
    return folder
