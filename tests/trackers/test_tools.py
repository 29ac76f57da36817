"""What arrives in TensorBoard, MLflow and Weights & Biases, read back with their own readers."""

import json
import os
import socket
from pathlib import Path

import pytest

from ipal.errors import ConfigError, StoreError
from ipal.runs.run_folder import RunFolder
from ipal.trackers import TRACKERS, mlflow, read, tensorboard, wandb
from tests.support import Command, complaint

# ---------------------------------------------------------------------- TensorBoard


def test_tensorboard_shows_every_number_once(finished: RunFolder, unfinished: RunFolder, tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record, out = read(finished), str(tmp_path / "board")
    changes = [tensorboard.track(read(folder), out).change for folder in (unfinished, unfinished, finished, finished)]
    assert changes == ["new", "unchanged", "updated", "unchanged"]
    folder = Path(out) / record.name
    assert [file.name for file in folder.iterdir()] == [tensorboard.FILE]
    shown = EventAccumulator(str(folder)).Reload()
    assert set(shown.Tags()["scalars"]) == set(record.series)
    for name, points in record.series.items():
        assert [(one.step, one.value) for one in shown.Scalars(name)] == [
            (step, pytest.approx(value, rel=1e-6)) for step, value in points
        ]
    start = shown.SummaryMetadata("_hparams_/session_start_info").plugin_data
    assert start.plugin_name == "hparams"
    assert b"ipal.gamma" in start.content
    assert "packages.torch" in shown.Tensors("environment")[0].tensor_proto.string_val[0].decode()


# ---------------------------------------------------------------------- MLflow


def test_mlflow_shows_every_number_once_and_nobody_else_hears_of_it(
    own: RunFolder, unfinished: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in {**mlflow.ENVIRONMENT, **mlflow.UNLESS_SET}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    whole, part, out = read(own), read(unfinished), str(tmp_path / "mlruns")
    # The two were timed apart; of one run the times agree.
    part.series["cost/task_seconds"] = whole.series["cost/task_seconds"][:1]
    with monkeypatch.context() as offline:
        offline.setattr(socket.socket, "connect", lambda *_: pytest.fail("it talks to somebody"))
        tracked = [mlflow.track(record, out) for record in (part, part, whole, whole)]
    assert [one.change for one in tracked] == ["new", "unchanged", "updated", "unchanged"]
    assert len({one.where for one in tracked}) == 1
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    from mlflow.tracking import MlflowClient

    client = MlflowClient(Path(out).as_uri())
    run = client.get_run(tracked[0].where)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == whole.name
    assert run.data.params == {name: str(value) for name, value in whole.settings.items()}
    assert run.data.tags["packages.torch"] == whole.facts["packages.torch"]
    assert set(run.data.metrics) == set(whole.series)
    for name, points in whole.series.items():
        assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)] == points
    # The same configuration, run once more elsewhere: what it gave takes the place of what was there.
    result = own.result()
    result["peak_memory_bytes"] += 1
    (own.path / "result.json").write_text(json.dumps(result))
    again = mlflow.track(read(own), out)
    assert again.change == "updated"
    assert again.where != run.info.run_id
    assert [one.info.run_id for one in client.search_runs([run.info.experiment_id])] == [again.where]
    with pytest.raises(StoreError, match="No MLflow server answers"):
        mlflow.track(whole, "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("address", "words"), [("sqlite:///runs.db", "pip install mlflow"), ("ftp://host", "no place for MLflow")]
)
def test_places_that_mlflow_cannot_reach(
    address: str, words: str, finished: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mlflow, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=words):
        mlflow.track(read(finished), address)


# ---------------------------------------------------------------------- Weights & Biases


