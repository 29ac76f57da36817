"""`ipal export`: a saved model as one ONNX file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, Force, ModelName, Runs
from ipal.cli.models import new_file
from ipal.runs.run_folder import RunStore


def export(
    name: ModelName,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the ONNX model, as model.onnx.")],
    force: Force = False,
    edge_weights: Annotated[bool, typer.Option("--edge-weights", help="Weights of edges as a third input.")] = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Write a model as one ONNX file for graphs of any size, checked against the model on random graphs.

    Inputs are features and edges, and with --edge-weights their weights;
    outputs are scores, probabilities and the predicted class of every node.
    Needs the extra onnx.
    """
    target = new_file(out, force)
    path = RunStore(runs).model_file(name)

    from ipal.system.optional import need_extra

    need_extra("onnx", "onnx", "onnxruntime", "onnxscript")
    from ipal.deploy.export import export_onnx
    from ipal.estimator.files import load

    made = {"model": str(path), **export_onnx(load(path), target, edge_weights=edge_weights)}
    render.as_json(made) if as_json else _show(made)


def _show(made: Mapping[str, Any]) -> None:
    apart, size = made["largest_difference"], render.size(made["bytes"])
    named = {word: "\n".join(f"{name}: {kind}" for name, kind in made[word].items()) for word in ("inputs", "outputs")}
    checked = (
        f"on {made['graphs']} random graphs: scores differ by at most {apart['scores']:.1e} of the largest one "
        f"(allowed {made['tolerance']:.0e}), probabilities by {apart['probabilities']:.1e}"
    )
    model = f"method {made['method']}, classes {len(made['classes'])}, opset {made['opset']}, {size}"
    render.facts({"model": model, **named, "checked": checked, "file": made["file"]})
