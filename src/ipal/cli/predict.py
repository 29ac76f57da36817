"""`ipal predict` and `ipal discover`: classes of a graph's nodes by a saved model, and nodes of none of them."""

import csv
import io
from pathlib import Path
from typing import Annotated

from typer import Option

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, DataRoot, Force, GraphName, ModelName, Runs
from ipal.cli.models import new_file, opened
from ipal.system.files import write_atomically


def predict(
    name: ModelName,
    graph: GraphName,
    out: Annotated[Path, Option("--out", "-o", help="CSV file for the predictions.")],
    reject: Annotated[
        float | None, Option(metavar="SHARE", help="Reject nodes of no known class, and this share of known ones.")
    ] = None,
    coverage: Annotated[
        float | None, Option(metavar="SHARE", help="Also sets of classes, which hold a node's own this often.")
    ] = None,
    nodes: Annotated[
        str | None, Option(metavar="NODES", help="Ids or numbers of nodes, as 3,17,25, or a file with one a line.")
    ] = None,
    force: Force = False,
    device: Annotated[str, Option(help="cpu, cuda or cuda:N.")] = "cpu",
    runs: Runs = RUNS,
    root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Predict the classes of a graph's nodes: a CSV file with one row per node, and the number of nodes of each class.

    Columns: node (its id, where the graph has ids), predicted (empty where
    rejected), confidence (the largest probability), rejected, set (with --coverage), and p(CLASS) for every class
    the model knows.

    Probabilities are over the known classes: they add up to one also for a
    node of another class, which --reject finds.
    """
    target = new_file(out, force)
    path, model, whole = opened(name, graph, runs, root, device)

    from ipal.data.graph_data import node_numbers
    from ipal.deploy import predict as deployed

    asked = None if nodes is None else node_numbers(nodes, "--nodes", (whole.graph.num_nodes, whole.ids))[0]
    found = deployed.predict(model, whole.graph, asked, reject=reject, coverage=coverage)
    deployed.write_csv(found, target, whole.ids)
    counts, rejected = found.counts(), int(found.rejected.sum())
    if as_json:
        what = {"file": str(target), "model": str(path), "method": model.name, "nodes": len(found.nodes)}
        how = {"rejected": rejected, "reject": reject, "coverage": coverage, "directed": model.directed}
        return render.as_json({**what, "predicted": counts, **how})
    render.counts("nodes", counts if reject is None else {**counts, "none of them": rejected})
    render.say(f"{len(found.nodes)} nodes predicted\nfile  {target}")


def discover(
    name: ModelName,
    graph: GraphName,
    out: Annotated[Path, Option("--out", "-o", help="CSV file: node, group.")],
    reject: Annotated[float, Option(metavar="SHARE", help="Share of known nodes that may be lost.")] = 0.05,
    classes: Annotated[int | None, Option(min=1, max=1000, help="How many groups; default: chosen.")] = None,
    force: Force = False,
    runs: Runs = RUNS,
    root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Group the nodes of a graph that seem to be of no known class: candidates for new ones, to name and learn."""
    target = new_file(out, force)
    path, model, read = opened(name, graph, runs, root)

    from ipal.estimator.open_world.discover import discover as grouped

    groups = grouped(model, model.checked(read.graph), reject, classes)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["node", "group"])
    for number, group in enumerate(groups):
        ids = group.nodes if read.ids is None else read.ids[group.nodes]
        table.writerows([one, number] for one in ids.tolist())
    write_atomically(target, text.getvalue())
    if as_json:
        plain = [{"nodes": one.size, "cohesion": one.cohesion, "nearest": one.nearest} for one in groups]
        return render.as_json({"file": str(target), "model": str(path), "groups": plain})
    shown = render.table(("group", "nodes", "cohesion", "taken for"), numbers=["group", "nodes", "cohesion"])
    for number, one in enumerate(groups):
        nearest = ", ".join(f"{label} ({100 * share:.0f} %)" for label, share in one.nearest)
        shown.add_row(str(number), str(one.size), f"{one.cohesion:.2f}", nearest)
    render.out.print(shown)
    render.say(f"{render.many(len(groups), 'group')}\nfile  {target}")
