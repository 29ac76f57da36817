"""Printed output. Results go to stdout, everything else to stderr."""

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ipal.config import batch_in_words
from ipal.errors import visible

if TYPE_CHECKING:
    from ipal.evaluation.evaluate import Row


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
    json.dump(content, sys.stdout, indent=2)
    sys.stdout.write("\n")


def note(message: str) -> None:
    err.print(message, soft_wrap=True)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings on stderr as sentences, without the source line."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        note(f"Warning: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


class ProgressBar:
    """Shows a run: a progress bar of epochs, and a line with the accuracy after every task."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("epochs"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[terms]}", style="dim", markup=False),
            console=err,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar.live.is_started:
            self._bar.stop()

    def started(self, tasks: int, epochs: int, done: int) -> None:
        # Only now, so that an error before the start is printed alone.
        note(f"run {self._title}")
        self._bar.start()
        self._tasks = tasks
        self._id = self._bar.add_task("task 1", total=tasks * epochs, completed=done, terms="")

    def epoch(self, task: int, terms: dict[str, float]) -> None:
        values = "  ".join(f"{name} {value:.3f}" for name, value in terms.items())
        self._bar.update(self._id, advance=1, description=f"task {task + 1}/{self._tasks}", terms=values)

    def learned(self, *_: object) -> None: ...

    def task(self, index: int, row: "Row") -> None:
        performance = sum(row.test) / len(row.test)
        self._bar.console.print(f"task {index + 1}/{self._tasks} learned, AP so far {performance:.2f} %")


def result(content: dict[str, Any], folder: Path) -> None:
    """Accuracy matrix, metrics, cost, retained memory, folder."""
    from ipal.evaluation.metrics import metric_named

    protocol = content["protocol"]
    table = Table(title="Accuracy (%) on each task, after learning each task", title_justify="left")
    table.add_column("after", justify="right")
    matrix = content["accuracy_matrix"]
    for index, classes in enumerate(protocol["split"]):
        table.add_column(f"task {index + 1}\n{classes} cl.", justify="right")
    table.add_column("AP", justify="right", style="bold")
    for index, row in enumerate(matrix):
        cells = ["" if value is None else f"{value:.2f}" for value in row]
        table.add_row(f"task {index + 1}", *cells, f"{content['average_performance_curve'][index]:.2f}")
    out.print(table)
    kept, timing = content["retained"], content["timing"]
    facts = Table.grid(padding=(0, 2))
    for name, value in content["metrics"].items():
        metric = metric_named(name)
        if value is not None:
            facts.add_row(metric.title, f"{value:.2f} {metric.unit}" + f"   ({metric.about})" * bool(metric.about))
    facts.add_row("time", f"{timing['total_seconds']:.1f} s, of which {timing['evaluation_seconds']:.1f} s evaluation")
    facts.add_row("peak memory", peak_memory(content["peak_memory_bytes"], timing.get("runs_taking_turns", 1)))
    facts.add_row("retained", f"{size(kept['bytes'])}: " + "; ".join(_kept(item) for item in kept["items"]))
    exemplars = "raw nodes ARE stored" if kept["stores_exemplars"] else "no node is stored"
    facts.add_row("", f"{exemplars}; {len(kept['nodes_behind_class'])} classes remembered")
    graphs = f"train {protocol['train_graph']}, test {protocol['test_graph']}"
    batch = f", {batch_in_words(protocol['batch'])}" if protocol["batch"] != "full" else ""
    graphs = f"{protocol.get('stream', 'class-incremental')}, {graphs}, {protocol['visibility']}"
    facts.add_row("protocol", f"{graphs}, {protocol['accuracy']} accuracy{batch}")
    if content.get("plugins"):
        facts.add_row("plugins", ", ".join(content["plugins"]))
    if content["data"]["remark"]:
        facts.add_row("remark", content["data"]["remark"])
    facts.add_row("folder", str(folder))
    out.print(facts, soft_wrap=True)


def _kept(item: dict[str, Any]) -> str:
    return f"{item['what']} ({size(item['bytes'])})"


def listing(what: str, rows: list[dict[str, Any]]) -> None:
    """A list of things; of what a package offers, only the name is known."""
    show = {"datasets": _list_datasets, "methods": _list_methods, "runs": _list_runs}.get(what, _list_things)
    show([row for row in rows if len(row) > 2])
    for row in rows:
        if row.get("plugin"):
            out.print(f"{row['name']} is from {row['plugin']}", soft_wrap=True)


def _list_things(rows: list[dict[str, Any]]) -> None:
    table = Table("name", "what it is")
    for row in rows:
        table.add_row(row["name"], row["about"])
    out.print(table)


def _list_datasets(rows: list[dict[str, Any]]) -> None:
    table = Table("dataset", "here", "split", "what it is")
    for row in rows:
        split = "+".join(map(str, row["split"])) if row["split"] else "by rule"
        table.add_row(row["name"], "yes" if row["here"] else "no", split, row["about"])
    out.print(table)


def _list_methods(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        exemplars = "stores exemplars" if row["stores_exemplars"] else "exemplar-free"
        out.print(Text.assemble((row["name"], "bold"), f" ({exemplars}): {row['about']}"), soft_wrap=True)
        table = Table("setting", "default", "meaning")
        for setting in row["settings"]:
            table.add_row(f"{row['name']}.{setting['name']}", str(setting["default"]), setting["about"])
        out.print(table)


def _list_runs(rows: list[dict[str, Any]]) -> None:
    table = Table("run", "status", "AP", "AF")
    for row in rows:
        scores = (row["average_performance"], row["average_forgetting"])
        mark = " †" * bool(row["stores_exemplars"])
        table.add_row(row["run"] + mark, row["status"], *("" if score is None else f"{score:.2f}" for score in scores))
    out.print(table)
    if any(row["stores_exemplars"] for row in rows):
        out.print("† stores raw nodes of earlier tasks.")


def survey(rows: list[dict[str, Any]], root: Path) -> None:
    out.print(f"data root: {root}", soft_wrap=True)
    table = Table("dataset", "nodes", "edges", "features", "classes", "SHA-256")
    table.add_column("where", overflow="fold")
    for row in rows:
        if "nodes" in row:
            counts = (f"{row[key]:,}" for key in ("nodes", "edges", "features", "classes"))
            where = row["path"].removeprefix(f"{root}/")
            table.add_row(row["name"], *counts, row["hash"][:12], where)
    out.print(table)
    for row in rows:
        if "how_to_get" in row:
            out.print(row["how_to_get"], soft_wrap=True)


def peak_memory(count: float, runs: int) -> str:
    """Peak memory of a process, shared by all runs that took turns in it."""
    return size(count) + (f" (of {runs} runs that took turns in one process)" if runs > 1 else "")


def size(count: float) -> str:
    """Bytes in readable units."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
