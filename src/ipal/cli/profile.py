"""`ipal profile`: where the time and memory of a run go."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ipal.cli import render
from ipal.cli.app import AsJson, CheckpointEvery, DataRoot, MemoryLimit, within_limit
from ipal.config import RunConfig
from ipal.system.files import make_folder
from ipal.system.optional import FIGURES, need_extra

if TYPE_CHECKING:
    from ipal.report.profile import ProfileLine

OUT = Path("profile")
BESIDE_TASKS = 54
"""Most characters of the other columns of the table."""
COLUMN = 10
"""Most characters of one more column."""


def profile(
    wanted: RunConfig,
    root: DataRoot = None,
    checkpoint_every: CheckpointEvery = None,
    memory_limit: MemoryLimit = None,
    undisturbed: Annotated[
        bool, typer.Option("--undisturbed", help="Run once more without timing its parts, for comparison.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the figure and the numbers.")] = OUT,
    as_json: AsJson = False,
) -> None:
    """Show where the time and memory of a run go, by task and part. Takes the options of 'ipal run'; stores no run."""
    need_extra(*FIGURES)
    from ipal.analysis.profile import profile as made
    from ipal.report import profile as report

    fit = partial(within_limit, limit=memory_limit)
    with render.interruptible("Interrupted; an incomplete run has no profile."), _Line(out) as line:
        found = made(wanted, line, root, fit, checkpoint_every=checkpoint_every, undisturbed=undisturbed)
    written = report.write(found, out)
    if as_json:
        render.as_json({**found, "files": list(map(str, written))})
        return
    _show(found)
    for sentence in report.notes(found):
        render.say(sentence)
    render.note("written: " + ", ".join(map(str, written)))


class _Line(render.ProgressLine):
    """Makes the folder when the run starts: not for a run that cannot start, and not after it, when the run would be
    lost if the folder cannot be made."""

    def __init__(self, out: Path) -> None:
        super().__init__()
        self._out = out

    def started(self, tasks: int, epochs: int, done: int) -> None:
        make_folder(self._out)
        super().started(tasks, epochs, done)


def _show(found: Mapping[str, Any]) -> None:
    from ipal.report import profile as report

    gauges, whole = list(found["peak_bytes"]), report.all_of_it(found)
    digits = 3 if whole.seconds < 10 else 2 if whole.seconds < 1000 else 1
    room = render.out.width - BESIDE_TASKS - (COLUMN + 3) * (len(gauges) - 1)
    columns = report.task_columns(found["tasks"], most=max(1, room // COLUMN))
    title = f"Seconds and peak memory of {found['method']} on {found['dataset']}, {found['device']}"
    table = Table(title=title, title_justify="left")
    table.add_column("part", no_wrap=True)
    for heading in ("total", "share", *columns, *(report.MEMORY[gauge] for gauge in gauges)):
        table.add_column(heading, justify="right", no_wrap=True)

    def add(line: "ProfileLine", share: str, style: str) -> None:
        of_tasks = [f"{of(line.per_task):.{digits}f}" if line.per_task.any() else "" for of in columns.values()]
        peaks = [render.size(line.peaks[gauge]) if line.peaks.get(gauge) else "" for gauge in gauges]
        title = "  " * line.is_inside + line.title
        table.add_row(title, f"{line.seconds:.{digits}f}", share, *of_tasks, *peaks, style=style)

    for line in report.lines(found):
        add(line, f"{line.seconds / whole.seconds:.1%}", "dim" if line.is_inside else "")
    table.add_section()
    add(whole, "", "bold")
    for line in report.background(found):
        add(line, "", "dim")
    render.out.print(table)
