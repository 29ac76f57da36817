"""The commands: each parses its options, calls one function of the library and prints the result.

Heavy imports are inside the commands, so that --help is quick.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ipal._version import __version__
from ipal.cli import render
from ipal.config import RunConfig, Tree, first_paragraph, override, parse_assignment, run_config
from ipal.errors import CapacityError, ConfigError, did_you_mean, shortened
from ipal.runs.config_files import presets, read_config_file
from ipal.runs.overview import overview
from ipal.runs.run_folder import RunFolder, RunStore
from ipal.system.files import is_file
from ipal.system.optional import need_extra
from ipal.system.plugins import Registry

if TYPE_CHECKING:
    from ipal.runs.resolved import Resolved
    from ipal.system.memory_budget import Budget

EXAMPLES = """
[bold]Examples[/bold]

  ipal run --dataset digits                     ten digits, no download

  ipal run --dataset cs --preset paper          CS-CL, as we read the paper

  ipal run --dataset nodes.csv,edges.csv        a graph in two tables

  ipal resume cs-ipal-seed0                     go on after a crash

  ipal show digits --json                       numbers for a script

[dim]IPAL_DATA names the folder with the graphs (default ~/.cache/ipal).[/dim]
"""

EXPERIMENT, USE, MAINTAIN = "Experiment", "Use a model", "Maintain a model"
"""The groups of commands in the help."""
RARE = "More options"
"""The group of options, below the others, that are seldom needed."""


class _PlainFlags:
    """In the help, an option that takes no value has no type beside it."""

    def get_params(self, context: Any) -> list[Any]:
        every: list[Any] = super().get_params(context)  # type: ignore[misc]
        for one in every:
            if getattr(one, "is_flag", False):
                one.metavar = ""
        return every


class _Command(_PlainFlags, TyperCommand): ...


class _Commands(_PlainFlags, TyperGroup): ...


class _App(typer.Typer):
    """Commands that take the options of a run where they ask for its configuration (`wanted`)."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        register = super().command(name, cls=_Command, **options)

        def add(command: Any) -> Any:
            register(_complete(command))
            return command

        return add


