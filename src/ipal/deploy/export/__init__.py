"""A learned model as one ONNX file, which runs without this library and without torch.

torch traces the model's own prediction, over a graph as tensors (traced.py). The file is then compared with the model
on random graphs.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ipal._version import __version__
from ipal.data.graph import checked_graph
from ipal.deploy.export.traced import Inference
from ipal.errors import CapacityError, ConfigError, StoreError, shortened
from ipal.estimator.learner import Learner
from ipal.estimator.model import Model, model_of
from ipal.system.files import written_whole
from ipal.system.optional import need_extra

__all__ = ["export_onnx", "onnx_model"]

OPSET = 18
MOST_BYTES = 2**31 - 2**20
"""An ONNX file is one protobuf message, which has to stay below 2 GiB."""
EDGES = (
    "edge_index[0] points to edge_index[1], nodes are numbered from 0; an undirected edge is given both ways; "
    "self-loops and repeated edges make no difference"
)
WEIGHTS = "; edge_weight is finite and 0 or more, a repeated edge has the mean of its weights"
TOLERANCE = 1e-4
"""Largest difference allowed: of scores, as a share of the largest score of a graph; of probabilities, as they are."""
GRAPHS = 20
MOST_NODES = 40

Given = dict[str, NDArray[Any]]
"""x, edge_index, and perhaps edge_weight."""


def export_onnx(learner: Learner | Model, path: str | Path, *, edge_weights: bool = False) -> dict[str, Any]:
    """Write a model to an ONNX file, after a comparison of both on random graphs.

    Parameters
    ----------
    learner : Learner or Model
        What is exported.
    path : str or Path
        The file.
    edge_weights : bool, default=False
        Whether weights of edges are a third input; without it, all edges weigh one.

    Returns
    -------
    dict
        What the file takes and gives, and the largest differences of scores and probabilities.
    """
    model = model_of(learner)
    content = onnx_model(model, edge_weights=edge_weights)
    apart = check(model, content, weighted=edge_weights)
    with written_whole(Path(path), private=True) as file:
        file.write(content)
    nodes = f"float32 (nodes, {len(model.labels)})"
    return {
        "file": str(path),
        "method": model.name,
        "classes": list(model.labels),
        "bytes": len(content),
        "opset": OPSET,
        "inputs": {"x": f"float32 (nodes, {model.num_features})", "edge_index": "int64 (2, edges)"}
        | ({"edge_weight": "float32 (edges)"} if edge_weights else {}),
        "outputs": {"scores": nodes, "probabilities": nodes, "predicted": "int64 (nodes), places in classes"},
        "graphs": GRAPHS,
        "largest_difference": apart,
        "tolerance": TOLERANCE,
    }


def onnx_model(model: Model, *, edge_weights: bool = False) -> bytes:
    """A model as the content of an ONNX file; the same model gives the same bytes."""
    need_extra("onnx", "onnx", "onnxruntime", "onnxscript")
    if not model.labels:
        raise ConfigError("This model knows no class: let it learn one before it is exported.")
    from onnx.checker import check_model
    from onnx.helper import set_model_props

    made = _traced(model, edge_weights)
    about = {
        "method": model.name,
        "classes": json.dumps(model.labels),
        "num_features": str(model.num_features),
        "feature_names": json.dumps(model.columns),
        "edges": EDGES + WEIGHTS * edge_weights,
        "opset": str(OPSET),
        "tolerance": f"{TOLERANCE:g} of the largest score",
        "ipal_version": __version__,
    }
    set_model_props(made, about)
    check_model(made, full_check=True)
    return bytes(made.SerializeToString(deterministic=True))


@torch.no_grad()
def _traced(model: Model, edge_weights: bool) -> Any:
    """What torch's exporter makes of the model's prediction, without its notes on where it found each operation."""
    x = torch.ones(5, model.num_features, device=model.device)
    inputs = {"x": x, "edge_index": torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]], device=model.device)}
    sizes = {"x": {0: "nodes"}, "edge_index": {1: "edges"}}
    if edge_weights:
        inputs["edge_weight"], sizes["edge_weight"] = torch.ones(4, device=model.device), {0: "edges"}
    module = Inference(model).eval()
    module(**inputs)  # what follows from the memory is computed now, and no part of the trace
    logged = logging.root.manager.disable
    try:
        with warnings.catch_warnings():  # what torch's exporter says about itself
            warnings.simplefilter("ignore")
            logging.disable(logging.WARNING)
            traced = torch.onnx.export(
                module,
                kwargs=inputs,
                dynamic_shapes=sizes,
                output_names=["scores", "probabilities", "predicted"],
                opset_version=OPSET,
                verbose=False,
            )
    except (torch.onnx.OnnxExporterError, RuntimeError) as error:
        raise ConfigError(
            f"The method '{model.name}' cannot be exported: torch cannot trace its predictions "
            f"({shortened(str(error), 200)})."
        ) from error
    finally:
        logging.disable(logged)
    assert traced is not None, "nothing was written to a file"
    made = traced.model_proto
    size = sum(len(one.raw_data) for one in made.graph.initializer)
    if size > MOST_BYTES:
        raise CapacityError(
            f"This model takes {size / 2**30:.1f} GiB, and an ONNX file less than 2 GiB: train a smaller one."
        )
    del made.graph.value_info[:]
    for node in made.graph.node:
        del node.metadata_props[:]
    return made


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
            m = edges.shape[1]
            drawn = random.uniform(0.01, 3, m) * random.choice([0, 1], m, p=[0.1, 0.9])
            given["edge_weight"] = drawn.astype(np.float32)
        yield given


def check(model: Model, content: bytes, *, weighted: bool = False) -> dict[str, float]:
    """Run both on random graphs; the largest differences, or an error if one is larger than `TOLERANCE`."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    session = InferenceSession(content, options, providers=["CPUExecutionProvider"])
    drawn = random_graphs(GRAPHS, model.num_features, weighted=weighted)
    apart = [difference(model, session.run, given) for given in drawn]
    return {what: max(one[what] for one in apart) for what in apart[0]}


@torch.no_grad()
def difference(model: Model, run: Callable[[list[str], Given], Sequence[Any]], given: Given) -> dict[str, float]:
    """The difference on one graph: of scores as a share of the largest, and of probabilities."""
    scores, probabilities, predicted = run(["scores", "probabilities", "predicted"], given)
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
    apart = {
        "scores": float(np.abs(scores - true).max()) / scale,
        "probabilities": float(np.abs(probabilities - same_scores).max()),
        "predicted classes": float(missed.max()) / scale / 2,
    }
    for what, size in apart.items():
        if not size <= TOLERANCE:
            raise StoreError(
                f"The exported file gives other {what} than the model (by {size:.1g}, allowed are {TOLERANCE:g}), and "
                f"was not kept: the method '{model.name}' predicts in a way that the export does not know."
            )
    return {"scores": apart["scores"], "probabilities": float(np.abs(probabilities - calibrated.cpu().numpy()).max())}