def told(folder: Path) -> tuple[dict, dict, dict, list]:
    """Config, summary, series by name, and the record of the run, from an offline folder."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    (file,) = folder.glob("*.wandb")
    store, records = DataStore(), []
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        records.append(Record.FromString(data))
    store.close()
    runs = [record.run for record in records if record.HasField("run")]
    config = {one.key: json.loads(one.value_json) for one in runs[0].config.update}
    summary, series = {}, {}
    for record in records:
        summary |= {".".join(one.nested_key): json.loads(one.value_json) for one in record.summary.update}
        row = {one.nested_key[0]: json.loads(one.value_json) for one in record.history.item}
        counted = next((name for name in ("epoch", "batch", "task") if name in row), None)
        for name, value in row.items():
            if "/" in name:
                series.setdefault(name, []).append((row[counted], value))
    return config, summary, series, runs


def test_wandb_shows_every_number_once_and_nothing_is_sent(
    own: RunFolder, unfinished: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WANDB_MODE", "online")  # even so
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    whole, part, out = read(own), read(unfinished), tmp_path / "offline"
    tracked = [wandb.track(record, str(out)) for record in (part, part, whole, whole)]
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    assert [one.change for one in tracked] == ["new", "unchanged", "updated", "unchanged"]
    (folder,) = out.iterdir()
    assert str(folder) == tracked[-1].where
    assert folder.match(f"offline-run-*-{whole.digest}")
    config, summary, series, (run,) = told(folder)
    assert (run.run_id, run.display_name, run.project, list(run.tags)) == (whole.digest, whole.name, "ipal", [])
    assert run.telemetry.feature.offline
    assert config["ipal"]["gamma"] == whole.settings["ipal.gamma"]
    assert config["environment"]["packages"]["torch"] == whole.facts["packages.torch"]
    assert set(series) == set(whole.series)
    for name, points in whole.series.items():
        assert sorted(series[name]) == [(step, pytest.approx(value, rel=1e-12)) for step, value in points]
        assert summary[name] == pytest.approx(points[-1].value, rel=1e-12)
    # The same configuration, run once more elsewhere.
    result = own.result()
    result["peak_memory_bytes"] += 1
    (own.path / "result.json").write_text(json.dumps(result))
    again = wandb.track(read(own), str(out))
    assert again.change == "updated"
    assert [str(one) for one in out.iterdir()] == [again.where]
    assert told(Path(again.where))[1]["cost/peak_memory_bytes"] == result["peak_memory_bytes"]


def test_wandb_marks_an_unfinished_run(unfinished: RunFolder, tmp_path: Path):
    *_, (run,) = told(Path(wandb.track(read(unfinished), str(tmp_path)).where))
    assert list(run.tags) == ["unfinished"]


# ---------------------------------------------------------------------- the command


def test_the_command_tracks_each_run_once_and_says_how_to_look(command: Command, own: RunFolder):
    name = own.path.name
    said = command("track", name, own.path, "--to", "tensorboard", "-o", "board", "--json").json
    assert [(one["run"], one["change"]) for one in said] == [(name, "new")]
    done = command("track", name, "--to", "tensorboard", "-o", "board")
    assert done.out.split() == ["unchanged", name]
    assert "tensorboard --logdir board" in done.err


def test_what_the_command_refuses(command: Command, own: RunFolder, monkeypatch: pytest.MonkeyPatch):
    name = own.path.name
    complaint(command("track", name, "--to", "tensorbord", "-o", "board"), "Did you mean 'tensorboard'?")
    complaint(command("track", "nothing", "--to", "tensorboard", "-o", "board"), "no run 'nothing'")
    complaint(command("track", name, "--to", "tensorboard", "-o", ""), "-o")
    Path("file").write_text("")
    complaint(command("track", name, "--to", "tensorboard", "-o", "file"), "Cannot write")
    monkeypatch.setattr("ipal.system.optional.find_spec", lambda name: None)
    for tool in TRACKERS:
        complaint(command("track", name, "--to", tool, "-o", "board"), f"pip install 'ipal[{tool}]'")
    (own.path / "result.json").write_text("{")
    complaint(command("track", name, "--to", "tensorboard", "-o", "board"), "damaged")
    assert not Path("board").exists()
