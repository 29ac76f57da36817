"""`ipal drift`: how far old classes' features move while new ones are learned."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from rich.progress import track
from typer import Option

from ipal.cli import render
from ipal.cli.app import AsJson, DataRoot, Settings
from ipal.config import Tree, override, parse_assignment
from ipal.errors import ConfigError
from ipal.system.optional import FIGURES, need_extra

OUT = Path("drift")
METHODS = "pr,pcl,ipal"
"""Those of Theorem 1, and the paper's own."""


def drift(
    dataset: Annotated[str, Option(help="Name of a graph, or the path of an .npz file.")],
    methods: Annotated[str, Option(help="Methods with an encoder, separated by commas.")] = METHODS,
    seeds: Annotated[int, Option(min=1, max=1000, help="How many seeds: 0, 1, 2, …")] = 5,
    settings: Settings = None,
    out: Annotated[Path, Option("--out", "-o", help="Folder for tables and figures.")] = OUT,
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
        measuring = track(planned, "measuring", console=render.err, transient=True)
        every = [Measurement(**measure(run)) for run in measuring]
    numbers, written = make_report(every, HOW, out, shlex.join(["ipal", *sys.argv[1:]]))
    if as_json:
        return render.as_json({**numbers, "files": list(map(str, written))})
    title = f"Drift on {planned[0].dataset.name}: mean over old classes and tasks"
    render.out.print(render.report_table(replace(table(numbers), caption=title)))
    for line in verdicts(numbers):
        render.say(line)
    render.note(f"{len(written)} files; start with {written[0]}")
