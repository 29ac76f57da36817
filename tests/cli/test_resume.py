"""`ipal resume`: an interrupted run goes on, from any folder."""

import json
from pathlib import Path

import pytest

from tests.cli.support import SMALL, assert_same_model, interrupted_run, stamps
from tests.support import Command, Watcher, write_graph


def test_an_interrupted_run_is_resumed_to_the_same_numbers(command: Command, tmp_path: Path, finished: Path) -> None:
    folder = interrupted_run(tmp_path / "stopped")
    assert folder.name == finished.name
    result = command("resume", folder, "--json").json
    expected = json.loads((finished / "result.json").read_text())
    assert result["accuracy_matrix"] == expected["accuracy_matrix"]
    assert (folder / "history.csv").read_bytes() == (finished / "history.csv").read_bytes()
    assert_same_model(folder, finished)
    assert "resumed at task 1" in (folder / "log.txt").read_text()
    assert not (folder / "checkpoint.safetensors").exists()


def test_run_goes_on_where_the_same_run_was_interrupted(command: Command, tmp_path: Path) -> None:
    folder = interrupted_run(tmp_path / "runs")
    done = command("run", *SMALL, "--json")
    assert Path(done.json["run"]).name == folder.name
    assert "resuming" in done.err
    assert "resumed at task 1" in (folder / "log.txt").read_text()


def test_a_finished_run_is_shown_and_a_checkpoint_that_a_killed_process_left_is_removed(
    command: Command, finished: Path
) -> None:
    left, before = finished / "checkpoint.safetensors", stamps(finished)
    for again in (["run", *SMALL], ["resume", finished]):
        left.write_bytes(b"with the moments of the optimiser")
        done = command(*again, "--json")
        assert done.json["accuracy_matrix"] == json.loads((finished / "result.json").read_text())["accuracy_matrix"]
        assert "finished already" in done.err
        assert stamps(finished) == before


def test_resume_finds_a_file_of_ones_own_from_any_folder(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The path was given relative to where the user was then.
    write_graph(tmp_path / "mine.npz")
    folder = interrupted_run(tmp_path / "runs", "mine.npz")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = command("resume", folder, "--json")
    assert done.code == 0, done.err


def test_ctrl_c_says_how_to_go_on(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ipal.cli import render

    watcher = Watcher(4)
    with monkeypatch.context() as pressed:
        pressed.setattr(render.ProgressLine, "epoch", lambda self, task, terms: watcher.epoch(task, terms))
        done = command("run", *SMALL, "--checkpoint-every", 2)
    assert done.code == 130
    assert done.out == ""
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"ipal resume runs/{folder.name}" in done.err
    assert "Traceback" not in done.err
    assert command("resume", f"runs/{folder.name}", "--json").json["run"]
