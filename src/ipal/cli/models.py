"""Saved models: opened with a graph, shown, and changed. A changed file is written whole or not at all."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from typer import Argument, Option

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, Force, GraphName, ModelName, Runs, Settings
from ipal.config import Tree, override, parse_assignment
from ipal.errors import ConfigError, DataError, StoreError
from ipal.runs.run_folder import RunFolder, RunStore
from ipal.system.files import alone_with, check_target

if TYPE_CHECKING:  # torch takes seconds to load
    from ipal.data.dataset import Dataset
    from ipal.data.graph_data import GraphData
    from ipal.estimator.learner import Learner
    from ipal.estimator.model import Model

Out = Annotated[Path | None, Option("--out", "-o", help="File for the result; default: the model's own is replaced.")]
Paths = list[Path] | None


def opened(
    name: str, graph: str, runs: Path, root: Path | None, device: str = "cpu"
) -> tuple[Path, "Model", "Dataset"]:
    """Read a model, and a graph to predict on; its edges are taken as the model learned them."""
    path = RunStore(runs).model_file(name)
    run = RunFolder.of_model(path)

    from ipal.data.datasets import load_to_predict
    from ipal.estimator.files import load

    model = load(path, device=device)
    folder = root or (run.data_root() if run else None)
    return path, model, load_to_predict(graph, folder, undirected=not model.directed)


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
    render.table(("class", "nodes learned"), content["classes"].items(), numbers=["nodes learned"])
    rows = []
    for one in model.history:
        classes = ", ".join(one.classes) + f" -> {', '.join(one.into)}" * bool(one.into)
        rows.append(((one.time or "").replace("T", " "), one.what, classes, one.nodes or None))
    render.table(("when", "what", "classes", "nodes"), rows, numbers=["nodes"], title="History")
    render.facts(
        {
            "model": f"{in_words(model)}; {render.many(model.num_features, 'feature')} a node",
            "kept": render.kept(kept),
            "file": f"{path} ({render.size(content['bytes'])})",
        }
    )


# ---------------------------------------------------------------------- commands that change a model


def learn(
    name: Annotated[str, Argument(metavar="MODEL", help="Model file, or run; with --method a new file.")],
    graph: GraphName,
    since: Annotated[
        str | None, Option(metavar="GRAPH", help="What was learned before: its labels are left out.")
    ] = None,
    method: Annotated[str | None, Option(help="Begin a new model of this method.")] = None,
    assignments: Settings = None,
    out: Out = None,
    force: Force = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Learn the new labels of a graph, of known or new classes.

    For a graph that grows, give the whole graph of this month, and with
    --since that of the month before: nodes that have a label in both, by their
    ids (or numbers), are not learned again. A graph is nodes.csv,edges.csv, or
    an .npz file, whose boolean array train marks the training nodes (default
    all that have a label).

    [bold]Examples[/bold]

      ipal learn kinds.safetensors --graph nodes.csv,edges.csv --method analytic

      ipal learn kinds.safetensors --graph nodes2.csv,edges2.csv --since nodes.csv,edges.csv
    """
    if method is None and assignments:
        raise ConfigError("Settings are chosen when a model is begun: --set goes with --method.")
    if method is not None and out is not None:
        raise ConfigError("--method begins a new model, in the file MODEL: leave out -o.")
    begun = None
    if method is not None:
        from ipal.estimator.learner import learner_class
        from ipal.estimator.registry import METHODS

        given = reduce(override, map(parse_assignment, assignments or ()), Tree())
        begun = learner_class(METHODS.find(method))(**{**given.pop(method, {}), **given})
    with changed(name, out, force, runs, "learned", as_json, begun) as learner:
        from ipal.data.datasets.forget_file import new_since, read_taught

        undirected = method is not None or not learner.model_.directed
        data = read_taught(Path(graph), undirected=undirected)
        if since is not None:
            data = new_since(data, read_taught(Path(since), undirected=undirected))
            if not np.any(data.train_mask):
                raise DataError(f"All labels of {graph} are in {since}, too: there is nothing to learn.")
        elif method is None and np.isin(np.asarray(data.y), learner.classes_).any():
            render.note("Labels that were learned before count twice: leave them out with --since.")
        learner.partial_fit(data)


