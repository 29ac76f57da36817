"""A disk that is full or may not be written: one sentence, and nothing is lost."""

import errno
import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ipal import IPAL, StoreError
from ipal.data.datasets import convert
from ipal.runs import runner
from ipal.runs.run_folder import RunFolder, RunStore
from ipal.state.snapshot import Snapshot
from ipal.system.files import TEMPORARY, aside, write_atomically
from tests.bad_input.support import SMALL, contents, learn, wanted
from tests.support import Command, Watcher, complaint, write_graph

# ---------------------------------------------------------------------- folders that cannot be written


def test_a_file_in_the_way_of_the_runs_folder_is_named(command: Command, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("my notes")
    complaint(command("run", *SMALL), "Cannot write", "runs", "--runs")
    assert (tmp_path / "runs").read_text() == "my notes"
    complaint(command("run", *SMALL, "--runs", "runs/deeper"), "Cannot write", "runs", "--runs")


@pytest.mark.parametrize("what", ["lock", "temporary file"])
def test_a_run_folder_that_may_not_be_written_is_named(
    command: Command, interrupted: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    # Tests may run as root, who may write everywhere: the refusal itself is put in place.
    place = "filelock.FileLock.acquire" if what == "lock" else "ipal.system.files.create"
    monkeypatch.setattr(place, refuse)
    before = contents(interrupted)
    complaint(command("resume", interrupted.name), "Permission denied", underway=what != "lock")
    assert contents(interrupted) == before


# ---------------------------------------------------------------------- no room on the disk

WRITES = 15  # config, environment, 3 tasks x 3 checkpoints, history, confusion, model, result


def fill_disk(monkeypatch: pytest.MonkeyPatch, function: str, after: int) -> list[int]:
    """From the `after`-th atomic write on, the disk is full. Returns a list that grows with every write."""
    module, _, name = function.rpartition(".")
    real = getattr(sys.modules[module], name)
    calls: list[int] = []
    # Every atomic write makes two calls of fsync: for the file, and for its folder.
    most = after * (2 if name == "fsync" else 1)

    def limited(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) > most:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **named)

    monkeypatch.setattr(sys.modules[module], name, limited)
    return calls


def test_a_run_makes_as_many_writes_as_the_tests_below_think(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fill_disk(monkeypatch, "os.replace", 1000)
    learn(tmp_path)
    assert len(calls) == WRITES


@pytest.mark.parametrize(
    ("function", "after"),
    [
        *(("os.replace", after) for after in (0, 1, 2, 3, 7, *range(WRITES - 4, WRITES))),
        ("os.fsync", 3),
        ("ipal.system.files.create", 3),
    ],
)
def test_a_full_disk_loses_nothing(
    tmp_path: Path, finished_once: Path, monkeypatch: pytest.MonkeyPatch, function: str, after: int
) -> None:
    resolved = wanted()
    folder = RunStore(tmp_path).folder_for(resolved.config)
    with monkeypatch.context() as full:
        fill_disk(full, function, after)
        with pytest.raises(StoreError, match=r"No room on the disk.*free some space.*what was saved before is whole"):
            runner.run(resolved, folder, Watcher(), checkpoint_every=2)
    assert not folder.is_finished
    assert not list(folder.path.glob(".*.*")), "a half-written file was left behind"
    assert folder.checkpoint.exists() == (after > 2)
    if folder.checkpoint.exists():
        Snapshot.load(folder.checkpoint)
    result = runner.run(resolved, folder, Watcher(), checkpoint_every=2)
    expected = json.loads((finished_once / "result.json").read_text())
    for part in ("accuracy_matrix", "average_performance", "per_class", "validation", "protocol", "retained"):
        assert json.loads(json.dumps(result[part])) == expected[part]
    assert folder.result()["accuracy_matrix"] == expected["accuracy_matrix"]
    assert (folder.path / "history.csv").read_bytes() == (finished_once / "history.csv").read_bytes()
    assert not folder.checkpoint.exists()


def test_every_run_that_is_listed_after_a_full_disk_can_be_resumed(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        fill_disk(full, "os.replace", 2)
        complaint(command("run", *SMALL), "No room on the disk", underway=True)
    for run in json.loads(command("list", "runs", "--json").out):
        done = command("resume", run["run"])
        assert done.code == 0, done.err
    assert command("run", *SMALL).code == 0


def test_a_full_disk_keeps_the_model_that_was_saved_before(
    saved: Path, fitted: IPAL, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()
    fill_disk(monkeypatch, "os.fsync", 0)
    with pytest.raises(StoreError, match="No room on the disk"):
        fitted.save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may become larger than 20,000 bytes: the system itself refuses, as it does on a full disk."""
    resource = pytest.importorskip("resource", reason="only some systems limit the size of files")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_a_graph_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"No room on the disk to write .*mine\.graph"):
        convert("synthetic:nodes=500,classes=4,features=50", tmp_path / "mine.graph")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- a target that changes while a command computes


def raising(code: int) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise OSError(code, os.strerror(code))

    return refuse


LATE: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], object], str]] = {
    "removed": (lambda file, _: shutil.move(file.parent, file.parent.with_name("moved")), "No such file"),
    "read-only": (lambda _, patch: patch.setattr("ipal.system.files.create", raising(errno.EROFS)), "Read-only"),
    "full at the rename": (lambda _, patch: patch.setattr("os.replace", raising(errno.ENOSPC)), "No room on the disk"),
}
"""What happens to the folder of an output after it was checked; and a word of the sentence."""


COMMANDS = {
    "predict": (["--graph", "mine.npz"], "ipal.deploy.predict.predict"),
    "export": ([], "ipal.deploy.export.onnx_model"),
}


@pytest.mark.parametrize(("verb", "name"), [*(("predict", name) for name in LATE), ("export", "removed")])
def test_an_output_that_can_no_longer_be_written_is_one_sentence_and_the_older_file_is_kept(
    command: Command,
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    name: str,
) -> None:
    write_graph(tmp_path / "mine.npz")
    target = tmp_path / "out" / "mine"
    target.parent.mkdir()
    target.write_text("older")
    words, computed = COMMANDS[verb]
    module, _, function = computed.rpartition(".")
    real, (happens, reason) = getattr(importlib.import_module(module), function), LATE[name]

    def compute(*arguments: Any, **named: Any) -> Any:
        happens(target, monkeypatch)
        return real(*arguments, **named)

    monkeypatch.setattr(computed, compute)
    complaint(command(verb, saved, *words, "-o", target, "--force"), str(target), reason)
    kept = target if target.is_file() else tmp_path / "moved" / "mine"
    assert contents(kept.parent) == {"mine": b"older"}


# ---------------------------------------------------------------------- what killed writers leave behind

HALF = """
import os, signal, sys
from pathlib import Path
from ipal.system.files import aside, written_whole
folder = Path(sys.argv[1])
with written_whole(folder / "checkpoint.safetensors") as file, aside(folder / "my.graph", folder=True) as temporary:
    (temporary / "x.npy").write_bytes(b"half")
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """A process that is writing in the folder; call it to have it killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HALF, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"writing\n"

        def kill() -> None:
            process.kill()
            process.wait()

        yield kill
        kill()


def left(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if TEMPORARY.fullmatch(path.name)]


def test_what_a_killed_writer_left_is_removed_under_the_lock_of_the_run(
    tmp_path: Path, writer: Callable[[], None]
) -> None:
    mine = tmp_path / f".notes.{'a' * 32}"  # no name that this library gives
    mine.write_text("my own")
    writer()
    assert len(left(tmp_path)) == 2, "otherwise nothing is tested"
    with RunFolder(tmp_path).locked():
        assert left(tmp_path) == []
    assert mine.exists()


def test_a_write_removes_what_a_killed_writer_of_the_same_file_left_a_day_ago(
    tmp_path: Path, writer: Callable[[], None]
) -> None:
    writer()
    other = tmp_path / f".other.csv.{uuid.uuid4().hex}"
    other.write_text("of another file")
    write_atomically(tmp_path / "checkpoint.safetensors", "whole")
    assert len(left(tmp_path)) == 3, "who writes slowly is not dead"
    yesterday = time.time() - 90_000
    for path in left(tmp_path):
        os.utime(path, (yesterday, yesterday))
    write_atomically(tmp_path / "checkpoint.safetensors", "whole")
    assert sorted(path.name.rpartition(".")[0] for path in left(tmp_path)) == [".my.graph", ".other.csv"]
    with aside(tmp_path / "my.graph", folder=True):
        pass
    assert [path.name.rpartition(".")[0] for path in left(tmp_path)] == [".other.csv"]


# ---------------------------------------------------------------------- what is no file


@pytest.fixture
def terminal() -> Iterator[str]:
    """A device that nobody needs: where a test fails, it would be replaced."""
    ends = os.openpty()
    yield os.ttyname(ends[1])
    for end in ends:
        os.close(end)


@pytest.fixture(params=["device", "link to a device", "pipe", "socket"])
def special(request: pytest.FixtureRequest, tmp_path: Path, terminal: str) -> Iterator[Path]:
    path = tmp_path / "out.csv"
    if request.param == "device":
        yield Path(terminal)
    elif request.param == "link to a device":
        path.symlink_to(terminal)
        yield path
    elif request.param == "pipe":
        os.mkfifo(path)
        yield path
    else:
        with socket.socket(socket.AF_UNIX) as server, pytest.MonkeyPatch.context() as here:
            here.chdir(tmp_path)  # the address of a socket must be short
            server.bind(path.name)
            yield path


def test_a_device_is_not_replaced_by_a_file(special: Path) -> None:
    before = special.lstat()
    with pytest.raises(StoreError, match="is a device, a pipe or a socket"):
        write_atomically(special, "text")
    assert special.lstat().st_ino == before.st_ino
    assert special.lstat().st_mode == before.st_mode


@pytest.mark.parametrize("output", ["terminal", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_device_as_output_is_refused_before_anything_is_done(
    command: Command, saved: Path, terminal: str, output: str
) -> None:
    output = terminal if output == "terminal" else output
    for words in (["predict", saved, "--graph", "digits"], ["export", saved], ["merge", saved, saved]):
        complaint(command(*words, "-o", output, "--force"), output, "is a device, a pipe or a socket")


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.txt").mkdir()
    with pytest.raises(StoreError, match=r"Cannot write .*log\.txt"):
        RunFolder(tmp_path).log("begun")
