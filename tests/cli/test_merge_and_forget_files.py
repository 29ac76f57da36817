"""Files of `ipal merge` and `ipal forget`: whole whatever fails, and no process undoes what another did."""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ipal import Analytic
from ipal.data.datasets import Dataset
from ipal.errors import StoreError
from ipal.runs.run_folder import RunFolder
from tests.cli import paused
from tests.cli.merge_and_forget_support import RUN, graphs_of, loaded, those, view, write
from tests.processes import loaded_context
from tests.support import Command, complaint

# ---------------------------------------------------------------------- forget: files


FORGET = ("forget", "m.safetensors", "--graph", "g.npz", "--class")


@pytest.fixture
def graph(command: Command, tiny: Dataset) -> None:
    """What m.safetensors has learned, as g.npz."""
    write("g.npz", view(tiny))


@pytest.mark.usefixtures("graph")
def test_another_file_may_take_what_is_left_but_replaces_none_unless_forced(
    command: Command, taught: Callable[..., Analytic], tmp_path: Path
) -> None:
    taught()
    before = Path("m.safetensors").read_bytes()
    done = command(*FORGET, 1, "-o", "less.safetensors", "--json")
    assert done.json["model"] == str(tmp_path / "less.safetensors")
    assert "still remembers" in done.err
    assert Path("m.safetensors").read_bytes() == before
    assert loaded("less.safetensors").classes_.tolist() == [0, 2, 3, 4, 5]
    complaint(
        command(*FORGET, 2, "-o", "less.safetensors"),
        "exists already",
        "--force",
    )
    assert loaded("less.safetensors").classes_.tolist() == [0, 2, 3, 4, 5]
    assert command(*FORGET, 2, "-o", "less.safetensors", "--force").code == 0
    assert loaded("less.safetensors").classes_.tolist() == [0, 1, 3, 4, 5]


@pytest.mark.usefixtures("graph")
def test_the_model_is_whole_where_a_write_fails(
    command: Command, taught: Callable[..., Analytic], monkeypatch: pytest.MonkeyPatch
) -> None:
    taught()
    before, names = Path("m.safetensors").read_bytes(), {*Path().iterdir(), Path(".m.safetensors.lock")}

    def full(*_: object, **__: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        complaint(command(*FORGET, 1), "No room", "m.safetensors")
    assert Path("m.safetensors").read_bytes() == before
    assert set(Path().iterdir()) == names
    assert command(*FORGET, 1).code == 0
    assert loaded("m.safetensors").classes_.tolist() == [0, 2, 3, 4, 5]


@contextmanager
def about_to_write(*arguments: object) -> Iterator[None]:
    """The command in another process, which has checked everything and waits before it writes."""
    process = loaded_context().Process(target=paused.perform, args=(Path.cwd(), list(map(str, arguments))))
    process.start()
    try:
        while not Path("writing").exists():
            assert process.is_alive()
            time.sleep(0.01)
        yield
        Path("go on").touch()
        process.join(60)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


def test_the_model_of_a_run_is_changed_under_the_lock_of_the_run(command: Command, tiny: Dataset) -> None:
    write("low.npz", view(tiny, those(tiny, 0, 1, 2)))
    run = command("run", "--dataset", "low.npz", *RUN, "--split", "2,1", "--json").json["run"]
    graphs = graphs_of(Path(run))
    with about_to_write("forget", run, "--class", 1, *graphs):
        complaint(command("forget", run, "--class", 2, *graphs), "being worked on by another process")
        with pytest.raises(StoreError, match="being worked on"), RunFolder(Path(run)).locked():
            pass
    assert loaded(Path(run) / "model.safetensors").classes_.tolist() == [0, 2]


def test_two_merges_into_one_new_file_do_not_replace_each_other(command: Command, pair: Callable[..., None]) -> None:
    pair()
    merge = ("merge", "a.safetensors", "b.safetensors", "-o", "c.safetensors")
    with about_to_write(*merge):
        complaint(command(*merge), "being worked on by another process")
    complaint(command(*merge), "exists already")
