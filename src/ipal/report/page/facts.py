"""What is known of one finished run, read from its folder and checked."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipal.config import RunConfig
from ipal.errors import ConfigError, StoreError
from ipal.report import paper
from ipal.report.collect import Run, read_run
from ipal.runs.records import Confusion, Drift
from ipal.runs.run_folder import RunFolder

History = list[dict[str, float | None]]
"""history.csv: task, epoch and every loss term; None where a term was not there or not a number."""


@dataclass(frozen=True)
class RunFacts(Run):
    """Everything a page may show of one run."""

    name: str
    config: RunConfig
    environment: Mapping[str, Any]
    history: History
    confusion: Confusion
    drift: Drift | None
    """None of methods that train no network."""
    closer: Mapping[str, Any] = field(default_factory=dict)
    """The result of `ipal.analysis.run_view.look_closely`; empty if it was not called."""

    @property
    def dataset(self) -> str:
        return paper.dataset_title(self.config.dataset)

    @property
    def split(self) -> list[int]:
        return list(self.protocol["split"])

    @property
    def classes(self) -> list[list[str]]:
        """Names of the classes that are new in each task."""
        return _new_classes(self.protocol["classes"])

    @property
    def task_of_class(self) -> list[int]:
        """The task of every class, in the order learned: the first that had it."""
        return [task for task, names in enumerate(self.classes) for _ in names]

    @property
    def stores_exemplars(self) -> bool:
        return bool(self.result["retained"]["stores_exemplars"])

    @property
    def is_exemplar_free(self) -> bool:
        """By the method, and by the protocol: no node of an earlier task is kept or seen again."""
        return bool(self.protocol["exemplar_free"])

    def as_plain(self) -> dict[str, Any]:
        """All of it as plain data, for the page's download."""
        return {
            "run": self.name,
            "config": self.config.to_tree(),
            "environment": dict(self.environment),
            "result": dict(self.result),
            "history": self.history,
            "confusion": self.confusion.model_dump(),
            "drift": self.drift.model_dump() if self.drift else None,
            **({"closer": dict(self.closer)} if self.closer else {}),
        }


def _new_classes(tasks: Iterable[Iterable[object]]) -> list[list[str]]:
    """Each class in the first task that has it: a class may come again."""
    known, new = set[str](), list[list[str]]()
    for task in tasks:
        new.append([name for name in map(str, task) if name not in known])
        known.update(new[-1])
    return new


def read_facts(folder: RunFolder, closer: Mapping[str, Any] | None = None) -> RunFacts:
    """Read the facts of a finished run."""
    config = folder.config()
    if not folder.is_finished:
        raise ConfigError(f"{folder.path.name} is not finished: 'ipal resume {folder.path.name}' goes on with it.")
    run = read_run(folder)
    confusion, moved = Confusion.model_validate(folder.confusion()), folder.drift()
    new = list(map(len, _new_classes(run.protocol["classes"])))
    if not confusion.fits(new, overlapping=bool(run.protocol.get("batches"))):
        raise _damaged(folder.path / "confusion.json")
    return RunFacts(
        **vars(run),
        name=folder.path.name,
        config=config,
        environment=_environment(folder),
        history=_history(folder),
        confusion=confusion,
        drift=Drift.model_validate(moved) if moved else None,
        closer=closer or {},
    )


def _damaged(path: Path) -> StoreError:
    return StoreError(f"{path} is damaged: restore the file, or delete the run's folder and run again.")


def _environment(folder: RunFolder) -> dict[str, Any]:
    """Versions and machine, without paths of the user: a page may be shared."""
    return {name: value for name, value in folder.environment().items() if name not in {"data_root", "command"}}


def _history(folder: RunFolder) -> History:
    """Every term in every epoch. JSON knows no NaN and no infinity; a chart shows a gap there."""
    rows = folder.history()
    if not all(math.isfinite(row.get(name, math.nan)) for row in rows for name in ("task", "epoch")):
        raise _damaged(folder.path / "history.csv")
    names = dict.fromkeys(name for row in rows for name in row if name not in {"task", "epoch"})
    return [
        {
            "task": int(row["task"]),
            "epoch": int(row["epoch"]),
            **{name: row[name] if math.isfinite(row.get(name, math.nan)) else None for name in names},
        }
        for row in rows
    ]
