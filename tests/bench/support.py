"""Experiment files, and stored results that nobody had to train for."""

import json
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np

from ipal.bench.experiment_file import read_experiment
from ipal.bench.jobs import Job
from ipal.bench.suite import Bench, BenchRow, Suite, prepare
from ipal.evaluation.metrics import Scores, measured
from tests.hostile_files import sound_result

TINY = "synthetic:nodes=240,classes=6,features=16"
HEAD = f"kind: table2\nseeds: 2\nall:\n  dataset: {TINY}\n  train.epochs: 1\n"


def write(folder: Path, entries: str, head: str = HEAD, name: str = "x.yaml") -> Path:
    path = folder / name
    path.write_text(head + "entries:\n" + "".join(f"  {line}\n" for line in dedent(entries).strip().splitlines()))
    return path


def plan(path: Path, seeds: tuple[int, ...] = (), **options: Any) -> Suite:
    """What a file plans; for other seeds than its own, where they are given."""
    file = read_experiment(path)
    file = replace(file, seeds=seeds, tuning_seeds=()) if seeds else file
    return prepare([file], path.parent / "runs", **options)


def store_result(runs: Path, name: str, validation: float, test: float) -> None:
    """A finished run, as far as a bench looks at it."""
    (runs / name).mkdir(parents=True, exist_ok=True)
    (runs / name / "config.yaml").write_text("")
    result = {
        **sound_result(),
        "dataset": TINY,
        "accuracy_matrix": [[test, None], [test, test]],
        "average_performance": test,
        "average_forgetting": 0.0,
        "average_performance_curve": [test, test],
        "metrics": measured(Scores(np.array([[test, np.nan], [test, test]]))),
        "validation": {**sound_result()["validation"], "average_performance": validation},
        "peak_memory_bytes": 1,
    }
    result["timing"] = {**sound_result()["timing"], "total_seconds": 1.0, "seconds_per_epoch": [0.5, 0.5]}
    (runs / name / "result.json").write_text(json.dumps(result))


class Silent:
    def started(self, job: Job) -> None: ...
    def ended(self, job: Job, reason: str | None) -> None: ...
    def settled(self, bench: Bench, row: BenchRow) -> None: ...
