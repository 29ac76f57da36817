"""A finished run as the input of trackers: settings, facts, and numbers over steps. No torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ipal.config import Tree
from ipal.evaluation.metrics import measured, stored_scores
from ipal.runs.run_folder import RunFolder

Setting = bool | int | float | str
Point = tuple[str, int, float | None]
"""Name, step, value."""


@dataclass(frozen=True)
class RunRecord:
    """One run."""

    name: str
    digest: str
    """Hash of its configuration."""
    began: float
    """In seconds since 1970, as is `ended`."""
    ended: float
    """By the time that it took, wherever it was interrupted."""
    settings: Tree
    facts: Tree
    """Where it took place: versions, machine, command."""
    series: dict[str, list[tuple[int, float]]]
    """Steps and values by name. Losses count epochs over all tasks, `along` batches, all else tasks learned."""


def read(folder: RunFolder) -> RunRecord:
    """Read a finished run."""
    config, result = folder.config(), folder.result()
    environment = {name: value for name, value in folder.environment().items() if name != "data_root"}
    began = datetime.fromisoformat(folder.date).timestamp()
    series: dict[str, list[tuple[int, float]]] = {}
    for name, step, value in _points(folder, result):
        if value is not None:  # not measured
            series.setdefault(name, []).append((step, float(value)))
    return RunRecord(
        name=folder.path.name,
        digest=config.digest,
        began=began,
        ended=began + result["timing"]["total_seconds"],
        settings=config.to_tree(),
        facts=environment,
        series=series,
    )


def _points(folder: RunFolder, result: dict[str, Any]) -> Iterator[Point]:
    for epoch, row in enumerate(folder.history()):
        yield from _named("loss/", epoch, {name: row[name] for name in row if name not in {"task", "epoch"}})
    after_task, timing = stored_scores(result, folder.confusion()), result["timing"]
    for task, scores in enumerate(after_task, 1):
        accuracies = {str(other): score for other, score in enumerate(result["accuracy_matrix"][task - 1][:task], 1)}
        yield from _named("accuracy/task_", task, accuracies)
        yield from _named("score/", task, measured(scores) if task < len(after_task) else result["metrics"])
        for name, found in (scores.confusions or [{}])[-1].items():  # percent of a class's test nodes taken for it
            if total := sum(found.values()):
                yield f"recall/class_{name}", task, 100.0 * found.get(name, 0) / total
        yield "cost/task_seconds", task, timing["seconds_per_task"][task - 1]
    costs = {name: timing[name] for name in ("evaluation_seconds", "total_seconds", "runs_taking_turns")}
    costs |= {"peak_memory_bytes": result["peak_memory_bytes"], "retained_bytes": result["retained"]["bytes"]}
    yield from _named("cost/", len(after_task), costs)
    along = result.get("along") or {"batch": []}
    for place, batch in enumerate(along["batch"]):
        yield from _named("along/", batch, {name: along[name][place] for name in along if name != "batch"})


def _named(prefix: str, step: int, values: Mapping[str, float | None]) -> Iterator[Point]:
    return ((prefix + name, step, value) for name, value in values.items())


def flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Setting]:
    """Leaves by their dotted names; what is not said is left out, and lists are text."""
    leaves: dict[str, Setting] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            leaves |= flat(value, f"{before}{name}.")
        elif value is not None:
            leaves[before + name] = " ".join(map(str, value)) if isinstance(value, list) else value
    return leaves
