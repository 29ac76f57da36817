"""`ipal bench`: the runs behind tables and figures."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, DataRoot, Runs

if TYPE_CHECKING:
    from ipal.bench.jobs import Job
    from ipal.bench.suite import Bench, BenchRow, Suite


def bench(
    files: Annotated[list[Path], Argument(metavar="FILE...", help="Experiment files (YAML).")],
    runs: Runs = RUNS,
    root: DataRoot = None,
    jobs: Annotated[int | None, Option(min=1, max=1024, help="Processes at a time; default: by cores.")] = None,
    tune: Annotated[bool, Option("--tune", help="Search every grid, also if the file fixes its settings.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would run.")] = False,
    only: Annotated[list[str] | None, Option(metavar="LABEL", help="Entries to run; may be repeated.")] = None,
    engine: Annotated[str, Option(help="local: processes of this machine. ray: a Ray cluster.")] = "local",
    address: Annotated[
        str | None, Option(metavar="HOST:PORT", help="Head of the Ray cluster, or auto; else a new local Ray.")
    ] = None,
    stack: Annotated[int, Option(min=1, max=64, help="Runs that are trained as one, which is faster on a GPU.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Run the methods, seeds and grids of experiment files in parallel. Finished runs are not repeated."""
    from ipal.bench.experiment_file import read_experiment
    from ipal.bench.suite import execute, make_engine, prepare

    performer = make_engine(engine, address)
    plans = [read_experiment(path) for path in files]
    suite = prepare(plans, runs, root, tune=tune, only=only or (), stack=stack)
    if dry_run:
        return _show_plan(suite)
    try:
        with _View(suite) as view:
            execute(suite, jobs, view, performer)
    except KeyboardInterrupt:
        render.note("Interrupted; saved work is kept. Start the same command again to continue.")
        raise
    finished = {bench.name: [bench.summary(row) for row in bench.rows] for bench in suite.benches}
    if as_json:
        render.as_json(finished)
    else:
        for done in suite.benches:
            _show_rows(done, finished[done.name])
        render.say("'ipal report' makes tables and figures from these runs.")
    for done, row in suite.rows:
        if row.differs:
            render.note(f"{done.experiment.path}, {row.entry.label}: the search chose {_settings(row.differs)}")
    if failures := {run: reason for _, row in suite.rows for run, reason in row.failures.items()}:
        render.table(("run", "why it failed"), failures.items(), title="Not finished", console=render.err)
        render.note("Start the same command again to retry these; finished runs are kept.")
        raise typer.Exit(1)


class _View(render.Status):
    """Shows a suite: a line with what runs now, and one that stays for each finished row."""

    def __init__(self, suite: "Suite") -> None:
        super().__init__(render.err)
        self._suite, self._done = suite, len(suite.jobs) - len(suite.unfinished())

    def started(self, job: "Job") -> None:
        whole = len(self._suite.jobs)  # a search may go on
        self.show(f"{self._done} of {whole} runs done, {job.name.rpartition('-')[0]}", self._done / whole)

    def ended(self, job: "Job", reason: str | None) -> None:
        self._done += 1
        if reason is not None:
            render.note(f"failed: {job.name}: {reason}")

    def settled(self, bench: "Bench", row: "BenchRow") -> None:
        done = bench.summary(row)
        scores = f"AP {_spread(done['average_performance'])}  AF {_spread(done['average_forgetting'])}"
        render.note(f"{bench.name}, {row.entry.label}{' †' * done['stores_exemplars']}: {scores}")


def _show_plan(suite: "Suite") -> None:
    left = {job.name for job in suite.unfinished()}
    for bench in suite.benches:
        numbers = ("grid\npoints", "seeds", "runs", "finished\nalready")
        title = f"{bench.name} on {bench.dataset}"
        rows = []
        for row in bench.rows:
            counts = (len(row.points), len(row.points[0].runs), len(row.runs), len(row.runs - left))
            rows.append((row.entry.label, row.entry.method, *counts))
        render.table(("entry", "method", *numbers), rows, numbers=numbers, title=title)
    render.say(f"{len(suite.jobs)} different runs, {len(suite.jobs) - len(left)} finished.")


def _show_rows(bench: "Bench", rows: list[dict[str, Any]]) -> None:
    numbers = ("AP", "AF", "valid.\nAP", "seconds")
    title = f"{bench.name}: {bench.experiment.about or bench.dataset}"
    shown = []
    for row in rows:
        cells = [_spread(row[name]) for name in ("average_performance", "average_forgetting")]
        if row["runs"]:
            cells += [f"{row['validation']['mean']:.2f}", f"{row['seconds']:.1f}"]
        settings = _settings(row["settings"])
        shown.append([row["label"] + " †" * row["stores_exemplars"] + (settings and f"\n  {settings}"), *cells])
    render.table(("entry", *numbers), shown, numbers=numbers, title=title)
    render.legend(rows)


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {json.dumps(value)}" for name, value in settings.items())


def _spread(spread: dict[str, float | None]) -> str:
    if spread["mean"] is None:
        return "failed"
    return f"{spread['mean']:.2f}" + ("" if spread["sd"] is None else f" ± {spread['sd']:.2f}")
