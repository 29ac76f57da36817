"""`ipal discover`: groups of nodes of a graph that no known class fits."""

import csv
import io
from pathlib import Path
from typing import Annotated

from typer import Option

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, DataRoot, Directed, Force, GraphName, ModelName, Runs
from ipal.cli.models import new_file, opened
from ipal.system.files import write_atomically


def discover(
    name: ModelName,
    graph: GraphName,
    out: Annotated[Path, Option("--out", "-o", help="CSV file: node, group.")],
    reject: Annotated[float, Option("--reject", metavar="SHARE", help="Share of known nodes that may be lost.")] = 0.05,
    classes: Annotated[int | None, Option(min=1, max=1000, help="How many groups; default: chosen.")] = None,
    directed: Directed = None,
    force: Force = False,
    runs: Runs = RUNS,
    root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Group the nodes of a graph that seem to be of no known class: candidates for new ones, to name and learn."""
    target = new_file(out, force)
    path, model, read, _ = opened(name, graph, runs, root, directed)

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
