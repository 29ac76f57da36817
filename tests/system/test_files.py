"""Permissions of files: new ones are for all or private, and what is replaced keeps its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipal.system.files import write_atomically, written_whole


def mode(path: Path | str) -> int:
    return Path(path).stat().st_mode & 0o777


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_new_file_is_for_all_or_private(tmp_path: Path) -> None:
    write_atomically(tmp_path / "report", "all may read")
    assert mode(tmp_path / "report") == 0o644
    with written_whole(tmp_path / "model", private=True) as file:
        assert mode(file.name) == 0o600, "while it is being written"
    assert mode(tmp_path / "model") == 0o600


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("given", [0o400, 0o600, 0o640, 0o664])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path, given: int, private: bool) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    path.chmod(given)
    with written_whole(path, private=private) as file:
        assert mode(file.name) == 0o600, "while it is being written"
        file.write(b"after")
    assert mode(path) == given
    assert path.read_text() == "after"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("allowed", [True, False])
def test_a_file_that_is_replaced_keeps_its_owner_or_its_group_loses_the_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    path.chmod(0o640)
    os.chown(path, 12345, 54321)
    if not allowed:
        monkeypatch.setattr("os.chown", lambda *_: os.stat("/no/such/file"))
    write_atomically(path, "after")
    found = path.stat()
    assert (found.st_uid, found.st_gid) == ((12345, 54321) if allowed else (os.geteuid(), tmp_path.stat().st_gid))
    assert mode(path) == (0o640 if allowed else 0o600)
