"""The history of a model: checked when read, and without a time in runs."""

from pathlib import Path
from typing import Any

import pytest

import ipal
from ipal import NCM, TaskStream
from ipal.errors import StoreError
from ipal.estimator import files, history
from ipal.estimator.model import Model
from ipal.methods import ncm
from ipal.state.snapshot import Snapshot
from tests.closed_form.analytic_support import case
from tests.learning import learned


def test_names_are_short() -> None:
    one = history.Event.of("merged", ["x" * 1000, *range(500)])
    assert len(one.classes) == 501
    assert len(one.classes[0]) <= history.LETTERS


def test_runs_record_no_time_and_users_do(tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.time for one in learned(ncm.NCM, tiny_stream, 2).history] == [None, None]
    graph = case(1)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    learner = NCM().partial_fit(graph.data(graph.nodes))
    (one,) = learner.history_
    assert one["time"] == "1970-01-01T00:00:00Z"
    assert one["nodes"] == len(graph.y)
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert ipal.rename_class(learner, 0, 9).history_[-1]["time"] > "2024"


def test_merged_models_have_both_histories(tmp_path: Path) -> None:
    graph = case(2)
    both = ipal.merge_models(*(graph.model(graph.of(label)) for label in (0, 1)))
    assert [(one["what"], one["classes"]) for one in both.history_] == [
        ("learned", ["0"]),
        ("learned", ["1"]),
        ("merged models", ["1"]),
    ]
    both.save(tmp_path / "m")
    assert ipal.load(tmp_path / "m").history_ == both.history_


def test_a_wrong_history_is_refused(tiny_stream: TaskStream, tmp_path: Path) -> None:
    snapshot = files.snapshot(learned(ncm.NCM, tiny_stream, 2))
    good = snapshot.facts["history"][0]

    def read(given: Any) -> Model:
        facts = {**snapshot.facts, "history": given}
        return files.loaded(Snapshot(snapshot.tensors, facts), tmp_path / "m", method=ncm.NCM)

    assert [one.model_dump() for one in read([good]).history] == [good]
    for wrong in (
        [{**good, "nodes": -1}],
        [{**good, "time": "yesterday"}],
        [{**good, "classes": ["x" * 81]}],
        [{**good, "what": "forgot"}],
        "long ago",
    ):
        with pytest.raises(StoreError, match="history"):
            read(wrong)
