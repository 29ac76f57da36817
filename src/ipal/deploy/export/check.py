"""Compares an exported file with its model on random graphs, including special cases."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ipal.data.graph import checked_graph
from ipal.errors import StoreError
from ipal.estimator.model import Model

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

TOLERANCE = 1e-4
"""Largest difference allowed: of scores, as a share of the largest score of a graph; of probabilities, as they are."""
GRAPHS = 20
MOST_NODES = 40

Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True)
class Parity:
    """Largest difference between file and model."""

    graphs: int
    scores: float
    """As a share of the largest score of the graph."""
    probabilities: float


def random_graphs(count: int, num_features: int, seed: int = 0) -> Iterator[Arrays]:
    """Features and edges of so many graphs, of all kinds in turn."""
    random = np.random.default_rng(seed)
    kinds = cycle(["plain", "no edges", "one node", "isolated", "loops", "repeated", "one node with a loop"])
    for number, kind in enumerate(islice(kinds, count)):
        n = 1 if kind.startswith("one node") else int(random.integers(2, MOST_NODES + 1))
        edges = random.integers(0, max(1, n // 2) if kind == "isolated" else n, (2, int(random.integers(1, 4 * n + 1))))
        if kind in {"no edges", "one node"}:
            edges = edges[:, :0]
        if kind == "loops":
            edges[1, ::2] = edges[0, ::2]
        if kind == "repeated":
            edges = np.concatenate([edges, edges[::-1], edges], axis=1)
        x = random.standard_normal((n, num_features), dtype=np.float32)
        if number % 2:  # as a bag of words: few nonzero values, none negative, some nodes without any
            x = np.maximum(x - 1, 0)
            x[random.random(n) < 0.1] = 0
        yield x, edges


def session_of(file: Path) -> "InferenceSession":
    """A session on the CPU with as many threads as torch uses."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def random_weights(edges: int, seed: int) -> NDArray[np.float32]:
    """Of so many edges: every third time all one, else some of them 0."""
    random = np.random.default_rng(seed)
    drawn = random.uniform(0.01, 3, edges) * (random.random(edges) > 0.1)
    return (drawn if seed % 3 else np.ones(edges)).astype(np.float32)


def check(model: Model, file: Path, graphs: int, *, weighted: bool = False) -> Parity:
    """Run both on random graphs, with weights of edges or not; an error if they differ by more than `TOLERANCE`."""
    session, apart = session_of(file), []
    for number, (x, edges) in enumerate(random_graphs(graphs, model.num_features)):
        weights = random_weights(edges.shape[1], number) if weighted else None
        apart.append(difference(model, session, x, edges, weights))
    return Parity(graphs, max(one.scores for one in apart), max(one.probabilities for one in apart))


def difference(
    model: Model,
    session: "InferenceSession",
    x: NDArray[Any],
    edges: NDArray[Any],
    weights: NDArray[np.float32] | None = None,
) -> Parity:
    """The difference on one graph; an error if it is larger than `TOLERANCE`."""
    given = {"x": x, "edge_index": edges} | ({} if weights is None else {"edge_weight": weights})
    scores, probabilities, predicted = session.run(["scores", "probabilities", "predicted"], given)
    with torch.no_grad():
        graph = model.checked(checked_graph(x, edges, undirected=False, weights=weights))
        own, calibrated = model.scores_and_probabilities(graph)
        own_probabilities = calibrated.cpu().numpy()
        # From the same scores: where scores are large, probabilities magnify their rounding.
        same_scores = model.calibrated(model.probabilities(torch.from_numpy(scores).to(own), graph)).cpu().numpy()
    true = own.cpu().numpy()
    if not np.isfinite(true).all():
        raise StoreError(
            "The model itself gives NaN or infinite scores, and was not exported: its training went astray."
        )
    scale = float(np.abs(true).max()) or 1.0
    apart = Parity(1, _largest(scores - true) / scale, _largest(probabilities - own_probabilities))
    missed = true.max(axis=1) - np.take_along_axis(true, predicted[:, None], axis=1)[:, 0]
    of_classes = float(missed.max()) / scale  # above zero only for ties
    wrong = {
        "scores": apart.scores,
        "probabilities": _largest(probabilities - same_scores),
        "predicted classes": of_classes / 2,
    }
    for what, size in wrong.items():
        if not size <= TOLERANCE:
            raise StoreError(
                f"The exported file gives other {what} than the model (by {size:.1g}, allowed are {TOLERANCE:g}), and "
                f"was not kept: the method '{model.name}' predicts in a way that the export does not know."
            )
    return apart


def _largest(difference: NDArray[Any]) -> float:
    return float(np.abs(difference).max())
