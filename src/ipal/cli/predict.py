"""`ipal predict`: the classes of a graph's nodes, by a saved model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, DataRoot, Directed, Force, GraphName, ModelName, Runs
from ipal.cli.models import new_file, opened

if TYPE_CHECKING:
    from ipal.deploy.predict import Predictions


def predict(
    name: ModelName,
    graph: GraphName,
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file for the predictions.")],
    reject: Annotated[
        float | None,
        typer.Option(
            "--reject",
            metavar="SHARE",
            help="Reject nodes that seem to be of no known class, so that about this share of known nodes is lost.",
        ),
    ] = None,
    coverage: Annotated[
        float | None,
        typer.Option(
            "--coverage",
            metavar="SHARE",
            help="Also a column with a set of classes, which holds a node's own this often, as 0.9.",
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes",
            metavar="NODES",
            help="Only these nodes: ids or numbers, as 3,17,25, or a file with one a line.",
        ),
    ] = None,
    directed: Directed = None,
    force: Force = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
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
    path, model, whole, one_way = opened(name, graph, runs, root, directed, device)

    from ipal.data.datasets.node_ids import node_numbers
    from ipal.deploy import predict as deployed

    asked = None if nodes is None else node_numbers(nodes, whole.graph.num_nodes, "--nodes", whole.ids)
    found = deployed.predict(model, whole.graph, asked, reject=reject, coverage=coverage)
    deployed.write_csv(found, target, whole.ids)
    if as_json:
        render.as_json(
            {
                "file": str(target),
                "model": str(path),
                "method": model.name,
                "nodes": len(found.nodes),
                "predicted": found.counts(),
                "rejected": int(found.rejected.sum()),
                "reject": reject,
                "coverage": coverage,
                "directed": one_way,
            }
        )
    else:
        _show(found, reject is not None, target)


def _show(found: "Predictions", rejects: bool, target: Path) -> None:
    counts = [(name, str(count)) for name, count in found.counts().items()]
    table = render.table(("class", "nodes"), counts, numbers=["nodes"])
    if rejects:
        table.add_section()
        table.add_row("none of them", str(int(found.rejected.sum())))
    render.out.print(table)
    render.say(f"{len(found.nodes)} nodes predicted\nfile  {target}")
