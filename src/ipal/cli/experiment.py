"""`ipal run`, `resume`, `show` and `list`: runs, and what they can be made of."""

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, DataRoot, Runs, Settings, rare
from ipal.config import RunConfig, Tree, first_paragraph, override, parse_assignment, run_config
from ipal.errors import ConfigError, did_you_mean, shortened
from ipal.runs.config_files import presets, read_config_file
from ipal.runs.run_folder import RunFolder, RunStore, overview
from ipal.system.optional import need_extra
from ipal.system.plugins import Registry

if TYPE_CHECKING:
    from ipal.runs.resolved import Resolved

CheckpointEvery = Annotated[int | None, rare(min=1, max=10**9, help="Epochs between two checkpoints.")]


def run(
    dataset: Annotated[
        str | None, Option(help="A graph by name, file, folder, or as nodes.csv,edges.csv; several with commas.")
    ] = None,
    method: Annotated[str | None, Option(help="Name of a method: see 'ipal list methods'.")] = None,
    seed: Annotated[int | None, Option(min=0, help="Random seed: split of nodes, weights, samples.")] = None,
    epochs: Annotated[int | None, Option(metavar="N", help="Epochs of a task: short for --set train.epochs=N.")] = None,
    settings: Settings = None,
    split: Annotated[str | None, Option(help="Classes per task, as 5,2,2.")] = None,
    preset: Annotated[str | None, Option(help="Settings of an experiment: see 'ipal list presets'.")] = None,
    device: Annotated[str | None, Option(help="cpu, cuda or cuda:N.")] = None,
    config: Annotated[Path | None, rare(help="YAML file with settings.")] = None,
    threads: Annotated[int | None, rare(min=1, help="CPU threads (default 1).")] = None,
    runs: Runs = RUNS,
    root: DataRoot = None,
    checkpoint_every: CheckpointEvery = None,
    memory_limit: Annotated[str | None, rare(help="Limit of main memory, as 8GB.")] = None,
    html: Annotated[bool, Option("--html", help="Also write an HTML page of the run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Learn a stream of tasks and show the accuracy matrix. A finished run is shown, an interrupted one resumed."""
    if html:
        need_extra("html", "jinja2")  # now, not after hours of learning
    options: Tree = {"dataset": dataset, "method": method, "seed": seed, "device": device, "threads": threads}
    given = {name: value for name, value in options.items() if value is not None}
    short = [f"split=[{split}]"] * (split is not None) + [f"train.epochs={epochs}"] * (epochs is not None)
    given = reduce(override, map(parse_assignment, [*short, *(settings or ())]), given)
    wanted = wanted_run(given, config, preset)
    with render.Status(render.err, f"reading {shortened(wanted.dataset)}"):
        folder = None if memory_limit else _finished_before(wanted, runs, root)
        if folder is None:
            _check_used(wanted.method, given, epochs)
            resolved = _resolved(wanted, root)
    if folder is None:
        folder = _made(resolved, runs, memory_limit, checkpoint_every)
        folder.mark(wanted)
    else:
        _say_finished(folder)
    _show(folder, as_json)
    if html:
        from ipal.cli.report import write_page

        write_page([str(folder.path)], runs)


def wanted_run(given: Tree, config: Path | None = None, preset: str | None = None) -> RunConfig:
    """The configuration that is asked for: what is given overrides the file, the file the preset."""
    tree = override(read_config_file(config) if config else {}, given)
    if preset:
        from ipal.bench.experiment_file import as_tree, read_preset

        method = str(tree.get("method", RunConfig.model_fields["method"].default))
        tree = override(as_tree(read_preset(preset, method)), tree)
    if "dataset" not in tree:
        raise ConfigError("Say which graph: --dataset digits needs no file; 'ipal list datasets' shows all.")
    return run_config(tree, settings_of_methods())


def settings_of_methods() -> Iterator[str]:
    """Their dotted names; where they are not looked at, torch is not loaded."""
    from ipal.estimator.registry import METHODS
    from ipal.estimator.settings import own_settings

    for name, method in METHODS.own.items():
        yield from (f"{name}.{setting}" for setting in own_settings(method))


def _check_used(method: str, given: Tree, epochs: int | None) -> None:
    """Refuse epochs, and other settings of a network, for a method that trains none; their defaults may be said."""
    from ipal.estimator.registry import METHODS
    from ipal.estimator.settings import shared_settings
    from ipal.runs.resolved import SECTIONS

    unused = SECTIONS.keys() & given.keys() - {*shared_settings(METHODS.find(method))}
    if any(epochs is not None or type(SECTIONS[name])(**given[name]) != SECTIONS[name] for name in unused):
        what = f"--epochs and all settings of {' and '.join(sorted(unused))}"
        raise ConfigError(f"The method '{method}' trains no network: leave out {what}.")


def resume(
    name: Annotated[str, Argument(metavar="RUN", help="Path, name, part of a name, or latest.")],
    runs: Runs = RUNS,
    root: DataRoot = None,
    checkpoint_every: CheckpointEvery = None,
    as_json: AsJson = False,
) -> None:
    """Continue an interrupted run; the result is the same as without the interruption."""
    folder = RunStore(runs).find(name)
    config = folder.config()
    if folder.is_finished:
        _say_finished(folder)
    else:
        with render.Status(render.err, f"reading {shortened(config.dataset)}"):
            resolved = _resolved(config, root or folder.data_root())
        _execute(resolved, folder, checkpoint_every=checkpoint_every)
    _show(folder, as_json)


def show(
    name: Annotated[str, Argument(metavar="RUN|MODEL", help="Path or name of a run, or latest; a model file.")],
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Show a finished run (accuracy matrix, AP, AF, time, memory, what is stored), or a model file and its history."""
    if isfile(Path(name)):
        from ipal.cli.models import show_model

        return show_model(Path(name).resolve(), as_json)
    folder = RunStore(runs).find(name)
    folder.config()
    if not folder.is_finished:
        raise ConfigError(f"{folder.path.name} is not finished: 'ipal resume {folder.path.name}' goes on with it.")
    _show(folder, as_json)


def _finished_before(wanted: RunConfig, runs: Path, root: Path | None) -> RunFolder | None:
    """The finished run of the same request on the same graph, found without torch."""
    folder = RunStore(runs).finished_before(wanted)
    if folder is None:
        return None
    from ipal.data.datasets import load

    graph = load(wanted.dataset, root, undirected=wanted.protocol.edges == "undirected")
    return folder if graph.hash == folder.config().dataset_hash else None


def _resolved(config: RunConfig, root: Path | None) -> "Resolved":
    from ipal.data.datasets.catalog import data_root
    from ipal.runs import runner  # torch takes seconds to load

    return runner.resolve(config, data_root(root))


def _made(resolved: "Resolved", runs: Path, limit: str | None, checkpoint_every: int | None) -> RunFolder:
    """The folder of a run, made now unless it is finished; where memory is limited, in a way that fits."""
    budget = None
    if limit is not None:
        from ipal.runs import memory_plan

        way = memory_plan.fitted(resolved, memory_plan.parse_bytes(limit))
        how = "mini-batches" if way.config.protocol.batch != "full" else "full graphs"
        render.note(f"Within {limit}: {how}, which takes at least about {way.bytes / memory_plan.GIB:.1f} GiB")
        resolved, budget = replace(resolved, config=way.config), way.budget
    folder = RunStore(runs).folder_for(resolved.config)
    if folder.is_finished:
        _say_finished(folder)
        return folder
    if folder.checkpoint.exists():
        render.note(f"This run was interrupted before; resuming {folder.path.name}")
    _execute(resolved, folder, checkpoint_every=checkpoint_every, runtime=resolved.runtime(budget))
    return folder


def _execute(resolved: "Resolved", folder: RunFolder, **options: Any) -> None:
    from ipal.runs import runner

    try:
        with render.ProgressLine(render.err) as line:
            runner.run(resolved, folder, line, **options)
    except KeyboardInterrupt:
        again = f"Start the same command again, or: ipal resume {folder.path}"
        render.note(f"Interrupted; nothing saved is lost. {again}")
        raise


def _say_finished(folder: RunFolder) -> None:
    folder.result()
    folder.tidy()
    render.note("This run is finished already: what it found is shown.")


def _show(folder: RunFolder, as_json: bool) -> None:
    result = folder.result()
    if as_json:
        return render.as_json({"run": str(folder.path), **result})
    render.result(result, folder.path)


def list_(
    what: Annotated[str, Argument(help="methods, encoders, streams, metrics, datasets, presets, runs.")],
    runs: Runs = RUNS,
    root: DataRoot = None,
    full: Annotated[bool, Option("--long", help="Methods with their settings.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what is available of one kind, or the runs."""
    rows = _listed(what, runs, root)
    if as_json:
        return render.as_json(rows)
    render.listing(what, rows, full)


def _listed(what: str, runs: Path, root: Path | None) -> list[dict[str, Any]]:
    if what == "runs":
        return [overview(folder) for folder in RunStore(runs).all()]
    if what == "presets":
        known = presets().items()
        return [{"name": name, "about": read_config_file(path)["about"], "file": str(path)} for name, path in known]
    if what == "datasets":  # at once: the others load torch
        from ipal.data.datasets import catalog

        registry: Registry[Any] = catalog.CATALOG
        folder = catalog.data_root(root)
        rows = [catalog.describe(name, folder) for name in registry.own | catalog.graph_files(folder)]
    else:
        from ipal.estimator.settings import describe
        from ipal.runs.resolved import REGISTRIES

        registries = {f"{registry.kind}s": registry for registry in REGISTRIES}
        if what not in registries:
            raise ConfigError(f"'{what}' cannot be listed.{did_you_mean(what, ['runs', 'presets', *registries])}")
        registry = registries[what]
        rows = [describe(one) if what == "methods" else _about(one) for one in registry.own.values()]
    # What installed packages offer is not loaded.
    unknown = {"here": True, "split": None}
    return rows + [{"name": name, "about": f"from {registry.package(name)}", **unknown} for name in registry.entries]


def _about(thing: Any) -> dict[str, str]:
    return {"name": thing.name, "about": getattr(thing, "about", "") or first_paragraph(thing.__doc__)}
