"""Compares an exported file with its model on random graphs, including special cases."""

from collections.abc import Iterator
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

Given = dict[str, NDArray[Any]]
"""x, edge_index, and perhaps edge_weight."""


def random_graphs(count: int, num_features: int, seed: int = 0, *, weighted: bool = False) -> Iterator[Given]:
    """So many graphs: some of one node, some without edges; with self-loops, repeated edges and isolated nodes."""
    random = np.random.default_rng(seed)
    for number in range(count):
        n = 1 if number % 3 == 2 else int(random.integers(2, MOST_NODES + 1))
        edges = random.integers(0, n, (2, 0 if number % 4 == 3 else int(random.integers(1, 4 * n + 1))))
        edges = np.concatenate([edges, edges[:, ::3], edges[::-1, ::5]], axis=1)
        x = random.standard_normal((n, num_features), dtype=np.float32)
        if number % 2:  # as a bag of words: few nonzero values, none negative, some nodes without any
            x = np.maximum(x - 1, 0)
            x[random.random(n) < 0.1] = 0
        given: Given = {"x": x, "edge_index": edges}
        if weighted:
            drawn = random.uniform(0.01, 3, edges.shape[1]) * (random.random(edges.shape[1]) > 0.1)
            given["edge_weight"] = drawn.astype(np.float32)
        yield given


def check(model: Model, file: Path, *, weighted: bool = False) -> dict[str, float]:
    """Run both on random graphs; the largest differences, or an error if one is larger than `TOLERANCE`."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    session = InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    drawn = random_graphs(GRAPHS, model.num_features, weighted=weighted)
    apart = [difference(model, session, given) for given in drawn]
    return {what: max(one[what] for one in apart) for what in apart[0]}


def difference(model: Model, session: "InferenceSession", given: Given) -> dict[str, float]:
    """The difference on one graph: of scores as a share of the largest, and of probabilities."""
    scores, probabilities, predicted = session.run(["scores", "probabilities", "predicted"], given)
    with torch.no_grad():
        weights = given.get("edge_weight")
        graph = model.checked(checked_graph(given["x"], given["edge_index"], undirected=False, weights=weights))
        own, calibrated = model.scores_and_probabilities(graph)
        # From the same scores: where scores are large, probabilities magnify their rounding.
        same_scores = model.calibrated(model.probabilities(torch.from_numpy(scores).to(own), graph)).cpu().numpy()
    true = own.cpu().numpy()
    if not np.isfinite(true).all():
        raise StoreError(
            "The model itself gives NaN or infinite scores, and was not exported: its training went astray."
        )
    scale = float(np.abs(true).max()) or 1.0
    missed = true.max(axis=1) - np.take_along_axis(true, predicted[:, None], axis=1)[:, 0]  # above zero only for ties
    by_scores = _largest(scores - true) / scale
    wrong = {
        "scores": by_scores,
        "probabilities": _largest(probabilities - same_scores),
        "predicted classes": float(missed.max()) / scale / 2,
    }
    for what, size in wrong.items():
        if not size <= TOLERANCE:
            raise StoreError(
                f"The exported file gives other {what} than the model (by {size:.1g}, allowed are {TOLERANCE:g}), and "
                f"was not kept: the method '{model.name}' predicts in a way that the export does not know."
            )
    return {"scores": by_scores, "probabilities": _largest(probabilities - calibrated.cpu().numpy())}


def _largest(difference: NDArray[Any]) -> float:
    return float(np.abs(difference).max())
