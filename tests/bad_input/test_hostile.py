"""Options, names and files that nobody means well: one line, exit code 2, and nothing interpreted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipal import IPAL, Analytic, ConfigError, EncoderConfig, TrainConfig
from ipal.cli import render
from ipal.config import run_config
from ipal.data.datasets import load
from ipal.errors import CapacityError, DataError, IpalError, StoreError
from ipal.runs.run_folder import RunFolder, RunStore
from ipal.system import free_memory
from ipal.trackers.record import read
from tests.bad_input.support import SMALL, some_data
from tests.hostile_commands import hostile_invocations
from tests.hostile_files import GRAPHS, RESULTS, HostileFiles, put, sound_result
from tests.support import Command, complaint, write_graph

SLICE = 40


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> HostileFiles:
    return HostileFiles(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def invocations(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    return hostile_invocations(13, SLICE, tmp_path_factory.mktemp("invocations"))


@pytest.mark.parametrize("place", range(SLICE))
def test_a_hostile_invocation_is_refused_in_a_line(command: Command, invocations: list[list[str]], place: int) -> None:
    done = command(*invocations[place])
    assert done.code == 2, done
    assert len(done.err.splitlines()) <= 3
    assert len(done.err) < 2000
    assert "Traceback" not in done.err
    assert done.out == ""


# ---------------------------------------------------------------------- what is printed


def test_a_message_is_one_line_of_bounded_length() -> None:
    for text in ("x" * 10**6, "a b " * 10**5, "two\nlines", "\x1b[31m", "\udcff", "\u202e"):
        message = str(IpalError(f"There is no '{text}': name another."))
        assert len(message) <= 1200
        assert message.isprintable()
        assert message.startswith("There is no '")
        assert message.endswith("name another.")


def test_markup_in_names_is_shown_and_not_interpreted(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render.out, "width", 500)  # no cell is cut
    done = command("run", *SMALL, "--runs", "[/bold]")
    assert done.code == 0, done.err
    assert "[/bold]/" in done.out
    done = command("data", write_graph(tmp_path / "[red] :smile: \x1b[2J.npz"))
    assert done.code == 0, done.err
    assert "[red] :smile: \\x1b[2J.npz" in done.out
    assert "\x1b" not in done.out


def run_in_shell(line: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    program = line.replace("ipal", f"{sys.executable} -m ipal")
    environment = {**os.environ, "NO_COLOR": "1", "IPAL_DATA": str(folder / "no-data")}
    return subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, cwd=folder, env=environment, timeout=100
    )


@pytest.mark.parametrize("line", ["ipal list datasets", "ipal list datasets --json", "ipal --help"])
def test_output_to_a_full_device_is_one_sentence(tmp_path: Path, line: str) -> None:
    done = run_in_shell(f"{line} > /dev/full", tmp_path)
    assert done.returncode == 2
    (sentence,) = done.stderr.splitlines()
    assert "output could not be written" in sentence


def test_closed_output_and_readers_who_leave_are_no_errors_of_ours(tmp_path: Path) -> None:
    done = run_in_shell("ipal list datasets --json >&-; echo $? >&2; ipal list datasets | head -1; :", tmp_path)
    assert done.stderr == "0\n"


# ---------------------------------------------------------------------- the library


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Analytic(expansion=64), "Unknown setting 'analytic.expansion'"),
        (lambda: Analytic(restart=1.0), "analytic.restart"),
        (lambda: IPAL(1), "go by name"),
        (lambda: TrainConfig(epochs=-1), "'epochs'"),
        (lambda: EncoderConfig(hiden=1), "Did you mean 'hidden'"),
    ],
)
def test_settings_by_hand_are_refused_as_those_of_a_file(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        make()
    assert isinstance(caught.value, ValueError)  # as those who call a constructor expect
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------- memory, before it is taken


def test_a_file_that_does_not_fit_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_graph(tmp_path / "mine.npz", x=np.ones((40, 1000)))
    load(str(path))
    monkeypatch.setattr(free_memory, "available", lambda: 10**5)
    with pytest.raises(CapacityError, match=r"mine\.npz.*--convert"):
        load(str(path))


def test_a_network_that_does_not_fit_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "available", lambda: 10**5)
    with pytest.raises(CapacityError, match=r"5 features.*encoder\.hidden"):
        IPAL(encoder=EncoderConfig(), train=TrainConfig(epochs=1)).partial_fit(some_data())


@pytest.mark.parametrize("name", ["bomb", "claims", "shape", "shapes", "digits", "nested", "string", "code", "twice"])
def test_a_file_that_lies_about_its_size_is_refused(hostile: HostileFiles, name: str) -> None:
    assert name in GRAPHS
    with pytest.raises(DataError, match=f"graph-{name}"):
        load(str(hostile.folder / f"graph-{name}.npz"))


# ---------------------------------------------------------------------- stored results


def finished_run(runs: Path, *change: Any) -> Path:
    """A finished run made by hand, sound but for the last of `change` at the place that the others name."""
    config = run_config({"dataset": "digits", "split": [2, 2]})
    folder = RunStore(runs).folder_for(config)
    folder.start(config, {"threads": 1})
    result = sound_result()
    if change:
        put(*change)(result)
    folder.write_json("confusion.json", {"classes": ["0", "1", "2", "3"], "after_task": [[[0, 0, 1]], [[0, 0, 1]]]})
    folder.write_json("result.json", result)
    return folder.path


@pytest.mark.parametrize("place", range(len(RESULTS)), ids=list(RESULTS))
def test_a_result_of_wrong_types_is_refused_by_all_who_read_it(
    command: Command, hostile: HostileFiles, place: int
) -> None:
    folder = RunFolder(hostile.folder / "runs" / hostile.runs[place])
    with pytest.raises(StoreError, match=r"result\.json is damaged"):
        folder.result()
    with pytest.raises(StoreError, match=r"result\.json is damaged"):
        read(folder)
    complaint(command("show", folder.path), "result.json is damaged")
    complaint(command("report", folder.path, "--html"), "result.json is damaged")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("confusion.json", {"classes": ["a"], "after_task": [[[0, 5, 1]], []]}),
        ("confusion.json", {"classes": [1], "after_task": []}),
        ("environment.json", {"packages": []}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_other_records_of_wrong_types_are_refused(tmp_path: Path, file: str, content: dict[str, Any]) -> None:
    path = finished_run(tmp_path)
    (path / file).write_text(json.dumps(content))
    with pytest.raises(StoreError, match=f"{file} is damaged"):
        read(RunFolder(path))