def forget(
    name: ModelName,
    classes: Annotated[
        list[str] | None, Option("--class", metavar="NAME", help="Forget a class; its nodes stay in the graphs.")
    ] = None,
    rows: Annotated[Paths, Option(metavar="GRAPH", help="Forget their labels, not the nodes.")] = None,
    nodes: Annotated[Paths, Option(metavar="GRAPH", help="Forget nodes and all their edges.")] = None,
    graphs: Annotated[Paths, Option("--graph", metavar="GRAPH", help="With --class: what was learned.")] = None,
    which: Annotated[str | None, Option(metavar="NODES", help="Ids or numbers of nodes, as 3,17,25.")] = None,
    out: Out = None,
    force: Force = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Make a model forget, exactly: it becomes the one that never learned what is forgotten.

    Sums, ridge, calibration and history are those of that model. For it all
    graphs are needed, from the first one concerned to the last one learned, as
    they were learned: name each with an option of its own. A graph is an .npz
    file with edge_index, y and x, and boolean arrays forget (nodes to forget,
    unless --which names them) and train (training nodes; default all that have
    a label); or tables, nodes.csv,edges.csv, with --which. Labels that were left
    out by "ipal learn --since" are left out again.

    The file of the model is replaced; copies of it and merged models are not.
    """
    if sum(map(bool, (classes, rows, nodes))) != 1:
        raise ConfigError("Say what is to be forgotten, with exactly one of --class, --rows and --nodes.")
    if bool(classes) != bool(graphs) or (classes and which is not None):
        raise ConfigError("--class goes with --graph (from the first one that it was in); --rows and --nodes, --which.")
    with changed(name, out, force, runs, "forgot", as_json) as learner:
        from ipal.data.datasets.forget_file import read_departures, read_taught
        from ipal.estimator import edits

        undirected = not learner.model_.directed
        if paths := rows or nodes:
            leaving = _as_learned(learner, read_departures(paths, which, undirected=undirected))
            (edits.forget_rows if rows else edits.forget_nodes)(learner, leaving)
        else:
            taught = _as_learned(learner, [read_taught(path, undirected=undirected) for path in graphs or ()])
            edits.forget_class(learner, [_label(learner, one) for one in dict.fromkeys(classes or ())], taught)
    if out is not None:
        render.note(f"{RunStore(runs).model_file(name)} still remembers: delete it once it is not needed.")


def rename(
    name: ModelName,
    classes: Annotated[list[str], Argument(metavar="CLASS", help="A class of the model; of several, one is made.")],
    to: Annotated[str, Option(metavar="NAME", help="Its new name; for several also that of one of them.")],
    out: Out = None,
    force: Force = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Give a class another name; or make one class of several, as if they had always been one.

    A new name works for every method. One class of several is exact for
    analytic, ncm and slda; ipal and pcl pool the prototypes, and their encoder
    stays as it was trained. Methods with a trained classifier refuse.
    """
    with changed(name, out, force, runs, f"renamed {', '.join(classes)} to {to}", as_json) as learner:
        from ipal.estimator import edits

        old, new = [_label(learner, one) for one in classes], _label(learner, to)
        edits.merge_classes(learner, old, new) if len(old) > 1 else edits.rename_class(learner, old[0], new)


def relabel(
    name: ModelName,
    graphs: Annotated[
        list[Path], Option("--graph", metavar="GRAPH", help="A graph that was learned, as .npz; may be repeated.")
    ],
    out: Out = None,
    force: Force = False,
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Correct the labels that nodes were learned with, or split classes, as if they had been learned so.

    All graphs are needed, from the first one concerned to the last one
    learned. Each has edge_index, x, the labels as they were learned (y) and as
    they should have been (new_y, of known classes or new ones), and a boolean
    array train: the training nodes (default all). Exact for analytic, ncm
    and slda; other methods refuse.
    """
    with changed(name, out, force, runs, "relabelled", as_json) as learner:
        from ipal.data.datasets.forget_file import read_correction
        from ipal.estimator import edits

        corrected: Any = [read_correction(one, undirected=not learner.model_.directed) for one in graphs]
        edits.relabel(learner, corrected)


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
    target, files = new_file(out, force), [RunStore(runs).model_file(name) for name in models]
    if len({*files}) < max(2, len(files)):
        raise ConfigError("Name at least two models to merge, none of them twice: ipal merge A B -o C")

    from ipal.estimator.edits import merge_models
    from ipal.estimator.learners import load

    with _alone(target):
        whole = reduce(merge_models, map(load, files))
        whole.save(target)
    counts = whole.model_.nodes_behind_class()
    if as_json:
        chosen = whole.model_.method.chosen(whole.model_.state.memory)
        return render.as_json({"model": str(target), "nodes_behind_class": counts, **chosen})
    render.table(("class", "nodes"), counts.items(), numbers=["nodes"])
    total = f"{render.many(len(counts), 'class')}, {render.many(sum(counts.values()), 'node')}"
    render.say(f"{render.many(len(models), 'model')} merged: {total}\nmodel  {target}")


# ---------------------------------------------------------------------- files that are changed


@contextmanager
def changed(
    name: str, out: Path | None, force: bool, runs: Path, what: str, as_json: bool, begun: "Learner | None" = None
) -> "Iterator[Learner]":
    """A saved model to be changed, which no other command works on: its own file is replaced, or another is written.

    A learner that is begun has none yet.
    """
    source = RunStore(runs).model_file(name) if begun is None else new_file(Path(name), force)
    target = source if out is None else new_file(out, force)

    from ipal.estimator.learners import load

    with _alone(target):
        learner = load(source) if begun is None else begun
        before = learner.model_.nodes_behind_class() if begun is None else {}
        yield learner
        after = learner.model_.nodes_behind_class()
        learner.save(target)
    folder = RunFolder.of_model(source)
    if target == source and folder is not None:
        folder.log(f"{what}: {sum(before.values())} nodes before, {sum(after.values())} after")
        render.note("The run's result.json was measured before, and stays as it is.")
    if as_json:
        counts = {"before": before, "after": after}
        return render.as_json({"model": str(target), "done": what, "nodes_behind_class": counts})
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    rows = [(name, before.get(name), after.get(name, "gone")) for name in changed]
    render.table(("class", "nodes before", "after"), rows, numbers=("nodes before", "after"))
    render.say(f"{what}\nmodel  {target}")


def _as_learned(learner: "Learner", graphs: "Sequence[GraphData]") -> Any:
    """Graphs with the training nodes that the model learned; after `ipal learn --since` those of no earlier graph."""
    from ipal.data.datasets.forget_file import new_since
    from ipal.estimator.convert.pyg import task_of
    from ipal.estimator.history import fingerprint

    model = learner.model_
    known = {lesson.fingerprint for lesson in model.lessons}

    def is_known(graph: "GraphData") -> bool:
        task = task_of(graph)
        return fingerprint(replace(task, graph=model.checked(task.graph))) in known

    found = []
    for place, graph in enumerate(graphs):
        less = (new_since(graph, earlier) for earlier in reversed(graphs[:place]))
        readings = itertools.chain([graph], (one for one in less if np.any(one.train_mask)))
        found.append(next(filter(is_known, readings), graph))
    return found


def _alone(target: Path) -> AbstractContextManager[None]:
    folder = RunFolder.of_model(target)
    return folder.locked() if folder else alone_with(target, target.with_name(f".{target.name}.lock"))


def _label(learner: "Learner", name: str) -> int | str:
    """The label that is written so: of a known class, or else of a new one, of the same kind."""
    labels = learner.model_.labels
    new = int(name) if isinstance(labels[0], int) and name.isdecimal() else name
    return {str(label): label for label in labels}.get(name, new)


def new_file(path: Path, force: bool) -> Path:
    """Check the output path before anything is computed."""
    check_target(path)
    if path.is_dir():
        raise StoreError(f"{path} is a folder: give -o the name of a file.")
    if path.exists() and not force:
        raise StoreError(f"{path} exists already: choose another name, or --force to replace it.")
    if not path.parent.is_dir():
        raise StoreError(f"The folder {path.parent} does not exist: make it, or give -o another name.")
    return path.resolve()
