"""`ipal rename`, `merge-classes`, `split` and `relabel`: change the classes of a saved model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, ModelName, Runs
from ipal.cli.models import Force, Out, Rewritten, check_kind, label_of, rewritten
from ipal.cli.opened import Directed, is_directed

if TYPE_CHECKING:  # torch takes seconds to load
    from ipal.estimator.model import Model

Taught = Annotated[
    list[Path],
    typer.Option(
        "--graph",
        metavar="GRAPH",
        help="A graph that was learned: an .npz file with edge_index, x, y and a boolean array train. Repeat it for "
        "every graph from the first one concerned to the last one learned.",
    ),
]


def rename(
    name: ModelName,
    old: Annotated[str, typer.Argument(metavar="OLD", help="A class of the model.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")],
    out: Out = None,
    force: Force = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Give a class of a model another name; nothing else changes. Works for every method."""

    from ipal.estimator.edits import rename_class

    def change(model: "Model") -> "Model":
        return rename_class(model, label_of(model, old), label_of(model, new))

    _show(rewritten(name, out, force, runs, change, f"renamed {old} to {new}"), "renamed", as_json)


def merge_classes(
    name: ModelName,
    classes: Annotated[list[str], typer.Argument(metavar="CLASS", help="At least two classes of the model.")],
    into: Annotated[str, typer.Option("--into", metavar="NAME", help="The class they become: one of them, or new.")],
    out: Out = None,
    force: Force = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Make one class of several, as if they had always been one.

    Exact for analytic (not with pooled sums), ncm and slda. ipal and pcl pool
    the prototypes; their encoder stays as it was trained. Methods with a
    trained classifier refuse.
    """

    from ipal.estimator import edits

    def change(model: "Model") -> "Model":
        return edits.merge_classes(model, [label_of(model, one) for one in classes], label_of(model, into))

    what = f"merged {', '.join(classes)} into {into}"
    _show(rewritten(name, out, force, runs, change, what), "merged", as_json)


def split(
    name: ModelName,
    label: Annotated[str, typer.Argument(metavar="CLASS", help="A class of the model.")],
    graph: Taught,
    directed: Directed = None,
    out: Out = None,
    force: Force = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Move nodes of a class to new classes, as if they had been learned so.

    GRAPH is as it was learned, but for y, which has the new classes of the
    nodes that move. Exact for analytic, ncm and slda; other methods refuse.
    """
    from ipal.data.datasets.forget_file import read_taught
    from ipal.estimator.convert.pyg import task_of
    from ipal.estimator.edits import split_class

    def change(model: "Model") -> "Model":
        files: list[Any] = [read_taught(one, undirected=not is_directed(model, directed)) for one in graph]
        for path, file in zip(graph, files, strict=True):
            check_kind(model, file.y, path)
        return split_class(model, label_of(model, label), [task_of(file) for file in files])

    _show(rewritten(name, out, force, runs, change, f"split {label}"), "split", as_json)


def relabel(
    name: ModelName,
    graph: Taught,
    directed: Directed = None,
    out: Out = None,
    force: Force = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Correct the labels that nodes were learned with, as if they had been right.

    GRAPH has the labels as they were learned (y) and as they should have been
    (new_y) of the nodes that taught (train; default all). Exact for analytic,
    ncm and slda; other methods refuse.
    """
    from ipal.data.datasets.forget_file import read_correction
    from ipal.estimator import edits
    from ipal.estimator.convert.pyg import correction_of

    def change(model: "Model") -> "Model":
        files: list[Any] = [read_correction(one, undirected=not is_directed(model, directed)) for one in graph]
        for path, file in zip(graph, files, strict=True):
            check_kind(model, file.y, path)
        tasks, labels = zip(*map(correction_of, files), strict=True)
        return edits.relabel(model, tasks, labels)

    _show(rewritten(name, out, force, runs, change, "relabelled"), "relabelled", as_json)


def _show(done: Rewritten, what: str, as_json: bool) -> None:
    if as_json:
        counts = {"before": done.before, "after": done.after}
        render.as_json(
            {"model": str(done.target), "read_from": str(done.source), "done": what, "nodes_behind_class": counts}
        )
        return
    names = [name for name in {**done.before, **done.after} if done.before.get(name) != done.after.get(name)]
    numbers = ("nodes before", "after")
    rows = [(name, str(done.before.get(name, "")), str(done.after.get(name, ""))) for name in names]
    if rows:
        render.out.print(render.table(("class", *numbers), rows, numbers=numbers))
    render.say(f"{what}\nmodel  {done.target}")
