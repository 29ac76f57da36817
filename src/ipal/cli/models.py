"""`ipal merge` and `ipal forget`: operations on saved models whose memory is a sum over nodes (the closed form)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, ModelName, Runs
from ipal.cli.opened import Directed, is_directed
from ipal.errors import ConfigError, DataError, StoreError
from ipal.runs.run_folder import RunFolder, RunStore
from ipal.system.files import alone_with, check_target

if TYPE_CHECKING:  # torch takes seconds to load
    from ipal.data.labels import Label, Labels
    from ipal.estimator.model import Model

Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="File for the result; default: the model's own file is replaced.")
]
Counts = dict[str, int]


def merge(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help="At least two: model files, run folders, or (parts of) names of runs."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the merged model.")],
    force: Force = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Merge models of the method analytic into the model that learned all their nodes.

    They need the same settings and seed. Classes may differ, or be shared.
    Sums are exact; where analytic.ridge is not set, it follows from the
    leave-one-out losses of all models.
    """
    if len(models) < 2:
        raise ConfigError("Name at least two models to merge: ipal merge A B -o C")
    target = new_file(out, force)
    files = [RunStore(runs).model_file(name) for name in models]
    for place, file in enumerate(files):
        if file in files[:place]:
            raise ConfigError(f"{file} is named twice: its nodes would count twice.")
    parts = [_with_sums(file) for file in files]

    from ipal.estimator.edits import merge_models
    from ipal.estimator.files import save

    whole = reduce(merge_models, parts)
    with _only_writer(target):
        new_file(out, force)  # another process may have made it meanwhile
        save(whole, target)
    counts = whole.nodes_behind_class()
    behind = [part.nodes_behind_class() for part in parts]
    if as_json:
        named = zip(files, behind, strict=True)
        render.as_json(
            {
                "model": str(target),
                "nodes_behind_class": counts,
                **whole.method.chosen(whole.state.memory),
                "merged": [{"model": str(file), "nodes_behind_class": own} for file, own in named],
            }
        )
        return
    table = render.table(("class", "nodes", "from"), numbers=["nodes"])
    for name, nodes in counts.items():
        shares = [(model, own[name]) for model, own in zip(models, behind, strict=True) if name in own]
        table.add_row(name, str(nodes), ", ".join(model + f" ({own})" * (len(shares) > 1) for model, own in shares))
    render.out.print(table)
    total = f"{render.many(len(counts), 'class')}, {render.many(sum(counts.values()), 'node')}"
    render.say(f"{render.many(len(models), 'model')} merged: {total}\nmodel  {target}")


