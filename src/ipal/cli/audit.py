"""`ipal audit`: what a saved model keeps of its training nodes, and what can be reconstructed from it."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, DataRoot, ModelName, Runs
from ipal.runs.run_folder import RunFolder, RunStore

if TYPE_CHECKING:
    from ipal.analysis.audit import Evidence
    from ipal.estimator.model import Model

UNKNOWN_GRAPHS = (
    "It is not known in which graphs the model was taught, nor from which nodes: rows are those of the whole graph, "
    "and every node of a class counts as one that taught. So less is found below than could be: audit the run on its "
    "own graph, not a copy of its model."
)

SHOWN = 10
"""Most classes that are listed by name."""


def audit(
    name: ModelName,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="GRAPH", help="Search the model for nodes of this graph: a name, or an .npz file."
        ),
    ] = None,
    runs: Runs = RUNS,
    root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model keeps, which small classes that reveals, and what can be reconstructed from it.

    With --data: whether a feature row of the graph is in the model, and
    how well rows of the smallest classes can be reconstructed.
    """
    path = RunStore(runs).model_file(name)
    folder = RunFolder.of_model(path)

    from ipal.analysis import audit as library
    from ipal.estimator.files import load

    model = load(path)
    evidence = None if data is None else _evidence(data, root, model, folder)
    found = {"model": str(path), **library.audit(model, evidence)}
    if as_json:
        render.as_json(found)
    else:
        _show(found)


def _evidence(name: str, root: Path | None, model: "Model", folder: RunFolder | None) -> "Evidence":
    """The graph, divided into tasks as in the run that made the model, if a run did."""
    from ipal.analysis import audit as library
    from ipal.data import datasets
    from ipal.runs.resolved import resolve

    if folder is None:
        return library.whole(datasets.load(name, root))
    config = folder.config()
    dataset = datasets.load(name, root or folder.data_root(), undirected=config.protocol.edges == "undirected")
    if dataset.hash != config.dataset_hash:
        return library.whole(dataset)
    taught = library.as_taught(resolve(config, dataset=dataset))
    counts = model.nodes_behind_class()
    # The run's model may have forgotten classes since.
    return taught if not counts or counts == taught.nodes_behind_class() else library.whole(dataset)


# ---------------------------------------------------------------------- for people


def _show(found: dict[str, Any]) -> None:
    kept = found["retained"]
    render.say(f"{found['model']}: method {found['method']}, {render.many(found['classes'], 'class')}")
    title = f"All that the model keeps: {render.size(kept['bytes'])}"
    items = [(item["what"], render.size(item["bytes"])) for item in kept["items"]]
    render.out.print(render.table(("what is kept", "size"), items, numbers=["size"], title=title))
    render.say("Raw nodes ARE stored." if kept["stores_exemplars"] else "By its method the model stores no raw node.")
    _show_classes(found)
    for remark in found["remarks"]:
        render.say(f"- {remark}")
    if "data" in found:
        _show_search(found["data"])
        _show_inputs(found["data"]["inputs"], "the nodes learned last")
        _show_inputs(found["data"]["inputs_of_all"], "the graphs learned from")
        _show_attempts(found["data"])
    else:
        render.say("With --data GRAPH, the model is also searched for nodes of a graph, and rows are reconstructed.")


def _show_classes(found: dict[str, Any]) -> None:
    from ipal.report.audit import counts_in_words, flagged_table

    for line in counts_in_words(found):
        render.say(line)
    table = flagged_table(found)
    if table.rows:
        render.out.print(render.report_table(replace(table, rows=table.rows[:SHOWN])))
    if others := [row[0].text for row in table.rows[SHOWN:]]:
        kinds = ", ".join(sorted({kind for name in others for kind in found["flagged"][name]}))
        render.say(f"and {len(others)} larger ones ({kinds}); --json lists them all.")


def _show_search(data: dict[str, Any]) -> None:
    render.say(f"\nAgainst {data['name']} ({data['nodes']} nodes)")
    if not data["as_taught"]:
        render.say(UNKNOWN_GRAPHS)
    for what, result in data["stored_rows"].items():
        verdict = (
            f"{render.many(result['found'], 'node')} FOUND, in {', '.join(result['where'])}"
            if result["found"]
            else "none found"
        )
        render.say(
            f"Rows of {what}: {verdict}. Looked for: {render.many(result['looked_for'], 'node')} among all rows and "
            "columns of their length (also scaled ones, and of the matrices of products made whole)"
            + f"; {result['too_plain']} with too few values were left out."
            * bool(result["too_plain"])
        )


def _show_inputs(inputs: dict[str, Any], where: str) -> None:
    if "skipped" in inputs:
        render.say(f"Which features occur in {where} was not examined: {inputs['skipped']}.")
        return
    title = f"Which {inputs['occurring']} of {inputs['features']} features occur in {where}, by"
    rows = [(name, "" if auc is None else f"{auc:.3f}") for name, auc in inputs["auc"].items()]
    render.out.print(render.table(("length of a feature's row in", "AUC"), rows, numbers=["AUC"], title=title))


def _show_attempts(data: dict[str, Any]) -> None:
    from ipal.report.audit import attempts_table

    classes, shared = data["attempts"]["classes"], data["attempts"].get("shared_matrix")
    if classes:
        render.out.print(render.report_table(attempts_table(classes)))
        for name, result in classes.items():
            matrix = result.get("from_matrix", {})
            if reason := matrix.get("skipped") or matrix.get("rows", {}).get("skipped"):
                render.say(f"Class {name}: not all was tried: {reason}.")
        render.say(
            "Cosine 1 is the row itself. AUC: how surely the matrix of a class tells nodes that taught from others, "
            "of the same class where they are known; 1 is certainty, 0.5 is guessing. Rebuilt rows: sought from that "
            "matrix alone. An attempt that fails proves nothing; a better one may succeed."
        )
    if shared:
        if "skipped" in shared:
            render.say(f"The matrix of all classes does not tell who taught by its span: {shared['skipped']}.")
        elif shared["span"]["auc_against_others"] is not None:
            render.say(
                f"The matrix of all classes tells who taught from who did not with an AUC of "
                f"{shared['span']['auc_against_others']:.3f} (1 is certainty, 0.5 is guessing)."
            )
