"""What arrives in TensorBoard, MLflow and Weights & Biases, read back with their own readers."""

import json
import os
import socket
from pathlib import Path

import pytest

from ipal.errors import StoreError
from ipal.runs.run_folder import RunFolder
from ipal.trackers import TRACKERS, RunRecord, mlflow, read, tensorboard, wandb
from ipal.trackers.record import cells
from tests.support import Command, complaint

# ---------------------------------------------------------------------- TensorBoard


def with_more_memory(own: RunFolder) -> RunRecord:
    """The same configuration, run once more elsewhere."""
    result = own.result()
    result["peak_memory_bytes"] += 10**6
    (own.path / "result.json").write_text(json.dumps(result))
    return read(own)


def test_tensorboard_shows_every_number_once(own: RunFolder, tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    before, out = read(own), str(tmp_path / "board")
    record = with_more_memory(own)
    folder = Path(out) / record.name
    assert [tensorboard.track(one, out) for one in (before, record)] == [str(folder)] * 2
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
    own: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in mlflow.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    before, out = read(own), str(tmp_path / "mlruns")
    whole = with_more_memory(own)
    with monkeypatch.context() as offline:
        offline.setattr(socket.socket, "connect", lambda *_: pytest.fail("it talks to somebody"))
        replaced, made = (mlflow.track(record, out).split()[1] for record in (before, whole))
    assert replaced != made
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    from mlflow.tracking import MlflowClient

    client = MlflowClient(Path(out).as_uri())
    run = client.get_run(made)
    assert [one.info.run_id for one in client.search_runs([run.info.experiment_id])] == [made]
    assert run.info.status == "FINISHED"
    assert run.info.run_name == whole.name
    assert run.data.params == {name: str(value) for name, value in cells(whole.settings).items()}
    assert run.data.tags["packages.torch"] == whole.facts["packages"]["torch"]
    assert set(run.data.metrics) == set(whole.series)
    for name, points in whole.series.items():
        assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)] == points
    with pytest.raises(StoreError, match="give -o a folder, or the address of a server that runs"):
        mlflow.track(whole, "http://127.0.0.1:1")


@pytest.mark.parametrize("address", ["sqlite:///runs.db", "ftp://host"])
def test_places_that_mlflow_cannot_reach(address: str, finished: RunFolder):
    with pytest.raises(StoreError, match=f"cannot write to {address}.*give -o a folder.*pip install mlflow"):
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
    own: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WANDB_MODE", "online")  # even so
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    before, out = read(own), tmp_path / "offline"
    whole = with_more_memory(own)
    wandb.track(before, str(out))
    tracked = wandb.track(whole, str(out))
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    (folder,) = out.iterdir()
    assert str(folder) == tracked
    assert folder.match(f"offline-run-*-{whole.digest}")
    config, summary, series, (run,) = told(folder)
    assert (run.run_id, run.display_name, run.project, list(run.tags)) == (whole.digest, whole.name, "ipal", [])
    assert run.telemetry.feature.offline
    assert config["ipal"] == whole.settings["ipal"]
    assert config["environment"] == whole.facts
    assert set(series) == set(whole.series)
    for name, points in whole.series.items():
        assert sorted(series[name]) == [(step, pytest.approx(value, rel=1e-12)) for step, value in points]
        assert summary[name] == pytest.approx(points[-1][1], rel=1e-12)
    assert summary["cost/peak_memory_bytes"] == whole.series["cost/peak_memory_bytes"][-1][1]


# ---------------------------------------------------------------------- the command


def test_the_command_tracks_each_run_once_and_says_where(command: Command, own: RunFolder):
    name = own.path.name
    said = command("track", name, own.path, "--to", "tensorboard", "-o", "board", "--json").json
    assert said == [{"run": name, "where": f"board/{name}"}]
    assert command("track", name, "--to", "tensorboard", "-o", "board").out == f"{name}: board/{name}\n"


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
