"""What is made from runs: tables, figures, HTML pages and copies for trackers."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, Runs
from ipal.errors import ConfigError, did_you_mean
from ipal.runs.run_folder import RunStore
from ipal.system.optional import FIGURES, lacking, need_extra


def report(
    names: Annotated[
        list[str] | None, Argument(metavar="[NAME]", help="Benches; with --html also runs, by (part of) a name.")
    ] = None,
    html: Annotated[bool, Option("--html", help="One HTML page: of a run, or comparing many.")] = False,
    runs: Runs = RUNS,
    out: Annotated[Path | None, Option("--out", "-o", help="Folder (default report); with --html, the file.")] = None,
) -> None:
    """Make tables and figures from stored runs, with the paper's numbers; or an HTML page (--html)."""
    if html:
        return write_page(names or [], runs, out)
    from ipal.report.build import make_report

    draw, folder = not lacking(FIGURES[1]), out or Path("report")
    written = make_report(runs, folder, names or [], draw)
    render.note(f"{len(written)} files in {folder}")
    if not draw:
        render.note("No figures were drawn: pip install 'ipal[figures]' adds what they need.")


def write_page(names: list[str], runs: Path, out: Path | None = None) -> None:
    """Write the page of these runs and print its path."""
    need_extra("html", "jinja2")
    from ipal.report.collect import choose
    from ipal.report.page import make_page

    benches, chosen, remarks = choose(names, runs)
    path = make_page(benches, chosen, out, remarks)
    render.note(f"Open {path} in a browser.")


def track(
    names: Annotated[list[str], Argument(metavar="RUN", help="Paths, names, or parts of names of runs.")],
    to: Annotated[str, Option(help="tensorboard, mlflow or wandb.")],
    out: Annotated[str, Option("--out", "-o", help="Folder; for mlflow also the address of a server.")],
    runs: Runs = RUNS,
    as_json: AsJson = False,
) -> None:
    """Show runs in TensorBoard, MLflow or W&B: settings, losses, accuracies, AP, AF, recall of classes, time, memory.

    Tracking a run again replaces it. Needs the extra tensorboard, mlflow or
    wandb. For W&B (Weights & Biases) nothing is sent: wandb sync does that.
    """
    from ipal.trackers import TRACKERS, read

    if to not in TRACKERS:
        raise ConfigError(f"Runs cannot be tracked with '{to}'.{did_you_mean(to, TRACKERS)}")
    if not out:
        raise ConfigError("Say where to track the runs: -o and a folder.")
    folders = {folder.path: folder for folder in map(RunStore(runs).find, names)}
    tracked = [{"run": one.name, "where": TRACKERS[to](one, out)} for one in list(map(read, folders.values()))]
    if as_json:
        return render.as_json(tracked)
    for one in tracked:
        render.say(f"{one['run']}: {one['where']}")
