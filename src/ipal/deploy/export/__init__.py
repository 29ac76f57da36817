"""A learned model as one ONNX file, which runs without this library and without torch.

program.py      operations that are added to an ONNX graph
inference.py    a learner's inference in these operations
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
from ipal.learners import Learner
from ipal.system.files import written_whole
from ipal.system.optional import need_extra

__all__ = ["GRAPHS", "TOLERANCE", "Exported", "Parity", "export_onnx", "onnx_model"]

MOST_BYTES = 2**31 - 2**20
"""An ONNX file is one protobuf message, which has to stay below 2 GiB."""
EDGES = (
    "edge_index[0] points to edge_index[1], nodes are numbered from 0; an undirected edge is given both ways; "
    "self-loops and repeated edges make no difference"
)
WEIGHTS = "; edge_weight is finite and 0 or more, those of repeated edges are added up unless all are one"


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


def export_onnx(learner: Learner, path: str | Path, *, graphs: int = GRAPHS, edge_weights: bool = False) -> Exported:
    """Write a learner to an ONNX file, after a comparison of both on so many random graphs.

    With `edge_weights`, weights of edges are a third input; without it, all edges weigh one.
    """
    target = Path(path)
    content = onnx_model(learner, edge_weights=edge_weights)
    with written_whole(target, ".onnx") as file:
        file.write(content)
        file.flush()
        # Checked as written to disk, before it gets its name.
        parity = check(learner, Path(file.name), graphs, weighted=edge_weights)
    classes = len(learner.labels_)
    return Exported(
        path=target,
        bytes=len(content),
        opset=OPSET,
        inputs={"x": f"float32 (nodes, {learner.num_features_})", "edge_index": "int64 (2, edges)"}
        | ({"edge_weight": "float32 (edges)"} if edge_weights else {}),
        outputs={
            "scores": f"float32 (nodes, {classes})",
            "probabilities": f"float32 (nodes, {classes})",
            "predicted": "int64 (nodes), places in classes",
        },
        parity=parity,
        tolerance=TOLERANCE,
    )


def onnx_model(learner: Learner, *, edge_weights: bool = False) -> bytes:
    """A learner as the content of an ONNX file; the same learner gives the same bytes."""
    need_extra("onnx", "onnx", "onnxruntime")
    if not learner.is_fitted or not learner.labels_:
        raise ConfigError("This model knows no class: let it learn one before it is exported.")
    if learner.types_ is not None:
        raise ConfigError(
            "This model knows types of nodes and edges, which an ONNX file cannot hold: predict with it in Python, or "
            "train one on data.to_homogeneous()."
        )
    from onnx.checker import check_model

    program = Program(learner.num_features_, edge_weights)
    scores, probabilities = answer(learner, program)
    if program.bytes > MOST_BYTES:
        raise CapacityError(
            f"This model takes {program.bytes / 2**30:.1f} GiB, and an ONNX file less than 2 GiB: "
            "train one with a smaller encoder, or a smaller analytic.width."
        )
    about = {
        "method": learner.name,
        "classes": json.dumps(learner.labels_),
        "num_features": str(learner.num_features_),
        "edges": EDGES + WEIGHTS * edge_weights,
        "opset": str(OPSET),
        "tolerance": f"{TOLERANCE:g} of the largest score",
        "ipal_version": __version__,
    }
    model = program.model(scores, probabilities, __version__, about)
    check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))
