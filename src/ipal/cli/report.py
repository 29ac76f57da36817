"""What is made from stored runs: tables, figures, HTML pages, and copies for trackers."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, DataRoot, Runs
from ipal.errors import ConfigError, did_you_mean
from ipal.runs.run_folder import RunFolder, RunStore
from ipal.system.optional import FIGURES, lacking, need_extra

OUT = Path("report")


def report(
    names: Annotated[
        list[str] | None, Argument(metavar="[NAME]", help="Benches; with --html also runs, by (part of) a name.")
    ] = None,
    html: Annotated[bool, Option("--html", help="One HTML page: of a run, or comparing many.")] = False,
    runs: Runs = RUNS,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Folder (default report); with --html, the file.", show_default=False)
    ] = None,
    no_nodes: Annotated[bool, Option("--no-nodes", help="With --html: no 2-d view, which shows nodes.")] = False,
    search: Annotated[bool, Option("--audit", help="With --html: also search the model for nodes; slower.")] = False,
    root: DataRoot = None,
) -> None:
    """Make tables and figures from stored runs, with the paper's numbers; or an HTML page (--html)."""
    if html:
        return write_page(names or [], runs, out, root, nodes=not no_nodes, search=search)
    if no_nodes or search or root:
        raise ConfigError("--no-nodes, --audit and --data-root are for a page: add --html.")
    from ipal.report.build import make_report

    draw = not lacking(FIGURES[1])
    written = make_report(runs, out or OUT, names or [], draw)
    render.note(f"{len(written)} files; start with {written[0]}")
    if not draw:
        render.note("No figures were drawn: pip install 'ipal[figures]' adds what they need.")


def write_page(
    names: list[str],
    runs: Path,
    out: Path | None = None,
    root: Path | None = None,
    *,
    nodes: bool = True,
    search: bool = False,
) -> None:
    """Write the page of these runs and print its path."""
    need_extra("html", "jinja2")
    from ipal.report.page import choose, default_path, make_page
    from ipal.report.page.write import check_path

    chosen, remarks = choose(names, runs)
    path = out or default_path(chosen)
    check_path(path)  # before a graph is read
    if len(chosen) == 1:
        chosen = [replace(chosen[0], closer=_closer(chosen[0].folder, root, nodes, search))]
    elif search:
        raise ConfigError("--audit examines the model of one run: name a single run.")
    make_page(chosen, path, remarks)
    render.note(f"Open {path} in a browser.")


def _closer(folder: RunFolder, root: Path | None, nodes: bool, search: bool) -> dict[str, Any]:
    """What the page shows of model and graph."""
    if not folder.model.exists():
        return {"remarks": ["The model was not examined: model.safetensors is missing from the run's folder."]}
    from ipal.analysis.run_view import look_closely

    return look_closely(folder, root, nodes=nodes, search=search)


def track(
    names: Annotated[list[str], Argument(metavar="RUN", help="Paths, names, or parts of names of runs.")],
    to: Annotated[str, Option(help="tensorboard, mlflow or wandb.")],
    out: Annotated[str, Option("--out", "-o", help="Folder; for mlflow also the address of a server.")],
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Show runs in TensorBoard, MLflow or W&B: settings, losses, accuracies, AP, AF, recall of classes, time, memory.

    Tracking a run again replaces what has changed. Needs the extra tensorboard,
    mlflow or wandb. For W&B (Weights & Biases) nothing is sent: wandb sync does
    that.
    """
    from ipal.trackers import TRACKERS, read

    if to not in TRACKERS:
        raise ConfigError(f"Runs cannot be tracked with '{to}'.{did_you_mean(to, TRACKERS)}")
    if not out:
        raise ConfigError("Say where to track the runs: -o and a folder.")
    folders = {folder.path: folder for folder in map(RunStore(runs).find, names)}
    tracked = [TRACKERS[to].track(record, out) for record in list(map(read, folders.values()))]
    if as_json:
        return render.as_json([one._asdict() for one in tracked])
    for one in tracked:
        render.say(f"{one.change:9}  {one.run}")
    render.note(TRACKERS[to].how_to_look(out))
