"""What is made from runs: tables, figures, HTML pages, copies for trackers, and how far features drift."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

from rich import progress
from typer import Argument, Option

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, DataRoot, Runs, Settings
from ipal.config import Tree, override, parse_assignment
from ipal.errors import ConfigError, did_you_mean
from ipal.runs.run_folder import RunStore
from ipal.system.optional import FIGURES, lacking, need_extra

OUT = Path("report")


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

    draw = not lacking(FIGURES[1])
    written = make_report(runs, out or OUT, names or [], draw)
    render.note(f"{len(written)} files in {out or OUT}")
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


def drift(
    dataset: Annotated[str, Option(help="Name of a graph, or the path of an .npz file.")],
    methods: Annotated[str, Option(help="Methods with an encoder, separated by commas.")] = "pr,pcl,ipal",
    seeds: Annotated[int, Option(min=1, max=1000, help="How many seeds: 0, 1, 2, …")] = 5,
    settings: Settings = None,
    out: Annotated[Path, Option("--out", "-o", help="Folder for tables and figures.")] = Path("drift"),
    root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Measure the drift of old classes' features (Theorem 1, Figures 1 and 5)."""
    need_extra(*FIGURES)
    from ipal.bench.experiment_file import as_tree, read_preset

    named = [name for part in methods.split(",") if (name := part.strip())]
    alike = as_tree(read_preset("drift-cs", "ipal"))  # all methods train alike
    tree: Tree = {"dataset": dataset, **{name: alike[name] for name in ("encoder", "train")}}
    tree |= {name: alike[name] for name in named if name in alike}
    for assignment in settings or []:
        tree = override(tree, parse_assignment(assignment))
    if {"method", "seed"} & tree.keys():
        raise ConfigError("Several methods and seeds are measured: name them with --methods and --seeds, not --set.")

    from ipal.analysis.feature_drift import HOW, measure, plan
    from ipal.report.drift import Measurement, make_report, table, verdicts

    planned = plan(tree, named, seeds, root)
    with render.interruptible("Interrupted; nothing was written."):
        measuring = progress.track(planned, "measuring", console=render.err, transient=True)
        every = [Measurement(**measure(run)) for run in measuring]
    numbers, written = make_report(every, HOW, out, shlex.join(["ipal", *sys.argv[1:]]))
    if as_json:
        return render.as_json({**numbers, "files": list(map(str, written))})
    made = table(numbers)
    columns = [column for place, column in enumerate(made.columns) if made.is_number(place)]
    title = f"Drift on {planned[0].dataset.name}: mean over old classes and tasks"
    cells = [[cell.text for cell in row] for row in made.rows]
    render.out.print(render.table(made.columns, cells, numbers=columns, title=title))
    for line in verdicts(numbers):
        render.say(line)
    render.note(f"{len(written)} files; start with {written[0]}")


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