def _complete(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """The command as typer takes it: returns what is to be done when all options are understood."""
    own, of_run = (dict(inspect.signature(one).parameters) for one in (command, wanted_run))
    makes_run = own.pop("wanted", None) is not None

    @functools.wraps(command)
    def complete(**options: Any) -> Callable[[], None]:
        if makes_run:
            options["wanted"] = wanted_run(**{name: options.pop(name) for name in of_run})
        return functools.partial(command, **options)

    every = [*(of_run.values() if makes_run else ()), *own.values()]
    changed: Any = complete
    changed.__signature__ = inspect.Signature([one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in every])
    changed.__annotations__ = {one.name: one.annotation for one in every}
    return complete


app = _App(
    cls=_Commands,
    help="Continual learning on graphs without keeping old nodes: learn new classes one group after the other, "
    "measure what is forgotten, resume after a crash.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _show_version(asked: bool) -> None:
    if asked:
        render.say(f"ipal {__version__}")
        raise typer.Exit


@app.callback()
def whole(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


Runs = Annotated[Path, typer.Option("--runs", help="Folder of all runs.", envvar="IPAL_RUNS", rich_help_panel=RARE)]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root", help="Folder with the graphs; default IPAL_DATA or ~/.cache/ipal.", rich_help_panel=RARE
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Plain JSON on stdout, for scripts.")]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=10**9,
        help="Epochs between two checkpoints; default: so that they take little time.",
        rich_help_panel=RARE,
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        help="Limit of main memory, as 8GB: chooses full graphs, sampled batches or pieces automatically.",
        rich_help_panel=RARE,
    ),
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Path, name, part of a name, or latest.")]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="Model file, run folder, or (part of) a run's name.")]
GraphName = Annotated[
    str,
    typer.Option("--graph", metavar="GRAPH", help="Name, file, folder, or nodes.csv,edges.csv; no labels needed."),
]
Directed = Annotated[
    bool | None,
    typer.Option("--directed/--undirected", help="Directed or undirected edges; default: as the model learned them."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
Html = Annotated[bool, typer.Option("--html", help="Also write an HTML page of the run.")]
Long = Annotated[bool, typer.Option("--long", help="Also metrics, what is stored, and the protocol, in words.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any setting by its dotted name, as ipal.gamma=0.7 ('ipal list methods --long'); may be repeated.",
    ),
]
RUNS = Path("runs")
Show = Callable[[RunFolder, dict[str, Any]], None]


def wanted_run(
    *,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset", help="A graph by name, file, folder, or as nodes.csv,edges.csv; several with commas."
        ),
    ] = None,
    method: Annotated[str | None, typer.Option(help="Name of a method: see 'ipal list methods'.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Random seed: split of nodes, initial weights, all samples.")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", metavar="N", help="Epochs of every task: short for --set train.epochs=N."),
    ] = None,
    settings: Settings = None,
    split: Annotated[str | None, typer.Option(help="Classes per task, as 5,2,2.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="What an experiment gives the method, as paper or table1-cs: see 'ipal list presets'."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with settings.", rich_help_panel=RARE)] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default 1).", rich_help_panel=RARE)] = None,
) -> RunConfig:
    """The configuration that options ask for: --set overrides the others, these the file, the file the preset."""
    options: Tree = {"dataset": dataset, "method": method, "seed": seed, "device": device, "threads": threads}
    options |= {"split": _parse_split(split), "train": None if epochs is None else {"epochs": epochs}}
    tree: Tree = read_config_file(config) if config else {}
    tree = override(tree, {name: value for name, value in options.items() if value is not None})
    for assignment in settings or []:
        tree = override(tree, parse_assignment(assignment))
    if preset:
        from ipal.bench.experiment_file import as_tree, read_preset

        wanted = str(tree.get("method", RunConfig.model_fields["method"].default))
        tree = override(as_tree(read_preset(preset, wanted)), tree)
    if "dataset" not in tree:
        raise ConfigError("Say which graph: --dataset digits needs no file; 'ipal list datasets' shows all.")
    return run_config(tree, settings_of_methods())


def settings_of_methods() -> Iterator[str]:
    """Their dotted names; where nobody looks at them, torch is not loaded."""
    from ipal.estimator.registry import METHODS
    from ipal.estimator.settings import own_settings

    for name, method in METHODS.own.items():
        yield from (f"{name}.{setting}" for setting in own_settings(method))


@app.command(rich_help_panel=EXPERIMENT)
def run(
    wanted: RunConfig,
    runs: Runs = RUNS,
    root: DataRoot = None,
    checkpoint_every: CheckpointEvery = None,
    memory_limit: MemoryLimit = None,
    html: Html = False,
    full: Long = False,
    as_json: AsJson = False,
) -> None:
    """Learn a stream of tasks and show the accuracy matrix. A finished run is shown, an interrupted one resumed."""
    if html:
        need_extra("html", "jinja2")  # now, not after hours of learning
    show = functools.partial(_show, full=full, as_json=as_json)
    resolved, budget = within_limit(_resolved(wanted, root), memory_limit)
    folder = RunStore(runs).folder_for(resolved.config)
    if folder.is_finished:
        _show_finished(folder, show)
    else:
        if folder.checkpoint.exists():
            render.note(f"This run was interrupted before; resuming {folder.path.name}")
        _execute(resolved, folder, show, checkpoint_every=checkpoint_every, runtime=resolved.runtime(budget))
    if html:
        from ipal.cli.report import write_page

        write_page([str(folder.path)], runs, root=root)


@app.command(rich_help_panel=EXPERIMENT)
def resume(
    name: RunName,
    runs: Runs = RUNS,
    root: DataRoot = None,
    checkpoint_every: CheckpointEvery = None,
    memory_limit: MemoryLimit = None,
    full: Long = False,
    as_json: AsJson = False,
) -> None:
    """Continue an interrupted run; the result is the same as without the interruption."""
    show, folder = functools.partial(_show, full=full, as_json=as_json), RunStore(runs).find(name)
    config = folder.config()
    if folder.is_finished:
        return _show_finished(folder, show)
    resolved = _resolved(config, root or folder.data_root())
    fitting, budget = within_limit(resolved, memory_limit)
    if fitting.config != resolved.config:
        raise CapacityError(
            "This run was started on full graphs, which the limit leaves no room for: start a run with --memory-limit."
        )
    _execute(resolved, folder, show, checkpoint_every=checkpoint_every, runtime=resolved.runtime(budget))


@app.command(rich_help_panel=EXPERIMENT)
def show(
    name: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="Path or name of a run, or latest; a model file.")],
    runs: Runs = RUNS,
    full: Long = False,
    as_json: AsJson = False,
) -> None:
    """Show a finished run (accuracy matrix, AP, AF, time, memory, what is stored), or a model file and its history."""
    if is_file(Path(name)):
        from ipal.cli.models import show_model

        return show_model(Path(name).resolve(), as_json)
    folder = RunStore(runs).find(name)
    folder.config()
    if not folder.is_finished:
        raise ConfigError(f"{folder.path.name} is not finished: 'ipal resume {folder.path.name}' goes on with it.")
    _show(folder, folder.result(), full=full, as_json=as_json)


