"""A run folder as trackers take it."""

import json
import subprocess
import sys

import pytest

from ipal.errors import StoreError
from ipal.runs.run_folder import RunFolder
from ipal.trackers import read
from ipal.trackers.record import cells


def test_a_finished_run_is_told_with_all_its_numbers(finished: RunFolder):
    record, result = read(finished), finished.result()
    assert record.name == finished.path.name
    assert record.digest in record.name
    assert record.began <= record.ended
    assert cells(record.settings)["ipal.gamma"] == 3.0
    assert cells(record.settings)["ipal.boundary"] is True
    assert cells(record.settings)["split"] == "2 2 2"
    assert cells(record.facts)["packages.torch"]
    assert "data_root" not in record.facts
    curve = [value for _, value in record.series["score/average_performance"]]
    assert curve == pytest.approx(result["average_performance_curve"])
    assert record.series["score/average_forgetting"][-1][1] == pytest.approx(result["average_forgetting"])
    assert record.series["accuracy/task_2"] == [
        (2, result["accuracy_matrix"][1][1]),
        (3, result["accuracy_matrix"][2][1]),
    ]
    assert [step for step, _ in record.series["loss/contrast"]] == list(range(9))
    assert [step for step, _ in record.series["loss/distillation"]] == list(range(3, 9)), "the first task has none"
    recalls = {name: record.series[f"recall/class_{name}"][-1] for name in result["per_class"]}
    assert recalls == {name: (3, pytest.approx(value)) for name, value in result["per_class"].items()}
    assert len(record.series["recall/class_0"]) == 3
    assert len(record.series["recall/class_5"]) == 1
    assert [value for _, value in record.series["cost/task_seconds"]] == result["timing"]["seconds_per_task"]
    assert record.series["cost/retained_bytes"] == [(3, result["retained"]["bytes"])]


def test_a_class_without_a_counted_node_has_no_recall(own: RunFolder):
    confusion = own.confusion()
    confusion["after_task"][0] = [[place, found, 0] for place, found, _ in confusion["after_task"][0]]
    (own.path / "confusion.json").write_text(json.dumps(confusion))
    assert [step for step, _ in read(own).series["recall/class_0"]] == [2, 3]


def test_a_run_that_is_not_finished_is_refused(own: RunFolder):
    (own.path / "result.json").unlink()
    with pytest.raises(StoreError, match="no complete run"):
        read(own)


def test_a_run_without_a_log_is_told_all_the_same(own: RunFolder):
    (own.path / "log.txt").write_text("once upon a time\n")
    assert read(own).began == int((own.path / "config.yaml").stat().st_mtime)


def test_reading_and_writing_events_needs_no_torch(finished: RunFolder, tmp_path):
    code = (
        "import sys, json; from pathlib import Path; from ipal.runs.run_folder import RunFolder;"
        "from ipal.trackers import *;"
        f"TRACKERS['tensorboard'](read(RunFolder(Path({str(finished.path)!r}))), {str(tmp_path)!r});"
        "print(json.dumps([name for name in ('torch', 'tensorflow', 'mlflow', 'wandb') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