def forget(
    name: ModelName,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            metavar="NAME",
            help="Forget a class; may be repeated. Its nodes teach nothing, and stay in the graphs.",
        ),
    ] = None,
    rows: Annotated[
        list[Path] | None,
        typer.Option(
            "--rows", metavar="GRAPH", help="Forget what nodes taught: as if they had had no label. May be repeated."
        ),
    ] = None,
    nodes: Annotated[
        list[Path] | None,
        typer.Option(
            "--nodes", metavar="GRAPH", help="Forget nodes: as if they had never been there. May be repeated."
        ),
    ] = None,
    graphs: Annotated[
        list[Path] | None,
        typer.Option("--graph", metavar="GRAPH", help="With --class: what was learned. May be repeated."),
    ] = None,
    which: Annotated[
        str | None,
        typer.Option(
            "--which",
            metavar="NODES",
            help="Ids or numbers of nodes, as 3,17,25, or a file with one a line; replaces the array forget.",
        ),
    ] = None,
    directed: Directed = None,
    out: Out = None,
    force: Force = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Make a model forget, exactly: it becomes the one that was never taught what is forgotten.

    Sums, ridge, calibration and history are those of that model. For it all
    graphs are needed, from the first one concerned to the last one learned, as
    they were learned: name each with an option of its own. A graph is an .npz
    file with edge_index, y and x, and boolean arrays forget (nodes to forget)
    and train (training nodes; default all that have a label); or tables,
    nodes.csv,edges.csv, with --which.

    The file of the model is replaced; copies of it and merged models are not.
    """
    if sum(map(bool, (classes, rows, nodes))) != 1:
        raise ConfigError("Say what is to be forgotten, with exactly one of --class, --rows and --nodes.")
    if bool(classes) != bool(graphs):
        raise ConfigError("--class and --graph go together: a class, and the graphs from the first one that it was in.")
    if classes and which is not None:
        raise ConfigError("--which names nodes: it goes with --rows or --nodes, not with --class.")
    sense = "class" if classes else "rows" if rows else "nodes"

    def change(model: "Model") -> "Model":
        if paths := rows or nodes:
            return _without(model, paths, sense, which, directed)
        return _without_classes(model, classes or [], graphs or [], directed)

    source, target, before, after = rewritten(name, out, force, runs, change, f"forgot by {sense}", _with_sums)
    if target != source:
        render.note(f"{source} still remembers: delete it once it is no longer needed.")
    if as_json:
        render.as_json(
            {
                "model": str(target),
                "read_from": str(source),
                "by": sense,
                "nodes_behind_class": {"before": before, "after": after},
                "forgotten_classes": [label for label in before if label not in after],
            }
        )
    else:
        _show_change(before, after, sense, target)


class Rewritten(NamedTuple):
    """A model file that was changed: where it was read and written, and how many nodes stand behind each class."""

    source: Path
    target: Path
    before: Counts
    after: Counts


def loaded(path: Path) -> "Model":
    """A model of any method."""
    from ipal.estimator.files import load

    return load(path)


def rewritten(
    name: str,
    out: Path | None,
    force: bool,
    runs: Path,
    change: Callable[["Model"], "Model"],
    what: str,
    load: Callable[[Path], "Model"] = loaded,
) -> Rewritten:
    """Change a saved model: its own file is replaced, or another is written; all of it or nothing."""
    source = RunStore(runs).model_file(name)
    target = source if out is None else new_file(out, force)
    read = _stamp(source)
    model = load(source)
    changed = change(model)
    before, after = model.nodes_behind_class(), changed.nodes_behind_class()

    from ipal.estimator.files import save

    with _only_writer(target):
        if out is not None:
            new_file(out, force)  # another process may have made it meanwhile
        if target == source and _stamp(source) != read:
            # Writing now would undo what another process has just made the model forget.
            raise StoreError(
                f"{source} was changed by another process meanwhile: nothing was written, repeat the command."
            )
        save(changed, target)
    if target == source and (source.parent / "config.yaml").exists():
        RunFolder(source.parent).log(f"{what}: {sum(before.values())} nodes before, {sum(after.values())} after")
        render.note("The run's result.json was measured before, and stays as it is.")
    return Rewritten(source, target, before, after)


def label_of(model: "Model", name: str) -> "Label":
    """The label that is written so: of a known class, or else of a new one, of the same kind."""
    by_name = {str(label): label for label in model.labels}
    if name in by_name or isinstance(model.labels[0], str):
        return by_name.get(name, name)
    try:
        return int(name)
    except ValueError:
        return name


def check_kind(model: "Model", labels: "Labels", path: Path) -> None:
    """Refuse labels in a file that are strings where the model has numbers, or the other way round."""
    strings = labels.dtype.kind == "U"
    if strings != isinstance(model.labels[0], str):
        kinds = ("strings", "numbers") if strings else ("numbers", "strings")
        raise DataError(f"The labels in {path} are {kinds[0]}, but the model knows its classes by {kinds[1]}.")


def _without(model: "Model", paths: Sequence[Path], sense: str, which: str | None, directed: bool | None) -> "Model":
    """Without nodes that files name, or without what they taught."""
    from ipal.data.datasets.forget_file import read_departures
    from ipal.estimator.convert.pyg import departure_of
    from ipal.estimator.edits import forget_nodes, forget_rows

    files: list[Any] = read_departures(paths, which, undirected=not is_directed(model, directed))
    if sense == "rows":
        files = _where_taught(files, paths, named=which is not None)
    departures = [departure_of(file) for file in files]
    for path, departure in zip(paths, departures, strict=True):
        check_kind(model, departure.task.labels, path)
    return (forget_nodes if sense == "nodes" else forget_rows)(model, departures)


def _where_taught(files: Sequence[Any], paths: Sequence[Path], named: bool) -> list[Any]:
    """Nodes that are marked must have taught; those that are named, in one of the graphs, and leave it."""
    names = [range(file.num_nodes) if file.ids is None else file.ids.tolist() for file in files]
    leaving = [file.forget_mask & file.train_mask for file in files]
    taught = {of[at] for of, some in zip(names, leaving, strict=True) for at in some.nonzero()[0] if named}
    for path, file, of in zip(paths, files, names, strict=True):
        never = [of[at] for at in (file.forget_mask & ~file.train_mask).nonzero()[0] if of[at] not in taught]
        if never:
            raise DataError(f"Node {never[0]} of {path} is to be forgotten, but the array train says it never taught.")
    return [replace(file, forget_mask=some) for file, some in zip(files, leaving, strict=True)]


def _without_classes(model: "Model", classes: Sequence[str], paths: Sequence[Path], directed: bool | None) -> "Model":
    from ipal.data.datasets.forget_file import read_taught
    from ipal.estimator.convert.pyg import task_of
    from ipal.estimator.edits import forget_classes

    files: list[Any] = [read_taught(path, undirected=not is_directed(model, directed)) for path in paths]
    tasks = [task_of(file) for file in files]
    for path, task in zip(paths, tasks, strict=True):
        check_kind(model, task.labels, path)
    return forget_classes(model, [label_of(model, one) for one in dict.fromkeys(classes)], tasks)


def _with_sums(path: Path) -> "Model":
    """A model that can be made to forget, and perhaps merged."""
    from ipal.estimator.registry import METHODS
    from ipal.methods.base import Forgets

    model = loaded(path)
    if not isinstance(model.method, Forgets):
        able = ", ".join(name for name, method in METHODS.items() if isinstance(method(), Forgets))
        raise StoreError(
            f"{path} is a model of the method '{model.name}': only models of {able} keep sums, which can be taken "
            "apart and added."
        )
    return model


def new_file(path: Path, force: bool) -> Path:
    """Check the output path before anything is computed."""
    check_target(path)
    if path.is_dir():
        raise StoreError(f"{path} is a folder: give -o the name of a file.")
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is no plain file, and is not replaced by one: give -o another name.")
    if path.exists() and not force:
        raise StoreError(f"{path} exists already: give -o another name, or --force to replace it.")
    if not path.parent.is_dir():
        raise StoreError(f"The folder {path.parent} does not exist: make it, or give -o another name.")
    return path.resolve()


@contextmanager
def _only_writer(model: Path) -> Iterator[None]:
    """Hold the lock of a model file between the last check and the end of writing."""
    folder = RunFolder.of_model(model)
    lock = model.with_name(f".{model.name}.lock")
    with alone_with(model, lock) if folder is None else folder.locked():
        yield


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes whenever the file is replaced."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _show_change(before: Counts, after: Counts, sense: str, target: Path) -> None:
    changed = [name for name in before if after.get(name) != before[name]]
    numbers = ("nodes before", "after")
    rows = [(name, str(before[name]), str(after.get(name, "forgotten"))) for name in changed]
    if changed:
        render.out.print(render.table(("class", *numbers), rows, numbers=numbers))
    same = [name for name in before if name not in changed]
    if same:
        redone = "" if sense != "nodes" else "; features that the nodes had reached were redone"
        nodes = render.many(sum(before[name] for name in same), "node")
        render.say(f"{render.many(len(same), 'other class')} with {nodes} as before{redone}")
    render.say(f"model  {target}")
