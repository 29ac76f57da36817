"""`ipal bench`: the runs behind tables and figures."""

import itertools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ipal.cli import render
from ipal.cli.app import RUNS, AsJson, DataRoot, Runs
from ipal.errors import ConfigError, shortened
from ipal.runs.run_folder import RunStore

if TYPE_CHECKING:
    from ipal.bench.jobs import Job
    from ipal.bench.suite import Bench, BenchRow, Suite

MOST_NAMED = 4
"""Most running runs that are shown by name."""


def bench(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Experiment files (YAML).")],
    runs: Runs = RUNS,
    root: DataRoot = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Processes at a time; default: cores divided by the threads of a run."),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search every grid, also if the file fixes its settings.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and the estimated time.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="LABEL", help="These entries only, with commas; may be repeated."),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Other seeds than the file's, as 0-2 or 0,3.")] = None,
    engine: Annotated[str, typer.Option(help="local: processes of this machine. ray: a Ray cluster.")] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="Head of the Ray cluster, or auto; default RAY_ADDRESS, or a new local Ray.",
        ),
    ] = None,
    stack: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            help="On a GPU, train up to so many runs that differ in numbers alone, as in gamma, as one: "
            "faster, and the same but for rounding.",
        ),
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Run the methods, seeds and grids of experiment files in parallel. Finished runs are not repeated."""
    from ipal.bench.experiment_file import read_experiment
    from ipal.bench.suite import execute, make_engine, prepare

    performer = make_engine(engine, address)
    plans = [read_experiment(path) for path in files]
    suite = prepare(plans, runs, root, tune=tune, only=only or (), seeds=_parse_seeds(seeds), stack=stack)
    if dry_run:
        return _show_plan(suite, RunStore(runs), jobs)
    interrupted = "Interrupted; saved work is kept. Start the same command again to continue."
    with render.interruptible(interrupted), _View(suite) as view:
        execute(suite, jobs, view, performer)
    finished = {bench.name: [bench.summary(row) for row in bench.rows] for bench in suite.benches}
    if as_json:
        render.as_json(finished)
    else:
        for done in suite.benches:
            _show_rows(done, finished[done.name])
        render.out.print("'ipal report' makes tables and figures from these runs.")
    for done, row in suite.rows:
        if row.differs:
            render.note(f"{done.experiment.path}, {row.entry.label}: the search chose {_settings(row.differs)}")
    failures = {run: reason for _, row in suite.rows for run, reason in row.failures.items()}
    if failures:
        _show_failures(failures)
        raise typer.Exit(1)


class _View:
    """Shows a suite: a progress bar of runs, and a line for each finished row."""

    def __init__(self, suite: "Suite") -> None:
        self._running: dict[str, None] = {}
        self._bar = Progress(
            TextColumn("runs"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[now]}", style="dim", markup=False),
            console=render.err,
            # Durations differ between runs: estimate the speed over the last hour.
            speed_estimate_period=3600,
        )
        self._suite, total = suite, len(suite.jobs)
        self._id = self._bar.add_task("", total=total, completed=total - len(suite.unfinished()), now="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, job: "Job") -> None:
        self._running[job.name] = None
        self._bar.update(self._id, now=self._now())

    def ended(self, job: "Job", reason: str | None) -> None:
        self._running.pop(job.name, None)
        self._bar.update(self._id, advance=1, total=len(self._suite.jobs), now=self._now())  # a search may go on
        if reason is not None:
            self._say(f"failed: {job.name}: {reason}")

    def settled(self, bench: "Bench", row: "BenchRow") -> None:
        done = bench.summary(row)
        if row.chosen is None:
            return self._say(f"{bench.name}, {row.entry.label}: failed")
        chosen = f", chosen {_settings(row.chosen.settings)}" if row.is_searched else ""
        scores = f"AP {_spread(done['average_performance'])}  AF {_spread(done['average_forgetting'])}"
        label = row.entry.label + " †" * done["stores_exemplars"]
        self._say(f"{bench.name}, {label}: {scores}  validation AP {_spread(done['validation'])}{chosen}")

    def _now(self) -> str:
        names = [re.sub("-[0-9a-f]{16}$", "", name) for name in tuple(self._running)]
        more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
        return ", ".join([*names[:MOST_NAMED], *more])

    def _say(self, line: str) -> None:
        self._bar.console.print(line, soft_wrap=True, markup=False)


def _show_plan(suite: "Suite", store: RunStore, jobs: int | None) -> None:
    from ipal.bench.duration import estimates
    from ipal.bench.local_executor import room

    size = jobs or room(suite.jobs.values())
    unfinished = suite.unfinished()
    left = dict(
        zip((job.name for job in unfinished), estimates(store, [job.config for job in unfinished]), strict=True)
    )
    unknown: dict[str, None] = {}
    for bench in suite.benches:
        numbers = ("grid\npoints", "seeds", "runs", "finished\nalready", "estimated\ntime")
        title = f"{bench.name} on {bench.dataset}"
        table = render.table(("entry", "method", *numbers), numbers=numbers, title=title, no_wrap=True)
        for row in bench.rows:
            mine = [left[run] for run in sorted(row.runs & left.keys())]
            counts = (len(row.points), len(row.seeds), len(row.runs), len(row.runs) - len(mine))
            known = [seconds for seconds in mine if seconds is not None]
            time = _duration(sum(known)) if len(known) == len(mine) else "unknown"
            table.add_row(row.entry.label, row.entry.method, *map(str, counts), time)
            if len(known) < len(mine):
                unknown[f"{row.entry.method} on {bench.dataset}"] = None
        render.out.print(table)
    for what in unknown:
        render.say(f"No estimate: there is no similar finished run of {what}.")
    known = [seconds for seconds in left.values() if seconds is not None]
    most = max(sum(known) / size, max(known, default=0.0))
    time = f"about {_duration(most)} on this machine"
    if unknown:
        time = f"{time} for the {len(known)} with an estimate" if known else "no estimate of the time"
    render.say(
        f"{len(suite.jobs)} different runs, {len(suite.jobs) - len(left)} finished; {size} at a time, up to "
        f"{suite.threads} thread(s) each: {time}."
    )


def _show_rows(bench: "Bench", rows: list[dict[str, Any]]) -> None:
    title = f"{bench.name}: {bench.experiment.about or bench.dataset}"
    table = Table(title=title, title_justify="left")
    table.add_column("entry", overflow="fold")
    for name in ("AP", "AF", "valid.\nAP", "seconds", "peak\nmemory"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        peak = render.size(row["peak_memory_bytes"]) + " ‡" * (row["runs_taking_turns"] > 1) if row["runs"] else ""
        cost = (f"{row['seconds']:.1f}" if row["runs"] else "", peak)
        scores = [_spread(row[name]) for name in ("average_performance", "average_forgetting")]
        validation = f"{row['validation']['mean']:.2f}" if row["runs"] else ""
        settings = _settings(row["settings"]) or "defaults" * bool(row["defaults"])
        mark = " †" * row["stores_exemplars"]
        table.add_row(row["label"] + mark + (settings and f"\n  {settings}"), *scores, validation, *cost)
    render.out.print(table)
    render.legend(rows)
    if any(row["runs"] and row["runs_taking_turns"] > 1 for row in rows):
        render.out.print("‡ of all runs that took turns in one process.")
    if untuned := {row["label"]: row["defaults"] for row in rows if row["defaults"]}:
        render.say("Defaults are not tuned for this graph: name a 'preset' or a 'grid' in the file. The settings used:")
        for labels, used in _by_labels(untuned).items():
            render.say(f"  {', '.join(labels)}: {_settings(used)}")


def _by_labels(settings: dict[str, dict[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    """What several rows have in common is said once: settings by the labels of all rows that have them."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, value in ((name, value) for used in settings.values() for name, value in used.items()):
        labels = tuple(label for label, used in settings.items() if name in used and used[name] == value)
        found.setdefault(labels, {})[name] = value
    return found


def _show_failures(failures: dict[str, str]) -> None:
    render.err.print(render.table(("run", "why it failed"), failures.items(), title="Not finished"))
    render.note("Start the same command again to retry these; finished runs are kept.")


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {json.dumps(value)}" for name, value in settings.items())


def _spread(spread: dict[str, float | None]) -> str:
    if spread["mean"] is None:
        return "failed"
    return f"{spread['mean']:.2f}" + ("" if spread["sd"] is None else f" ± {spread['sd']:.2f}")


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _parse_seeds(text: str | None) -> tuple[int, ...]:
    """`0-2,5` as 0, 1, 2, 5."""
    if text is None:
        return ()
    parts = [re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part.strip()) for part in text.split(",")]
    ranges = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part]
    if not all(parts) or not any(ranges):
        raise ConfigError(f"--seeds takes seeds as 0-2 or 0,3; got '{shortened(text)}'.")
    from ipal.bench.experiment_file import MOST_SEEDS

    if sum(map(len, ranges)) > MOST_SEEDS:
        raise ConfigError(f"--seeds names {sum(map(len, ranges))} seeds; at most {MOST_SEEDS} are taken: name fewer.")
    return tuple(dict.fromkeys(itertools.chain.from_iterable(ranges)))
