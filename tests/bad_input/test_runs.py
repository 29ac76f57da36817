"""Run folders that are damaged, foreign or in use are refused and left as they are."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipal.config import run_config
from ipal.runs import runner
from ipal.runs.run_folder import RunFolder, RunStore
from ipal.state.snapshot import Snapshot
from tests.bad_input.support import GRAPH, X, contents
from tests.support import Command, Watcher, complaint, write_graph


def cut(path: Path, share: float = 0.5) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


@pytest.mark.parametrize("share", [0.0, 0.5, 0.97])
@pytest.mark.parametrize("verb", ["show", "resume"])
def test_a_configuration_that_was_cut_is_refused(command: Command, finished: Path, verb: str, share: float) -> None:
    cut(finished / "config.yaml", share)
    before = contents(finished)
    complaint(command(verb, finished.name), "config.yaml")
    assert contents(finished) == before


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seed: 0", "seed: 1", ["was changed", "its hash is", "folder's name"]),
        ("seed: 0", "seed: -1", ["damaged or of another version", "'seed'"]),
        ("method: ipal", "method: other", ["damaged or of another version"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@pytest.mark.parametrize("verb", ["show", "resume"])
def test_a_configuration_that_was_edited_or_is_of_another_version_is_refused(
    command: Command, interrupted: Path, verb: str, old: str, new: str, words: list[str]
) -> None:
    path = interrupted / "config.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    before = contents(interrupted)
    complaint(command(verb, interrupted.name), *words)
    assert contents(interrupted) == before


@pytest.mark.parametrize("share", [0.0, 0.6, 0.99])
def test_a_result_that_was_cut_is_refused_and_listed_as_damaged(command: Command, finished: Path, share: float) -> None:
    cut(finished / "result.json", share)
    for arguments in (["show", finished.name], ["resume", finished.name]):
        complaint(command(*arguments), "result.json is damaged", "run again")
    assert '"status": "damaged"' in command("list", "runs", "--json").out


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 0xFF
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "emptied": (lambda path: path.write_bytes(b""), ["damaged"]),
    "cut in the middle": (cut, ["damaged"]),
    "another version": (
        lambda path: path.write_bytes(path.read_bytes().replace(b"ipal-state-1", b"ipal-state-2")),
        ["'ipal-state-2'", "'ipal-state-1'", "the version that wrote it"],
    ),
    "a model": (lambda path: Snapshot(Snapshot.load(path).tensors, {"method": "ipal"}).save(path), ["checkpoint"]),
}


def forged(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """A checkpoint with other content, and a checksum that fits it."""
    state = Snapshot.load(path)
    tensors, facts = dict(state.tensors), json.loads(json.dumps(state.facts))
    change(tensors, facts)
    Snapshot(tensors, facts).save(path)


FORGED: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "a row with another name": lambda _, facts: facts["progress"]["rows"][0].update(other={}),
    "a row too many": lambda _, facts: facts["progress"]["rows"].append(facts["progress"]["rows"][0]),
    "tasks that are not there": lambda _, facts: facts["progress"].update(task=7),
    "labels of the task before": lambda _, facts: facts["learner"].update(labels=facts["learner"]["labels"][:2]),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_checkpoint_is_refused(command: Command, interrupted: Path, name: str) -> None:
    forged(interrupted / "checkpoint.safetensors", FORGED[name])  # type: ignore[arg-type]
    # Of these, only the learner itself can say that a task's classes are missing, when it goes on with it.
    complaint(command("resume", interrupted.name), underway=name == "labels of the task before")
    assert not (interrupted / "result.json").exists()


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_resume_and_left_as_it_is(
    command: Command, interrupted: Path, name: str
) -> None:
    damage, words = DAMAGES[name]
    damage(interrupted / "checkpoint.safetensors")
    before = contents(interrupted)
    said = complaint(command("resume", interrupted.name), "checkpoint.safetensors", *words)
    assert contents(interrupted) == before
    checkpoint = interrupted / "checkpoint.safetensors"
    assert said.endswith(f"Delete {checkpoint} to start the run from its first task.")


@pytest.mark.parametrize("other", [{"encoder": {"width": 8}}, {"seed": 1}, {"ipal": {"gamma": 0.1}}], ids=str)
def test_the_checkpoint_of_another_run_is_refused(
    command: Command, interrupted: Path, tmp_path: Path, other: dict[str, Any]
) -> None:
    resolved = runner.resolve(run_config({"dataset": GRAPH, "threads": 1, "train": {"epochs": 4}, **other}))
    folder = RunStore(tmp_path / "elsewhere").folder_for(resolved.config)
    with pytest.raises(KeyboardInterrupt):
        runner.run(resolved, folder, Watcher(3), checkpoint_every=1)
    shutil.copy(folder.checkpoint, interrupted / "checkpoint.safetensors")
    complaint(command("resume", interrupted.name), "does not fit")


def test_a_run_whose_graph_has_changed_or_gone_is_refused(command: Command, tmp_path: Path) -> None:
    path = write_graph(tmp_path / "mine.npz")
    resolved = runner.resolve(run_config({"dataset": str(path), "threads": 1, "train": {"epochs": 4}}))
    folder = RunStore(tmp_path / "runs").folder_for(resolved.config)
    with pytest.raises(KeyboardInterrupt):
        runner.run(resolved, folder, Watcher(3), checkpoint_every=1)
    before = contents(folder.path)
    write_graph(path, x=X)
    complaint(command("resume", "mine"), "mine.npz", "content has changed")
    path.unlink()
    complaint(command("resume", "mine"), "mine.npz", "does not exist")
    assert contents(folder.path) == before


@pytest.mark.parametrize("verb", ["show", "resume"])
def test_a_folder_that_is_no_run_is_refused(command: Command, tmp_path: Path, verb: str) -> None:
    (tmp_path / "holiday").mkdir()
    (tmp_path / "runs" / "empty").mkdir(parents=True)
    complaint(command(verb, "holiday"), "There is no run 'holiday'")
    complaint(command(verb, "empty"), "There is no run 'empty'")
    (tmp_path / "letter.txt").touch()
    # `show` takes models as well.
    complaint(command(verb, "letter.txt"), "letter.txt", "no saved state" if verb == "show" else "ipal list runs")


def test_a_run_that_is_not_finished_is_not_shown_but_told_how_to_finish(command: Command, interrupted: Path) -> None:
    complaint(command("show", interrupted.name), "not finished", f"ipal resume {interrupted.name}")


def test_a_run_that_another_process_works_on_is_left_alone(command: Command, interrupted: Path) -> None:
    before = contents(interrupted)
    with RunFolder(interrupted).locked():
        complaint(command("resume", interrupted.name), "another process")
    assert contents(interrupted) == before
