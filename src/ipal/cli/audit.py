"""`ipal audit`: what a saved model keeps of its training nodes, and what can be reconstructed from it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

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
HOW_TO_READ = (
    "Cosine 1 is the row itself. AUC: how surely the matrix of a class tells nodes that taught from others, of the "
    "same class where they are known; 1 is certainty, 0.5 is guessing. Rebuilt rows: sought from that matrix alone. An "
    "attempt that fails proves nothing; a better one may succeed."
)


def audit(
    name: ModelName,
    data: Annotated[str | None, Option("--data", metavar="GRAPH", help="Search for nodes of this graph.")] = None,
    runs: Runs = RUNS,
    root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model keeps, which small classes that reveals, and what can be reconstructed from it.

    With --data: whether a feature row of the graph is in the model, and
    how well rows of the smallest classes can be reconstructed.
    """
    path = RunStore(runs).model_file(name)

    from ipal.analysis import audit as library
    from ipal.estimator.files import load

    model = load(path)
    evidence = None if data is None else _evidence(data, root, model, RunFolder.of_model(path))
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


def _show(found: dict[str, Any]) -> None:
    from ipal.report.audit import audit_in_words, flagged_table

    kept = found["retained"]
    render.say(f"{found['model']}: method {found['method']}, {render.many(found['classes'], 'class')}")
    title = f"All that the model keeps: {render.size(kept['bytes'])}"
    items = [(item["what"], render.size(item["bytes"])) for item in kept["items"]]
    render.out.print(render.table(("what is kept", "size"), items, numbers=["size"], title=title))
    render.say("Raw nodes ARE stored." if kept["stores_exemplars"] else "By its method the model stores no raw node.")
    if found["flagged"]:
        render.out.print(render.report_table(flagged_table(found)))
    for line in audit_in_words(found):
        render.say(f"- {line}")
    if "data" in found:
        _show_search(found["data"])
    else:
        render.say("With --data GRAPH, the model is also searched for nodes of a graph, and rows are reconstructed.")


def _show_search(data: dict[str, Any]) -> None:
    from ipal.report.audit import attempts_table

    render.say(f"\nAgainst {data['name']} ({data['nodes']} nodes)")
    if not data["as_taught"]:
        render.say(UNKNOWN_GRAPHS)
    if data["inputs"]:
        title = "Which features occur in nodes that were learned is told by the length of their rows in"
        rows = [(name, f"{auc:.3f}") for name, auc in data["inputs"].items()]
        render.out.print(render.table(("the first layer's", "AUC"), rows, numbers=["AUC"], title=title))
    classes, shared = data["attempts"]["classes"], data["attempts"].get("shared_matrix", {})
    if classes:
        render.out.print(render.report_table(attempts_table(classes)))
        render.say(HOW_TO_READ)
    if "skipped" in shared:
        render.say(f"The matrix of all classes does not tell who taught by its span: {shared['skipped']}.")
    elif shared and (auc := shared["span"]["auc_against_others"]) is not None:
        render.say(f"The matrix of all classes tells who taught from who did not with an AUC of {auc:.3f}.")
