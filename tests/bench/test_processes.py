"""Real runs in real processes: killed, interrupted, doubled; nothing finished is lost, nothing is left behind."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ipal.bench.suite import ENGINES
from ipal.runs.manifest import manifest_path, read_manifest
from tests.bench.live import ENTRIES, SLOW, checkpoints, children, finished, is_alive, start, wait_until
from tests.bench.support import plan, write
from tests.processes import Started
from tests.snippets import in_this_process


def end_in_the_middle(
    folder: Path, is_under_way: Callable[[], object], end: Callable[[Started], None]
) -> tuple[int, str]:
    """Start a bench, end it when a run is finished and another under way; its exit code and its last words."""
    runs = folder / "runs"
    process = start(folder)
    wait_until(lambda: finished(runs) and is_under_way(), "a run finished, one under way")
    workers = children(process.pid)
    assert workers
    end(process)
    _, said = process.communicate(timeout=30)
    wait_until(lambda: not any(map(is_alive, workers)), "the children end", seconds=10)
    return process.returncode, said


def resumed(folder: Path) -> int:
    """How often the runs of a folder were resumed."""
    return sum(path.read_text().count("resumed") for path in folder.rglob("log.txt"))


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_ended_in_the_middle_it_leaves_no_process_and_goes_on_where_it_was(command, tmp_path, monkeypatch):
    write(tmp_path, "\n".join(ENTRIES), SLOW)
    runs = tmp_path / "runs"
    # Ctrl-C reaches the whole group; a killed parent can tell nobody.
    code, said = end_in_the_middle(
        tmp_path, lambda: checkpoints(runs), lambda process: os.killpg(process.pid, signal.SIGINT)
    )
    assert code == 130
    assert "Start the same command again" in said
    assert "Traceback" not in said
    done = finished(runs)
    assert len(done) == 1
    # Not its next checkpoint: on a fast machine what is left ends before one is due.
    code, _ = end_in_the_middle(tmp_path, lambda: resumed(runs) == 1, lambda process: process.kill())
    assert code == -signal.SIGKILL
    assert finished(runs) == done
    monkeypatch.setitem(ENGINES, "local", in_this_process)  # sooner, and what is asked is only what is left to do
    quick, slow = command("bench", "x.yaml", "--jobs", 1, "--json").json["x"]
    assert [len(row["runs"]) for row in (quick, slow)] == [1, 1]
    assert finished(runs)[quick["runs"][0]] == done[quick["runs"][0]]
    assert resumed(runs / slow["runs"][0]) == 2


@pytest.mark.usefixtures("loaded_workers")
def test_two_benches_on_one_folder_share_the_work_and_end_alike(command, tmp_path):
    write(tmp_path, "\n".join(reversed(ENTRIES)), SLOW)
    first = start(tmp_path, "--json")
    wait_until(lambda: checkpoints(tmp_path / "runs"), "the first bench at work on the slow run")
    rows = command("bench", "x.yaml", "--jobs", 1, "--json").json
    out, said = first.communicate(timeout=60)
    assert first.returncode == 0, said
    assert json.loads(out) == rows
    assert [len(row["runs"]) for row in rows["x"]] == [1, 1]
    for path in (tmp_path / "runs").glob("*/log.txt"):
        log = path.read_text()
        assert (log.count("started"), log.count("finished"), log.count("failed")) == (1, 1, 0), log


@pytest.mark.usefixtures("loaded_workers")
def test_a_run_that_fails_is_reported_and_the_others_are_made(command, tmp_path):
    suite = plan(
        write(tmp_path, "ipal:\nb: {method: ipal, ipal.gamma: 1}\nt: {method: ipal, grid: {ipal.gamma: [1, 2]}}")
    )
    bad = suite.benches[0].rows[1].points[0].runs[0]  # also of the grid of the third row
    (tmp_path / "runs" / bad).mkdir(parents=True)
    (tmp_path / "runs" / bad / "checkpoint.safetensors").write_bytes(b"torn")
    done = command("bench", "x.yaml", "--jobs", 1, "--json")
    assert done.code == 1
    first, second, third = json.loads(done.out)["x"]
    assert len(first["runs"]) == 2
    assert second["runs"] == []
    assert second["failures"][0]["run"] == bad
    assert third["settings"] == {"ipal.gamma": 2}  # of the grid, the point whose runs are whole
    assert "checkpoint.safetensors" in done.err
    assert len(finished(tmp_path / "runs")) == 5
    entries = read_manifest(manifest_path(tmp_path / "runs", "x")).entries
    assert [len(entry.failures) for entry in entries] == [0, 1, 1]
