"""`ipal audit`: what a saved model keeps of its training nodes, and who can be told by it."""

from typing import Annotated, Any

from typer import Option

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, DataRoot, ModelName, Runs
from ipal.runs.run_folder import RunFolder, RunStore

UNKNOWN_GRAPHS = (
    "It is not known on which graphs and nodes the model was trained: rows are those of the whole graph, "
    "and every node of a class counts as a training node. So less is found below than could be: audit the run on its "
    "own graph, not a copy of its model."
)
HOW_TO_READ = (
    "Cosine 1 is the row itself. AUC: how surely the matrix of a class tells training nodes from others, of the "
    "same class where they are known; 1 is certainty, 0.5 is guessing. An attempt that fails proves nothing; a better "
    "one may succeed."
)


def audit(
    name: ModelName,
    data: Annotated[str | None, Option(metavar="GRAPH", help="Search for nodes of this graph.")] = None,
    runs: Runs = RUNS,
    root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model keeps, and which small classes that reveals.

    With --data: whether a feature row of the graph is in the model, how near
    rows of the smallest classes are to what is kept of these, and whether
    training nodes can be told from others.
    """
    path = RunStore(runs).model_file(name)
    folder = RunFolder.of_model(path)

    from ipal.audit import audit as audited
    from ipal.data import datasets
    from ipal.estimator.files import load
    from ipal.runs.resolved import resolve

    model = load(path)
    dataset = stream = None
    if data is not None:
        dataset = datasets.load(data, root or (folder.data_root() if folder else None), undirected=not model.directed)
        # The tasks are those of the run, if a run made the model and it was not changed since.
        config = folder.config() if folder and all(event.what == "learned" for event in model.history) else None
        if config and config.dataset_hash == dataset.hash:
            stream = resolve(config, dataset=dataset).stream
    found = {"model": str(path), **audited(model, dataset, stream)}
    if as_json:
        return render.as_json(found)
    _show(found)
    if data is None:
        return render.say("With --data GRAPH, the model is also searched for nodes of a graph.")
    _show_attacks(found["data"])


def _show(found: dict[str, Any]) -> None:
    kept, counts = found["retained"], found["nodes_behind_class"]
    render.say(f"{found['model']}: method {found['method']}, {render.many(found['classes'], 'class')}")
    items = [(item["what"], render.size(item["bytes"])) for item in kept["items"]]
    render.table(("what is kept", "size"), items, title=f"All that the model keeps: {render.size(kept['bytes'])}")
    render.say("Raw nodes ARE stored." if kept["stores_exemplars"] else "By its method the model stores no raw node.")
    flagged = sorted(found["flagged"].items(), key=lambda item: counts[item[0]])
    rows = [(name, counts[name], "; ".join(reasons.values())) for name, reasons in flagged]
    render.table(("class", "nodes", "why"), rows, title="Classes that what is kept reveals")
    for line in found["remarks"]:
        render.say(f"- {line}")


def _show_attacks(data: dict[str, Any]) -> None:
    render.say(f"\nAgainst {data['name']} ({data['nodes']} nodes)")
    if not data["as_taught"]:
        render.say(UNKNOWN_GRAPHS)
    for what, one in data["stored_rows"].items():
        where = f"{render.many(one['found'], 'node')} found, in {', '.join(one['where'])}"
        left = f"; {one['too_plain']} with too few values were left out" * bool(one["too_plain"])
        verdict = (where if one["found"] else "none found") + left
        render.say(f"- Rows of {what} were looked for in the model ({one['looked_for']} nodes): {verdict}.")
    rows = []
    for name, one in data["attempts"]["classes"].items():
        matrix, cosine = one.get("from_matrix", {}), f"{one['from_mean']['best_cosine']:.3f}"
        aucs = (matrix.get("span", {}).get(f"auc_against_{who}") for who in ("same_class", "others"))
        auc = next((f"{value:.3f}" for value in aucs if value is not None), None)
        rows.append((name, one["taught"], cosine, auc, matrix.get("skipped", "")))
    columns = ("class", "training nodes", "cosine to mean", "AUC", "not tried")
    render.table(columns, rows, title="Rows of the smallest classes, compared with what is kept")
    shared = data["attempts"].get("shared_matrix", {})
    if "skipped" in shared:
        render.say(f"The matrix of all classes does not tell training nodes by its span: {shared['skipped']}.")
    elif shared and (auc := shared["span"]["auc_against_others"]) is not None:
        render.say(f"The matrix of all classes tells training nodes from others with an AUC of {auc:.3f}.")
    render.say(HOW_TO_READ)
