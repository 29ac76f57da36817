"""Saved models: opened with a graph, shown, and changed. A changed file is written whole or not at all."""

from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Argument, Option

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, Directed, Force, ModelName, Runs
from ipal.errors import ConfigError, StoreError
from ipal.runs.run_folder import RunFolder, RunStore
from ipal.system.files import alone_with, check_target

if TYPE_CHECKING:  # torch takes seconds to load
    from ipal.data.dataset import Dataset
    from ipal.estimator.learner import Learner
    from ipal.estimator.model import Model

Out = Annotated[Path | None, Option("--out", "-o", help="File for the result; default: the model's own is replaced.")]
Paths = list[Path] | None
MOST_NAMED = 20


# ---------------------------------------------------------------------- opened and shown


class Opened(NamedTuple):
    """A saved model, and a graph to predict on."""

    path: Path
    model: "Model"
    data: "Dataset"
    directed: bool


def opened(name: str, graph: str, runs: Path, root: Path | None, directed: bool | None, device: str = "cpu") -> Opened:
    """Read a model and a graph to predict on; its edges are taken as the model learned them, unless said."""
    path = RunStore(runs).model_file(name)
    run = RunFolder.of_model(path)

    from ipal.data.datasets import load_to_predict
    from ipal.estimator.files import load

    model = load(path, device=device)
    one_way = model.schema.directed if directed is None else directed
    data = load_to_predict(graph, root or (run.data_root() if run else None), undirected=not one_way)
    return Opened(path, model, data, one_way)


def show_model(path: Path, as_json: bool) -> None:
    """What a saved model is, what it keeps, and its history."""
    from ipal.estimator.display import in_words
    from ipal.estimator.files import load

    model = load(path)
    kept, counts = model.memory_report(), model.nodes_behind_class()
    content = {
        "model": str(path),
        "bytes": path.stat().st_size,
        "method": model.name,
        "features": model.num_features,
        "classes": {name: counts.get(name) for name in map(str, model.labels)},
        "kept": kept["items"],
        "stores_exemplars": kept["stores_exemplars"],
        "history": [event.model_dump() for event in model.history],
    }
    if as_json:
        return render.as_json(content)
    rows = [(name, "" if nodes is None else str(nodes)) for name, nodes in content["classes"].items()]
    render.out.print(render.table(("class", "nodes learned"), rows, numbers=["nodes learned"]))
    history = render.table(("when", "what", "classes", "nodes"), numbers=["nodes"], title="History")
    for one in model.history:
        more = len(one.classes) - MOST_NAMED
        classes = ", ".join(one.classes[:MOST_NAMED]) + f" and {more} more" * (more > 0)
        classes += f" -> {', '.join(one.into)}" * bool(one.into)
        history.add_row((one.time or "").replace("T", " "), one.what, classes, str(one.nodes or ""))
    render.out.print(history)
    render.facts(
        {
            "model": f"{in_words(model)}; {render.many(model.num_features, 'feature')} a node",
            "kept": render.kept(kept, items=True),
            "file": f"{path} ({render.size(content['bytes'])})",
        }
    )


# ---------------------------------------------------------------------- commands that change a model


