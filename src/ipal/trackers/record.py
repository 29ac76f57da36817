"""A finished run as the input of trackers: settings, facts, and numbers over steps. No torch."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ipal.config import Tree, flat
from ipal.evaluation.metrics import measured, stored_scores
from ipal.runs.run_folder import RunFolder

Setting = bool | int | float | str


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
    config, result, series = folder.config(), folder.result(), defaultdict[str, list[tuple[int, float]]](list)

    def add(group: str, step: int, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            if value is not None:  # not measured
                series[group + name].append((step, float(value)))

    for epoch, row in enumerate(folder.history()):
        add("loss/", epoch, {name: row[name] for name in row if name not in {"task", "epoch"}})
    after_task, timing = stored_scores(result, folder.confusion()), result["timing"]
    for task, scores in enumerate(after_task, 1):
        accuracies = {str(other): score for other, score in enumerate(result["accuracy_matrix"][task - 1][:task], 1)}
        add("accuracy/task_", task, accuracies)
        add("score/", task, measured(scores) if task < len(after_task) else result["metrics"])
        for name, found in (scores.confusions or [{}])[-1].items():  # percent of a class's test nodes taken for it
            if total := sum(found.values()):
                add("recall/class_", task, {name: 100.0 * found.get(name, 0) / total})
        add("cost/", task, {"task_seconds": timing["seconds_per_task"][task - 1]})
    costs = {name: timing[name] for name in ("evaluation_seconds", "total_seconds", "runs_taking_turns")}
    costs |= {"peak_memory_bytes": result["peak_memory_bytes"], "retained_bytes": result["retained"]["bytes"]}
    add("cost/", len(after_task), costs)
    along = result.get("along") or {"batch": []}
    for place, batch in enumerate(along["batch"]):
        add("along/", batch, {name: along[name][place] for name in along if name != "batch"})
    began = datetime.fromisoformat(folder.date).timestamp()
    environment = {name: value for name, value in folder.environment().items() if name != "data_root"}
    ended = began + timing["total_seconds"]
    return RunRecord(folder.path.name, config.digest, began, ended, config.to_tree(), environment, series)


def cells(tree: Tree) -> dict[str, Setting]:
    """Leaves by their dotted names; what is not said is left out, and lists are text."""
    leaves = {name: value for name, value in flat(tree).items() if value is not None}
    return {name: " ".join(map(str, value)) if isinstance(value, list) else value for name, value in leaves.items()}
