"""A run folder as the input of trackers: settings, facts, and numbers over steps. Finished or not; no torch."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from ipal.errors import StoreError
from ipal.evaluation.metrics import Confusion, Scores, matrix_of_rows, measured, stored_scores
from ipal.evaluation.rows import Before
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
class RunRecord:
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


def read(folder: RunFolder) -> RunRecord:
    """Read a run as far as it has come."""
    config = folder.config()
    # First the files of an unfinished run, which are removed when it ends.
    progress = _checkpointed(folder)
    began, ended = _times(folder)
    environment = {name: value for name, value in folder.environment().items() if name != "data_root"}
    return RunRecord(
        name=folder.path.name,
        digest=config.digest,
        finished=folder.is_finished,
        began=began,
        ended=ended,
        settings=dict(_flat(config.to_tree())),
        facts={name: str(value) for name, value in _flat(environment)},
        series=_of_result(folder) if folder.is_finished else _of_progress(progress),
    )


# ---------------------------------------------------------------------- numbers over steps


def _of_result(folder: RunFolder) -> Series:
    result = folder.result()
    after_task = stored_scores(result, folder.confusion())
    before_last: list[dict[str, float]] = [{}] * (len(after_task) - 1)
    recalls = [_recalls(scores.confusion) for scores in after_task if scores.confusion is not None]
    timing = result["timing"]
    costs = {
        "evaluation_seconds": timing["evaluation_seconds"],
        "total_seconds": timing["total_seconds"],
        "peak_memory_bytes": result["peak_memory_bytes"],
        "runs_taking_turns": timing["runs_taking_turns"],
        "retained_bytes": result["retained"]["bytes"],
    }
    return {
        **_losses(folder.history()),
        **_accuracies([[score for score in row if score is not None] for row in result["accuracy_matrix"]]),
        **_series("score/", [*map(measured, after_task[:-1]), result["metrics"]]),
        **_series("recall/class_", recalls),
        **_task_seconds(timing["seconds_per_task"]),
        **_series("cost/", [*before_last, costs]),
        **_along(result.get("along")),
    }


def _of_progress(progress: Mapping[str, Any]) -> Series:
    rows = progress.get("rows", [])
    before = [one and Before(**one) for one in progress.get("before", [])]
    test, validation = (matrix_of_rows([row[part] for row in rows]) for part in ("test", "validation"))
    found = [row.get("confusion") for row in rows]
    so_far = [
        Scores(test[:t, :t], validation[:t, :t], found[t - 1], before[:t], earlier=list(filter(None, found[: t - 1])))
        for t in range(1, len(rows) + 1)
    ]
    return {
        **_losses(progress.get("history", [])),
        **_accuracies([row["test"] for row in rows]),
        **_series("score/", map(measured, so_far)),
        **_series("recall/class_", [row["per_class"] for row in rows]),
        **_task_seconds(progress.get("seconds", [])[: len(rows)]),
    }


def _along(points: Mapping[str, list[Any]] | None) -> Series:
    """Tests along a stream of batches; steps are batches."""
    found = points or {"batch": []}
    return {
        f"along/{name}": [MetricPoint(batch, float(value)) for batch, value in zip(found["batch"], values, strict=True)]
        for name, values in found.items()
        if name != "batch"
    }


def _series(prefix: str, by_step: Iterable[Mapping[str, float | None]], start: int = 1) -> Series:
    """The values of each name over the steps; what was not measured (None) is left out."""
    series: Series = {}
    for step, values in enumerate(by_step, start):
        for name, value in values.items():
            if value is not None:
                series.setdefault(f"{prefix}{name}", []).append(MetricPoint(step, float(value)))
    return series


def _losses(history: list[dict[str, float]]) -> Series:
    terms = [{name: value for name, value in row.items() if name not in {"task", "epoch"}} for row in history]
    return _series("loss/", terms, start=0)


def _accuracies(rows: list[list[float]]) -> Series:
    """On each task, after each task."""
    return _series("accuracy/task_", [{str(task): score for task, score in enumerate(row, 1)} for row in rows])


def _task_seconds(values: Iterable[float]) -> Series:
    return _series("cost/", [{"task_seconds": value} for value in values])


def _recalls(confusion: Confusion) -> dict[str, float]:
    """Percent of each class's test nodes that were taken for it."""
    totals = {name: sum(found.values()) for name, found in confusion.items()}
    return {name: 100.0 * confusion[name].get(name, 0) / total for name, total in totals.items() if total}


# ---------------------------------------------------------------------- settings, times, checkpoint


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
