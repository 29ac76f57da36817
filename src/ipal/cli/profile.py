"""`ipal profile`: where the time and memory of a run go."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rich.table import Table

from ipal.cli import render
from ipal.cli.app import AsJson, CheckpointEvery, DataRoot, MemoryLimit, within_limit
from ipal.config import RunConfig

SMALL = 5e-4
"""Parts with less than this share of the time are counted as other."""
MOST_TASKS = 8
"""Most tasks that have a column each."""
MEMORY = {"host": "memory", "device": "GPU memory"}


def profile(
    wanted: RunConfig,
    root: DataRoot = None,
    checkpoint_every: CheckpointEvery = None,
    memory_limit: MemoryLimit = None,
    as_json: AsJson = False,
) -> None:
    """Show where the time and memory of a run go, by task and part. Takes the options of 'ipal run'; stores no run."""
    from ipal.analysis.profile import profile as made

    fit = partial(within_limit, limit=memory_limit)
    with render.interruptible("Interrupted; an incomplete run has no profile."), render.ProgressLine() as line:
        found = made(wanted, line, root, fit, checkpoint_every=checkpoint_every)
    if as_json:
        return render.as_json(found)
    _show(found)
    if found["device"] != "cpu":
        render.say(
            "While parts are timed, every part waits for the GPU, and steps are not recorded as CUDA graphs: 'ipal "
            "run' is faster."
        )


def _show(found: Mapping[str, Any]) -> None:
    from ipal.analysis.profile import OTHER, highest

    title = f"Seconds and peak memory of {found['method']} on {found['dataset']}, {found['device']}"
    table, gauges = Table(title=title, title_justify="left"), list(found["peak_bytes"])
    table.add_column("part", no_wrap=True)
    tasks = range(found["tasks"]) if found["tasks"] <= MOST_TASKS else (0, found["tasks"] // 2, found["tasks"] - 1)
    for heading in ("total", "share", *(f"task {task + 1}" for task in tasks), *(MEMORY[gauge] for gauge in gauges)):
        table.add_column(heading, justify="right", no_wrap=True)
    digits = 3 if found["seconds"] < 10 else 2 if found["seconds"] < 1000 else 1

    def add(name: str, rows: Sequence[Mapping[str, Any]], style: str = "") -> None:
        seconds = sum(row["own_seconds"] for row in rows)
        of_tasks = [sum(row["own_seconds_per_task"][task] for row in rows) for task in tasks]
        peaks = highest(*(row["peak_bytes"] for row in rows))
        table.add_row(
            name,
            f"{seconds:.{digits}f}",
            f"{seconds / found['seconds']:.1%}",
            *(f"{each:.{digits}f}" if any(of_tasks) else "" for each in of_tasks),
            *(render.size(peaks[gauge]) if peaks.get(gauge) else "" for gauge in gauges),
            style=style,
        )

    parts, others = _below(found["parts"], 0), []
    for name, rows in parts.items():
        if name == OTHER or sum(row["own_seconds"] for row in rows) < SMALL * found["seconds"]:
            others += rows
            continue
        add(name, rows)
        for inside, own in _below(rows, 1).items():
            add(f"  {inside}", own, style="dim")
    add(OTHER, others)
    table.add_section()
    add("all", found["parts"], style="bold")
    render.out.print(table)


def _below(rows: Sequence[Mapping[str, Any]], depth: int) -> dict[str, list[Mapping[str, Any]]]:
    """Rows by the name of their part at a depth."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if len(row["part"]) > depth:
            found.setdefault(row["part"][depth], []).append(row)
    return found