def forget(
    name: ModelName,
    classes: Annotated[
        list[str] | None,
        Option("--class", metavar="NAME", help="Forget a class; its nodes stay in the graphs. May be repeated."),
    ] = None,
    rows: Annotated[
        Paths, Option("--rows", metavar="GRAPH", help="Forget what nodes taught: as if they had had no label.")
    ] = None,
    nodes: Annotated[
        Paths, Option("--nodes", metavar="GRAPH", help="Forget nodes: as if they had never been there.")
    ] = None,
    graphs: Annotated[Paths, Option("--graph", metavar="GRAPH", help="With --class: what was learned.")] = None,
    which: Annotated[
        str | None,
        Option("--which", metavar="NODES", help="Ids or numbers of nodes, as 3,17,25, or a file with one a line."),
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
    file with edge_index, y and x, and boolean arrays forget (nodes to forget,
    unless --which names them) and train (training nodes; default all that have
    a label); or tables, nodes.csv,edges.csv, with --which.

    The file of the model is replaced; copies of it and merged models are not.
    """
    if sum(map(bool, (classes, rows, nodes))) != 1:
        raise ConfigError("Say what is to be forgotten, with exactly one of --class, --rows and --nodes.")
    if bool(classes) != bool(graphs):
        raise ConfigError("--class and --graph go together: a class, and the graphs from the first one that it was in.")
    if classes and which is not None:
        raise ConfigError("--which names nodes: it goes with --rows or --nodes, not with --class.")

    def change(learner: "Learner") -> object:
        from ipal.data.datasets.forget_file import read_departures, read_taught
        from ipal.estimator import edits

        undirected = not (learner.model_.schema.directed if directed is None else directed)
        if paths := rows or nodes:
            leaving: Any = read_departures(paths, which, undirected=undirected)
            return (edits.forget_rows if rows else edits.forget_nodes)(learner, leaving)
        taught: Any = [read_taught(path, undirected=undirected) for path in graphs or ()]
        return edits.forget_class(learner, [_label(learner, one) for one in dict.fromkeys(classes or ())], taught)

    rewritten(name, out, force, runs, change, "forgot", as_json)
    if out is not None:
        render.note(f"{RunStore(runs).model_file(name)} still remembers: delete it once it is no longer needed.")


def rename(
    name: ModelName,
    old: Annotated[str, Argument(metavar="OLD", help="A class of the model.")],
    new: Annotated[str, Argument(metavar="NEW", help="Its new name.")],
    out: Out = None,
    force: Force = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Give a class of a model another name; nothing else changes. Works for every method."""

    def change(learner: "Learner") -> object:
        from ipal.estimator.edits import rename_class

        return rename_class(learner, _label(learner, old), _label(learner, new))

    rewritten(name, out, force, runs, change, f"renamed {old} to {new}", as_json)


def merge_classes(
    name: ModelName,
    classes: Annotated[list[str], Argument(metavar="CLASS", help="At least two classes of the model.")],
    into: Annotated[str, Option("--into", metavar="NAME", help="The class they become: one of them, or new.")],
    out: Out = None,
    force: Force = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Make one class of several, as if they had always been one.

    Exact for analytic, ncm and slda. ipal and pcl pool the prototypes; their
    encoder stays as it was trained. Methods with a trained classifier refuse.
    """

    def change(learner: "Learner") -> object:
        from ipal.estimator.edits import merge_classes as merged

        return merged(learner, [_label(learner, one) for one in classes], _label(learner, into))

    rewritten(name, out, force, runs, change, f"merged {', '.join(classes)} into {into}", as_json)


def relabel(
    name: ModelName,
    graph: Annotated[
        list[Path], Option("--graph", metavar="GRAPH", help="A graph that was learned, as .npz; may be repeated.")
    ],
    directed: Directed = None,
    out: Out = None,
    force: Force = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Correct the labels that nodes were learned with, or split classes, as if they had been learned so.

    All graphs are needed, from the first one concerned to the last one
    learned. Each has edge_index, x, the labels as they were learned (y) and as
    they should have been (new_y, of known classes or new ones), and a boolean
    array train: the nodes that taught (default all). Exact for analytic, ncm
    and slda; other methods refuse.
    """

    def change(learner: "Learner") -> object:
        from ipal.data.datasets.forget_file import read_correction
        from ipal.estimator import edits

        undirected = not (learner.model_.schema.directed if directed is None else directed)
        graphs: Any = [read_correction(one, undirected=undirected) for one in graph]
        return edits.relabel(learner, graphs)

    rewritten(name, out, force, runs, change, "relabelled", as_json)


def _label(learner: "Learner", name: str) -> int | str:
    """The label that is written so: of a known class, or else of a new one, of the same kind."""
    labels = learner.model_.labels
    by_name = {str(label): label for label in labels}
    if name in by_name or isinstance(labels[0], str):
        return by_name.get(name, name)
    try:
        return int(name)
    except ValueError:
        return name


def merge(
    models: Annotated[list[str], Argument(metavar="MODEL", help="At least two: files, folders, or names of runs.")],
    out: Annotated[Path, Option("--out", "-o", help="File for the merged model.")],
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

    from ipal.estimator.edits import merge_models
    from ipal.estimator.learners import load

    parts = [load(file) for file in files]
    named = [(str(file), part.model_.nodes_behind_class()) for file, part in zip(files, parts, strict=True)]
    whole = reduce(merge_models, parts)
    _write(whole, target, partial(new_file, out, force))
    counts = whole.model_.nodes_behind_class()
    if as_json:
        chosen = whole.model_.method.chosen(whole.model_.state.memory)
        merged = [{"model": file, "nodes_behind_class": own} for file, own in named]
        return render.as_json({"model": str(target), "nodes_behind_class": counts, **chosen, "merged": merged})
    rows = [(name, str(nodes)) for name, nodes in counts.items()]
    render.out.print(render.table(("class", "nodes"), rows, numbers=["nodes"]))
    total = f"{render.many(len(counts), 'class')}, {render.many(sum(counts.values()), 'node')}"
    render.say(f"{render.many(len(models), 'model')} merged: {total}\nmodel  {target}")


# ---------------------------------------------------------------------- files that are changed


def rewritten(
    name: str,
    out: Path | None,
    force: bool,
    runs: Path,
    change: Callable[["Learner"], object],
    what: str,
    as_json: bool | None = None,
) -> None:
    """Change a saved model: its own file is replaced, or another is written; what changed is shown unless None."""
    source = RunStore(runs).model_file(name)
    target = source if out is None else new_file(out, force)

    from ipal.estimator.learners import load

    read = _stamp(source)
    learner = load(source)
    before = learner.model_.nodes_behind_class()
    change(learner)
    after = learner.model_.nodes_behind_class()

    def check() -> None:
        if out is not None:
            new_file(out, force)
        if target == source and _stamp(source) != read:
            # Writing now would undo what another process has just made the model forget.
            raise StoreError(f"{source} was changed by another process meanwhile: nothing was written, repeat it.")

    _write(learner, target, check)
    folder = RunFolder.of_model(source)
    if target == source and folder is not None:
        folder.log(f"{what}: {sum(before.values())} nodes before, {sum(after.values())} after")
        render.note("The run's result.json was measured before, and stays as it is.")
    if as_json:
        counts = {"before": before, "after": after}
        render.as_json({"model": str(target), "read_from": str(source), "done": what, "nodes_behind_class": counts})
    elif as_json is not None:
        _show_change(before, after)
        render.say(f"{what}\nmodel  {target}")


def _show_change(before: dict[str, int], after: dict[str, int]) -> None:
    numbers = ("nodes before", "after")
    if changed := [name for name in {**before, **after} if before.get(name) != after.get(name)]:
        rows = [(name, str(before.get(name, "")), str(after.get(name, "gone"))) for name in changed]
        render.out.print(render.table(("class", *numbers), rows, numbers=numbers))
    if same := [name for name in before if name not in changed]:
        nodes = render.many(sum(before[name] for name in same), "node")
        render.say(f"{render.many(len(same), 'other class')} with {nodes} as before")


def _write(learner: "Learner", target: Path, check: Callable[[], object]) -> None:
    """Write a model under the lock of its file; what another process may have done meanwhile is checked under it."""
    folder = RunFolder.of_model(target)
    with alone_with(target, target.with_name(f".{target.name}.lock")) if folder is None else folder.locked():
        check()
        learner.save(target)


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


def _stamp(path: Path) -> tuple[int, int] | None:
    """Changes whenever the file is replaced."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns
