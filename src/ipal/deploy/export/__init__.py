"""A learned model as one ONNX file, which runs without this library and without torch.

traced.py    a graph as tensors, over which torch traces the model's own prediction
check.py     comparison of the file with the model
"""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ipal._version import __version__
from ipal.deploy.export.check import GRAPHS, TOLERANCE, check
from ipal.deploy.export.traced import Inference
from ipal.errors import CapacityError, ConfigError, shortened
from ipal.estimator.learner import Learner
from ipal.estimator.model import Model, model_of
from ipal.system.files import written_whole
from ipal.system.optional import need_extra

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["GRAPHS", "TOLERANCE", "export_onnx", "onnx_model"]

OPSET = 18
IR_VERSION = 8
"""As old as the opset allows: older runtimes read it too."""
MOST_BYTES = 2**31 - 2**20
"""An ONNX file is one protobuf message, which has to stay below 2 GiB."""
EDGES = (
    "edge_index[0] points to edge_index[1], nodes are numbered from 0; an undirected edge is given both ways; "
    "self-loops and repeated edges make no difference"
)
WEIGHTS = "; edge_weight is finite and 0 or more, a repeated edge has the mean of its weights"


def export_onnx(
    learner: Learner | Model, path: str | Path, *, graphs: int = GRAPHS, edge_weights: bool = False
) -> dict[str, Any]:
    """Write a model to an ONNX file, after a comparison of both on random graphs.

    Parameters
    ----------
    learner : Learner or Model
        What is exported.
    path : str or Path
        The file.
    graphs : int, default=20
        How many random graphs file and model are compared on.
    edge_weights : bool, default=False
        Whether weights of edges are a third input; without it, all edges weigh one.

    Returns
    -------
    dict
        What the file takes and gives, and the largest differences of scores and probabilities.
    """
    model = model_of(learner)
    content = onnx_model(model, edge_weights=edge_weights)
    with written_whole(Path(path), ".onnx", private=True) as file:
        file.write(content)
        file.flush()
        # Checked as written to disk, before it gets its name.
        apart = check(model, Path(file.name), graphs, weighted=edge_weights)
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
        "graphs": graphs,
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
def _traced(model: Model, edge_weights: bool) -> "ModelProto":
    """What torch's exporter makes of the model's prediction, without its notes on where it found each operation."""
    x = torch.ones(5, model.num_features, device=model.device)
    inputs = {"x": x, "edge_index": torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]], device=model.device)}
    inputs |= {"edge_weight": torch.ones(4, device=model.device)} if edge_weights else {}
    free = {"x": {0: "nodes"}, "edge_index": {1: "edges"}, "edge_weight": {0: "edges"}}
    module = Inference(model).eval()
    module(**inputs)  # what follows from the memory is computed now, and no part of the trace
    any_size = torch.export.Dim.DYNAMIC
    try:
        with _quiet():
            program = torch.export.export(
                module, (), inputs, dynamic_shapes={name: dict.fromkeys(free[name], any_size) for name in inputs}
            )
            size = sum(one.nbytes for one in (*program.state_dict.values(), *program.constants.values()))
            if size > MOST_BYTES:
                raise CapacityError(
                    f"This model takes {size / 2**30:.1f} GiB, and an ONNX file less than 2 GiB: train a smaller one."
                )
            names = ["scores", "probabilities", "predicted"]
            traced = torch.onnx.export(program, output_names=names, opset_version=OPSET, verbose=False)
    except (torch.onnx.OnnxExporterError, torch._dynamo.exc.TorchDynamoException, RuntimeError) as error:
        raise ConfigError(
            f"The method '{model.name}' cannot be exported: torch cannot trace its predictions "
            f"({shortened(str(error), 200)})."
        ) from error
    assert traced is not None, "nothing was written to a file"
    made: ModelProto = traced.model_proto
    made.ir_version, made.producer_name, made.producer_version = IR_VERSION, "ipal", __version__
    graph = made.graph
    del graph.value_info[:]
    for node in graph.node:
        del node.metadata_props[:]
    for value in graph.input:
        for place, name in free[value.name].items():
            value.type.tensor_type.shape.dim[place].dim_param = name
    for value in graph.output:
        value.type.tensor_type.shape.dim[0].dim_param = "nodes"
    return made


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporter says about itself."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
