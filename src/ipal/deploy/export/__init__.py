"""A learned model as one ONNX file, which runs without this library and without torch.

program.py      operations that are added to an ONNX graph
inference.py    a model's inference in these operations
check.py        comparison of the file with the model
"""

import json
from dataclasses import dataclass
from pathlib import Path

from ipal._version import __version__
from ipal.deploy.export.check import GRAPHS, TOLERANCE, Parity, check
from ipal.deploy.export.inference import answer
from ipal.deploy.export.program import OPSET, Program
from ipal.errors import CapacityError, ConfigError
from ipal.estimator.learner import Learner, model_of
from ipal.estimator.model import Model
from ipal.system.files import written_whole
from ipal.system.optional import need_extra

__all__ = ["GRAPHS", "TOLERANCE", "Exported", "Parity", "export_onnx", "onnx_model"]

MOST_BYTES = 2**31 - 2**20
"""An ONNX file is one protobuf message, which has to stay below 2 GiB."""
EDGES = (
    "edge_index[0] points to edge_index[1], nodes are numbered from 0; an undirected edge is given both ways; "
    "self-loops and repeated edges make no difference"
)
WEIGHTS = "; edge_weight is finite and 0 or more, a repeated edge has the mean of its weights"


@dataclass(frozen=True)
class Exported:
    """An exported file."""

    path: Path
    bytes: int
    opset: int
    inputs: dict[str, str]
    outputs: dict[str, str]
    parity: Parity
    tolerance: float


def export_onnx(
    learner: Learner | Model, path: str | Path, *, graphs: int = GRAPHS, edge_weights: bool = False
) -> Exported:
    """Write a model to an ONNX file, after a comparison of both on so many random graphs.

    With `edge_weights`, weights of edges are a third input; without it, all edges weigh one.
    """
    model = model_of(learner)
    target = Path(path)
    content = onnx_model(model, edge_weights=edge_weights)
    with written_whole(target, ".onnx") as file:
        file.write(content)
        file.flush()
        # Checked as written to disk, before it gets its name.
        parity = check(model, Path(file.name), graphs, weighted=edge_weights)
    classes = len(model.labels)
    return Exported(
        path=target,
        bytes=len(content),
        opset=OPSET,
        inputs={"x": f"float32 (nodes, {model.num_features})", "edge_index": "int64 (2, edges)"}
        | ({"edge_weight": "float32 (edges)"} if edge_weights else {}),
        outputs={
            "scores": f"float32 (nodes, {classes})",
            "probabilities": f"float32 (nodes, {classes})",
            "predicted": "int64 (nodes), places in classes",
        },
        parity=parity,
        tolerance=TOLERANCE,
    )


def onnx_model(model: Model, *, edge_weights: bool = False) -> bytes:
    """A model as the content of an ONNX file; the same model gives the same bytes."""
    need_extra("onnx", "onnx", "onnxruntime")
    if not model.labels:
        raise ConfigError("This model knows no class: let it learn one before it is exported.")
    if model.schema.types is not None:
        raise ConfigError(
            "This model knows types of nodes and edges, which an ONNX file cannot hold: predict with it in Python, or "
            "train one on data.to_homogeneous()."
        )
    from onnx.checker import check_model

    program = Program(model.num_features, edge_weights)
    scores, probabilities = answer(model, program)
    if program.bytes > MOST_BYTES:
        raise CapacityError(
            f"This model takes {program.bytes / 2**30:.1f} GiB, and an ONNX file less than 2 GiB: train a smaller one."
        )
    about = {
        "method": model.name,
        "classes": json.dumps(model.labels),
        "num_features": str(model.num_features),
        "edges": EDGES + WEIGHTS * edge_weights,
        "opset": str(OPSET),
        "tolerance": f"{TOLERANCE:g} of the largest score",
        "ipal_version": __version__,
    }
    onnx = program.model(scores, probabilities, __version__, about)
    check_model(onnx, full_check=True)
    return bytes(onnx.SerializeToString(deterministic=True))
