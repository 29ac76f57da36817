"""`ipal export`: a saved model as one ONNX file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, Force, ModelName, Runs
from ipal.cli.models import new_file
from ipal.runs.run_folder import RunStore

if TYPE_CHECKING:
    from ipal.deploy.export import Exported


def export(
    name: ModelName,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the ONNX model, as model.onnx.")],
    force: Force = False,
    graphs: Annotated[
        int, typer.Option(min=1, max=10_000, help="Random graphs on which file and model are compared.")
    ] = 20,
    edge_weights: Annotated[
        bool, typer.Option("--edge-weights", help="Take weights of edges as a third input; else all edges weigh one.")
    ] = False,
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

    model = load(path)
    made = export_onnx(model, target, graphs=graphs, edge_weights=edge_weights)
    if as_json:
        render.as_json(
            {
                "file": str(made.path),
                "model": str(path),
                "method": model.name,
                "classes": model.labels,
                "bytes": made.bytes,
                "opset": made.opset,
                "inputs": made.inputs,
                "outputs": made.outputs,
                "graphs": made.parity.graphs,
                "largest_difference": {"scores": made.parity.scores, "probabilities": made.parity.probabilities},
                "tolerance": made.tolerance,
            }
        )
    else:
        _show(made, model.name, len(model.labels))


def _show(made: "Exported", method: str, classes: int) -> None:
    facts = Table.grid(padding=(0, 2))
    facts.add_row("model", f"method {method}, classes {classes}, opset {made.opset}, {render.size(made.bytes)}")
    for word, values in (("takes", made.inputs), ("gives", made.outputs)):
        for place, (name, kind) in enumerate(values.items()):
            facts.add_row("" if place else word, f"{name}: {kind}")
    apart = made.parity
    facts.add_row(
        "checked",
        f"on {apart.graphs} random graphs: scores differ by at most {apart.scores:.1e} of the largest one "
        f"(allowed {made.tolerance:.0e}), probabilities by {apart.probabilities:.1e}",
    )
    render.out.print(facts)
    render.say(f"file     {made.path}")
