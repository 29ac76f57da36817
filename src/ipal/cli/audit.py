"""`ipal audit`: what a saved model keeps of its training nodes, and what can be reconstructed from it."""

from collections.abc import Sequence
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
    "It is not known on which graphs and nodes the model was trained: rows are those of the whole graph, "
    "and every node of a class counts as a training node. So less is found below than could be: audit the run on its "
    "own graph, not a copy of its model."
)
ATTEMPTS = ("class", "training nodes", "cosine to mean", "AUC", "cosine of rebuilt", "rebuilt (>= 0.99)", "not tried")
HOW_TO_READ = (
    "Cosine 1 is the row itself. AUC: how surely the matrix of a class tells training nodes from others, of the "
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
    kept, counts, data = found["retained"], found["nodes_behind_class"], found.get("data")
    render.say(f"{found['model']}: method {found['method']}, {render.many(found['classes'], 'class')}")
    items = [(item["what"], render.size(item["bytes"])) for item in kept["items"]]
    _print(f"All that the model keeps: {render.size(kept['bytes'])}", ("what is kept", "size"), items)
    render.say("Raw nodes ARE stored." if kept["stores_exemplars"] else "By its method the model stores no raw node.")
    flagged = sorted(found["flagged"].items(), key=lambda item: int(counts[item[0]]))
    rows = [(name, str(counts[name]), "; ".join(reasons.values())) for name, reasons in flagged]
    _print("Classes that what is kept reveals", ("class", "nodes", "why"), rows)
    for line in found["remarks"]:
        render.say(f"- {line}")
    if data is None:
        render.say("With --data GRAPH, the model is also searched for nodes of a graph, and rows are reconstructed.")
        return
    render.say(f"\nAgainst {data['name']} ({data['nodes']} nodes)")
    if not data["as_taught"]:
        render.say(UNKNOWN_GRAPHS)
    for what, one in data["stored_rows"].items():
        verdict = (
            f"{render.many(one['found'], 'node')} found, in {', '.join(one['where'])}" if one["found"] else "none found"
        )
        left = f"; {one['too_plain']} with too few values were left out" * bool(one["too_plain"])
        render.say(f"- Rows of {what} were looked for in the model ({one['looked_for']} nodes): {verdict}{left}.")
    caption = "Rows of the smallest classes, reconstructed from what is kept"
    _print(caption, ATTEMPTS, [_attempt(name, one) for name, one in data["attempts"]["classes"].items()])
    shared = data["attempts"].get("shared_matrix", {})
    if "skipped" in shared:
        render.say(f"The matrix of all classes does not tell training nodes by its span: {shared['skipped']}.")
    elif shared and (auc := shared["span"]["auc_against_others"]) is not None:
        render.say(f"The matrix of all classes tells training nodes from others with an AUC of {auc:.3f}.")
    render.say(HOW_TO_READ)


def _attempt(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    """How well rows of a class were reconstructed."""
    matrix = found.get("from_matrix", {})
    span, rebuilt = matrix.get("span", {}), matrix.get("rows", {})
    aucs = (span.get("auc_against_same_class"), span.get("auc_against_others"))
    auc = next((one for one in aucs if one is not None), None)
    numbers = (found["from_mean"]["best_cosine"], auc, rebuilt.get("mean_cosine"), rebuilt.get("recovered_share"))
    shown = ("" if one is None else f"{one:.3f}" for one in numbers)
    return (name, str(found["taught"]), *shown, matrix.get("skipped") or rebuilt.get("skipped") or "")


def _print(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        render.out.print(render.table(columns, rows, title=title))
