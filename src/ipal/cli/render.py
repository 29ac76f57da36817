"""Printed output. Results go to stdout, everything else to stderr."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ipal.errors import visible
from ipal.evaluation.rows import Row
from ipal.system.status import Status as Status
from ipal.system.units import many as many
from ipal.system.units import size as size


class PlainConsole(Console):
    """Prints text literally: no markup and no terminal escapes in names from users or files."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str("\n".join(map(visible, text.split("\n"))), **options)


out = PlainConsole()
err = PlainConsole(stderr=True)


def as_json(content: Any) -> None:
    """Plain JSON on stdout, and nothing else."""
    print(json.dumps(content, indent=2))


def say(text: str) -> None:
    """A sentence on stdout; the terminal breaks it, so that paths can be copied."""
    out.print(text, soft_wrap=True)


def note(message: str) -> None:
    err.print(message, soft_wrap=True)


def warning(message: Warning | str, *_: object, **__: object) -> None:
    """As `warnings.showwarning`: a sentence on stderr, without the source line."""
    note(f"Warning: {message}")


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    numbers: Sequence[str] = (),
    title: str | None = None,
    console: Console | None = None,
) -> None:
    """Print a table, if it has rows; columns of numbers are aligned to the right, and None is empty."""
    made = Table(title=title, title_justify="left")
    for name in columns:
        made.add_column(name, justify="right" if name in numbers else "left", no_wrap=name in numbers)
    for row in rows:
        made.add_row(*(str(cell) if isinstance(cell, int) else cell for cell in row))
    if made.rows:
        (console or out).print(made)


def lines(rows: Sequence[Sequence[str]]) -> None:
    """Rows in columns, the first of them the headings; nothing is cut or broken, whatever the width of the terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def facts(rows: Mapping[str, str | None]) -> None:
    """Names and what is known of each; what is empty is left out."""
    lines([(name, value) for name, value in rows.items() if value])


def kept(report: dict[str, Any]) -> str:
    return f"{size(report['bytes'])}; {'raw nodes ARE stored' if report['stores_exemplars'] else 'no node is stored'}"


class ProgressLine(Status):
    """Shows a run: one line with task, epoch, loss and time. Where there is no terminal, a line for every task."""

    def started(self, tasks: int, epochs: int, done: int) -> None:
        self._tasks, self._epochs, self._done, self._from = tasks, epochs, done, done
        self._now(done // epochs if epochs else 0)

    def epoch(self, task: int, terms: dict[str, float]) -> None:
        self._done += 1
        number = min(self._done - task * self._epochs, self._epochs)
        self._now(task, f", epoch {number} of {self._epochs}, loss {sum(terms.values()):.3f}")

    def learned(self, index: int, *_: object) -> None:
        self._now(index, ", testing")

    def task(self, index: int, row: Row) -> None:
        if not err.is_terminal:
            performance = sum(row.test) / len(row.test)
            self.keep(f"task {index + 1} of {self._tasks} learned, AP so far {performance:.2f} %")
        if index + 1 < self._tasks:
            self._now(index + 1)

    def _now(self, task: int, doing: str = ", learning") -> None:
        done, whole = self._done - self._from, self._tasks * self._epochs - self._from  # in this process
        share = done / max(1, whole) if self._epochs else task / self._tasks
        self.show(f"task {task + 1} of {self._tasks}{doing}", share)


SHORT = ("average_performance", "average_forgetting")
"""Metrics of this package that are always shown; those of others are, too."""


def result(content: dict[str, Any], folder: Path) -> None:
    """What the model is, accuracy matrix, metrics, cost, retained memory, folder."""
    from ipal.evaluation.metrics import METRICS

    if "model" in content:
        say(content["model"])
    say("Accuracy (%) on each task, after learning each task")
    matrix(content)
    metrics = {}
    for name, value in content["metrics"].items():
        if value is not None and (name in SHORT or name not in METRICS.own):
            metric = METRICS.get(name)
            metrics[metric.title if metric else name] = f"{value:.2f} {metric.unit if metric else ''}"
    timing, turns = content["timing"], content["timing"]["runs_taking_turns"]
    shared = f" (of {turns} runs that took turns in one process)" if turns > 1 else ""
    classes = f"{len(content['retained']['nodes_behind_class'])} classes remembered"
    facts(
        {
            **metrics,
            "time": f"{timing['total_seconds']:.1f} s",
            "peak memory": size(content["peak_memory_bytes"]) + shared,
            "retained": f"{kept(content['retained'])}; {classes}",
            "remark": content["data"]["remark"],
            "folder": str(folder),
        }
    )
    say(f"more         ipal show {shlex.quote(str(folder))} --json")


def matrix(content: dict[str, Any]) -> None:
    """The accuracy matrix; AP alone where it is too wide for the terminal."""
    split, curve = content["protocol"]["split"], content["average_performance_curve"]
    tasks = range(len(split) if 9 * len(split) + 20 <= out.width else 0)
    columns = ["after", *(f"task {task + 1}\n{split[task]} cl." for task in tasks), "AP"]
    rows = []
    for index, row in enumerate(content["accuracy_matrix"]):
        cells = ["" if row[task] is None else f"{row[task]:.2f}" for task in tasks]
        rows.append([f"task {index + 1}", *cells, Text(f"{curve[index]:.2f}", style="bold")])
    table(columns, rows, numbers=columns)


def listing(what: str, rows: list[dict[str, Any]], full: bool) -> None:
    """A list of things, in full with their settings."""
    if what == "runs":
        lines([("date", "method", "graph", "seed", "AP", "AF", "status", "run"), *map(_run_cells, rows)])
    elif what == "datasets":
        lines([("dataset", "here", "split", "what it is"), *map(_dataset_cells, rows)])
    elif what == "methods" and full:
        for row in rows:
            say(f"{row['name']}{_dagger(row)}: {row['about']}")
            own = row.get("settings", ())
            cells = [(f"{row['name']}.{one['name']}", str(one["default"]), one["about"]) for one in own]
            table(("setting", "default", "meaning"), cells)
    else:
        lines([("name", "what it is"), *((row["name"] + _dagger(row), row["about"]) for row in rows)])
    legend(rows)


def _dataset_cells(row: dict[str, Any]) -> tuple[str, ...]:
    split = "+".join(map(str, row["split"] or ())) or "by rule"
    return row["name"], "yes" if row["here"] else "no", split, row["about"]


def _run_cells(row: dict[str, Any]) -> tuple[str, ...]:
    about = [str("?" if row[name] is None else row[name]) for name in ("method", "dataset", "seed")]
    scores = ["" if row[name] is None else f"{row[name]:.2f}" for name in SHORT]
    date = row["date"][:16].replace("T", " ")
    return date, about[0] + _dagger(row), *about[1:], *scores, row["status"], row["run"]


def _dagger(row: dict[str, Any]) -> str:
    return " †" if row.get("stores_exemplars") else ""


def legend(rows: Iterable[dict[str, Any]]) -> None:
    """What the sign of methods with stored nodes means."""
    if any(map(_dagger, rows)):
        say("† stores raw nodes of earlier tasks.")
