"""A run folder as the input of trackers: settings, facts, and numbers over steps. Finished or not; no torch."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from ipal.errors import StoreError
from ipal.evaluation.metrics import Before, Scores, matrix_of_rows, measured, stored_scores
from ipal.runs.records import Progress
from ipal.runs.run_folder import RunFolder
from ipal.system.documents import parse_json
from ipal.system.files import open_plain, read_bounded

MOST_HEADER, MOST_LOG = 2**28, 2**26
"""Bytes; a checkpoint's header holds the losses of every epoch."""
Setting = bool | int | float | str
Change = Literal["new", "updated", "unchanged"]


class MetricPoint(NamedTuple):
    step: int
    value: float


Series = dict[str, list[MetricPoint]]


@dataclass(frozen=True)
class Record:
    """One run."""

    name: str
    digest: str
    """Hash of its configuration."""
    finished: bool
    began: float
    """In seconds since 1970, as is `ended`."""
    ended: float
    """When it was finished, or its last log entry."""
    settings: dict[str, Setting]
    """By dotted name."""
    facts: dict[str, str]
    """Where it took place: versions, machine, command."""
    series: Series
    """By name. Losses count epochs over all tasks, all else counts tasks learned."""


class Tracked(NamedTuple):
    """The outcome of tracking a run."""

    run: str
    where: str
    change: Change


def read(folder: RunFolder) -> Record:
    """Read a run as far as it has come."""
    config = folder.config()
    # First the files of an unfinished run, which are removed when it ends.
    progress = _checkpointed(folder)
    series = _of_result(folder) if folder.is_finished else _of_progress(progress)
    began, ended = _times(folder)
    environment = {name: value for name, value in folder.environment().items() if name != "data_root"}
    return Record(
        name=folder.path.name,
        digest=config.digest,
        finished=folder.is_finished,
        began=began,
        ended=ended,
        settings=dict(_flat(config.to_tree(full=True))),
        facts={name: str(value) for name, value in _flat(environment)},
        series={name: points for name, points in series.items() if points},
    )


# ---------------------------------------------------------------------- numbers over steps


def _of_result(folder: RunFolder) -> Series:
    result, drift, confusion = folder.result(), folder.drift(), folder.confusion()
    rows = [[score for score in row if score is not None] for row in result["accuracy_matrix"]]
    moved = [] if drift is None else drift["after_task"]
    shifts = [{name: one["shift"] for name, one in after.items()} for after in moved]
    last, timing = len(rows), result["timing"]
    costs = {
        "evaluation_seconds": timing["evaluation_seconds"],
        "total_seconds": timing["total_seconds"],
        "peak_memory_bytes": result["peak_memory_bytes"],
        "runs_taking_turns": timing.get("runs_taking_turns", 1),
        "retained_bytes": result["retained"]["bytes"],
    }
    return {
        **_losses(folder.history()),
        **_accuracies(rows),
        **_metrics([measured(scores) for scores in stored_scores(result, confusion)[:-1]] + [result["metrics"]]),
        **_by_class("recall", _recalls(confusion) or {last: result.get("per_class", {})}),
        **_by_class("drift", dict(enumerate(shifts, start=1))),
        "cost/task_seconds": _counted(timing["seconds_per_task"]),
        **{f"cost/{name}": [MetricPoint(last, float(value))] for name, value in costs.items()},
    }


def _of_progress(progress: Mapping[str, Any]) -> Series:
    rows = progress.get("rows", [])
    before = [one and Before(**one) for one in progress.get("before", [])]
    test, validation = (matrix_of_rows([row[part] for row in rows]) for part in ("test", "validation"))
    so_far = [
        Scores(test[:t, :t], validation[:t, :t], row.get("confusion"), before[:t])
        for t, row in enumerate(rows, start=1)
    ]
    return {
        **_losses(progress.get("history", [])),
        **_accuracies([row["test"] for row in rows]),
        **_metrics(map(measured, so_far)),
        **_by_class("recall", {step: row["per_class"] for step, row in enumerate(rows, start=1)}),
        "cost/task_seconds": _counted(progress.get("seconds", [])[: len(rows)]),
    }


def _losses(history: list[dict[str, float]]) -> Series:
    names = dict.fromkeys(name for row in history for name in row if name not in {"task", "epoch"})
    return {
        f"loss/{name}": [MetricPoint(step, row[name]) for step, row in enumerate(history) if name in row]
        for name in names
    }


def _accuracies(rows: list[list[float]]) -> Series:
    """On each task, after each task."""
    return {
        f"accuracy/task_{task + 1}": [
            MetricPoint(t, row[task]) for t, row in enumerate(rows, start=1) if task < len(row)
        ]
        for task in range(len(rows))
    }


def _metrics(after_task: Iterable[Mapping[str, float | None]]) -> Series:
    """Every metric after each task, as far as it is defined."""
    series: Series = {}
    for step, values in enumerate(after_task, start=1):
        for name, value in values.items():
            if value is not None:
                series.setdefault(f"score/{name}", []).append(MetricPoint(step, value))
    return series


def _recalls(confusion: Mapping[str, Any] | None) -> dict[int, dict[str, float]]:
    """Percent of each class's test nodes that were taken for it, after each task."""
    recalls: dict[int, dict[str, float]] = {}
    for step, pairs in enumerate([] if confusion is None else confusion["after_task"], start=1):
        total, right = dict[int, int](), dict[int, int]()
        for true, predicted, count in pairs:
            total[true] = total.get(true, 0) + count
            right[true] = right.get(true, 0) + count * (true == predicted)
        names = (confusion or {})["classes"]
        recalls[step] = {names[place]: 100.0 * right[place] / number for place, number in total.items() if number}
    return recalls


def _by_class(group: str, after_task: Mapping[int, Mapping[str, float | None]]) -> Series:
    """What could not be measured (None) is left out: of one node there is no spread to measure by."""
    series: Series = {}
    for step, values in after_task.items():
        for name, value in values.items():
            if value is None:
                continue
            series.setdefault(f"{group}/class_{name}", []).append(MetricPoint(step, value))
    return series


def _counted(values: Any) -> list[MetricPoint]:
    return [MetricPoint(step, float(value)) for step, value in enumerate(values, start=1)]


# ---------------------------------------------------------------------- what stands around them


def _checkpointed(folder: RunFolder) -> dict[str, Any]:
    """How far an unfinished run has come, from the header of its checkpoint; what it has learned is not read."""
    try:
        with open_plain(folder.checkpoint) as file:
            size = int.from_bytes(file.read(8), "little")
            header = parse_json(file.read(min(size, MOST_HEADER + 1)), MOST_HEADER)
        progress: dict[str, Any] = parse_json(header["__metadata__"]["facts"], MOST_HEADER)["progress"]
        Progress.model_validate(progress)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{folder.checkpoint} is damaged or no saved state: it cannot be read.") from error
    return progress


def _times(folder: RunFolder) -> tuple[float, float]:
    """Start and last entry of the run's log."""
    known = [(folder.path / "config.yaml").stat().st_mtime]
    with suppress(OSError, ValueError):
        lines = read_bounded(folder.path / "log.txt", MOST_LOG).decode().splitlines()
        known = [datetime.fromisoformat(line.partition(" ")[0]).timestamp() for line in lines] or known
    return known[0], known[-1]


def _flat(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Setting]]:
    """Leaves by their dotted names; what is not said is left out, and lists are text."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif isinstance(value, list):
            yield f"{before}{name}", " ".join(map(str, value))
        elif value is not None:
            yield f"{before}{name}", value
