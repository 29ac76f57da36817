"""`ipal drift`: how far old classes' features move while new ones are learned."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, DataRoot
from ipal.config import Tree, override, parse_assignment
from ipal.errors import ConfigError
from ipal.system.optional import FIGURES, need_extra

OUT = Path("drift")
METHODS = "pr,pcl,ipal"
"""Those of Theorem 1, and the paper's own."""


def drift(
    dataset: Annotated[str, typer.Option(help="Name of a graph, or the path of an .npz file.")],
    methods: Annotated[str, typer.Option(help="Methods with an encoder, separated by commas.")] = METHODS,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="How many seeds: 0, 1, 2, …")] = 5,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting by its dotted name, as train.epochs=50.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for measurements, tables and figures.")] = OUT,
    runs: Annotated[
        Path, typer.Option(help="Folder of all runs: the AP of those measured here is checked.", envvar="IPAL_RUNS")
    ] = RUNS,
    root: DataRoot = None,
    as_json: AsJson = False,
) -> None:
    """Measure the drift of old classes' features (Theorem 1, Figures 1 and 5). Measured values are kept."""
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

    from ipal.analysis.feature_drift import measure_all, plan
    from ipal.report.drift import make_report, read_measurement, table, verdicts
    from ipal.runs.run_folder import RunStore

    planned = plan(tree, named, seeds, root)
    with render.interruptible("Interrupted; finished measurements are kept. Start the same command again to continue."):
        measuring = measure_all(planned, out)
        paths = list(track(measuring, "measuring", len(planned), console=render.err, transient=True))
    numbers, written = make_report(paths, out, shlex.join(["ipal", *sys.argv[1:]]))
    for run, path in zip(planned, paths, strict=True):
        folder = RunStore(runs).folder_for(run.config)
        if folder.is_finished:
            gap = folder.result()["average_performance"] - read_measurement(path).average_performance
            if abs(gap) > 1e-6:
                render.note(f"{folder.path} has another AP than measured here ({gap:+.2f}): made on another machine?")
    if as_json:
        render.as_json({**numbers, "files": list(map(str, written))})
        return
    title = f"Drift on {planned[0].dataset.name}: mean over old classes and tasks"
    render.out.print(render.report_table(replace(table(numbers), caption=title)))
    for line in verdicts(numbers):
        render.say(line)
    render.note(f"{len(written)} files; start with {written[0]}")