@app.command(name="list", rich_help_panel=EXPERIMENT)
def list_things(
    what: Annotated[str, typer.Argument(help="methods, encoders, streams, metrics, scores, datasets, presets, runs.")],
    runs: Runs = RUNS,
    root: DataRoot = None,
    full: Annotated[bool, typer.Option("--long", help="Methods with their settings.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what there is of one kind, or the runs."""
    own: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "runs": lambda: [overview(folder) for folder in RunStore(runs).all()],
        "presets": _presets,
    }
    rows = own[what]() if what in own else _things(_registry(what), root)
    if as_json:
        render.as_json(rows)
    else:
        render.listing(what, rows, full=full)


def _resolved(config: RunConfig, root: Path | None) -> "Resolved":
    with render.Status(render.err, f"reading {shortened(config.dataset)}"):
        from ipal.data.datasets.catalog import data_root
        from ipal.runs import runner  # torch takes seconds to load

        return runner.resolve(config, data_root(root))


def within_limit(resolved: "Resolved", limit: str | None) -> tuple["Resolved", "Budget | None"]:
    """The run that fits a memory limit, and its memory budget."""
    if limit is None:
        return resolved, None
    from ipal.runs import memory_plan

    way = memory_plan.fitted(resolved, memory_plan.parse_bytes(limit))
    render.note(f"Within {limit}: {way.name}, which takes about {way.bytes / memory_plan.GIB:.1f} GiB")
    return replace(resolved, config=way.config), way.budget


def _execute(resolved: "Resolved", folder: RunFolder, show: Show, **options: Any) -> None:
    from ipal.runs import runner

    again = f"ipal resume {folder.path}"
    interrupted = f"Interrupted; nothing saved is lost. Go on with: {again}"
    with render.interruptible(interrupted), render.ProgressLine() as line:
        for _ in runner.run_by_epochs(resolved, folder, line, **options):
            pass
    show(folder, folder.result())


def _show_finished(folder: RunFolder, show: Show) -> None:
    result = folder.result()
    folder.tidy()
    render.note("This run is finished already: what it found is shown.")
    show(folder, result)


def _show(folder: RunFolder, result: dict[str, Any], *, full: bool, as_json: bool) -> None:
    if as_json:
        render.as_json({"run": str(folder.path), **result})
    else:
        render.result(result, folder.path, full=full)


def _parse_split(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--split takes whole numbers with commas, as 5,2,2; got '{shortened(text)}'.") from error


def _registry(what: str) -> Registry[Any]:
    if what == "datasets":  # at once: the others load torch
        from ipal.data.datasets.catalog import CATALOG

        return CATALOG
    from ipal.runs.resolved import REGISTRIES

    registries = {f"{registry.kind}s": registry for registry in REGISTRIES}
    if what not in registries:
        raise ConfigError(f"'{what}' cannot be listed.{did_you_mean(what, ['runs', 'presets', *registries])}")
    return registries[what]


def _things(registry: Registry[Any], root: Path | None) -> list[dict[str, Any]]:
    """All of one kind by name; what installed packages offer is named, not loaded."""
    if registry.kind == "dataset":
        from ipal.data.datasets.catalog import all_names, data_root, describe

        rows = [describe(name, data_root(root)) for name in all_names(data_root(root))]
    else:
        rows = [_described(thing, registry.kind) for thing in registry.own.values()]
    rows += [{"name": name} for name in registry.entries]
    for row in rows:
        package = registry.package(row["name"])
        row["plugin"] = package and str(package)
    return rows


def _described(thing: Any, kind: str) -> dict[str, Any]:
    if kind == "method":
        from ipal.estimator.settings import describe

        return describe(thing)
    return {"name": thing.name, "about": getattr(thing, "about", "") or first_paragraph(thing.__doc__)}


def _presets() -> list[dict[str, Any]]:
    found = presets()
    return [{"name": name, "about": read_config_file(found[name])["about"], "file": str(found[name])} for name in found]
