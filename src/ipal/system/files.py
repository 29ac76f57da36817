"""Atomic writes, locks, and bounded reads of regular files."""

import errno
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from ipal.errors import StoreError

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}", re.DOTALL)
"""The name of what is being written, with the target's name in it."""
DAY = 86400.0
STREAMS = ("/dev/std", "/dev/fd/", "/proc/")


def open_plain(path: Path) -> BinaryIO:
    """Open a regular file for reading. A pipe, a device or a folder is an OSError."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind):
        os.close(handle)
        code = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
        raise OSError(code, os.strerror(errno.EISDIR) if code == errno.EISDIR else "Not a plain file", str(path))
    return open(handle, "rb")


def read_bounded(path: Path, most: int) -> bytes:
    """The content of a file of at most `most` bytes; of a longer one, one byte more."""
    with open_plain(path) as file:
        return file.read(most + 1)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file atomically: a reader sees the old content or the new one, never a part."""
    with written_whole(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def written_whole(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """A temporary file to write to, flushed to disk and renamed on success.

    A file that is replaced keeps its permissions. A new one has those that the user's umask allows, or is the user's
    alone where it is `private`.
    """
    before = _found(path)
    with aside(path, mode=0o600 if private or before else 0o666) as temporary:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            if before:
                _keep_permissions(temporary, before)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    with suppress(OSError):  # so that the rename survives a power failure
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _found(path: Path) -> os.stat_result | None:
    """What is known of a file; None where there is none."""
    with suppress(OSError):
        return path.stat()
    return None


def _keep_permissions(path: Path, before: os.stat_result) -> None:
    """Those of the file that is replaced, and its owner where that is allowed; another group gets nothing."""
    with suppress(OSError, AttributeError):  # another's file, or Windows
        os.chown(path, before.st_uid, before.st_gid)
    same_group = path.stat().st_gid == before.st_gid
    path.chmod(before.st_mode & (0o777 if same_group else 0o707))


@contextmanager
def aside(path: Path, *, folder: bool = False, mode: int = 0o666) -> Iterator[Path]:
    """A temporary file (or folder) in the folder of `path`, to be renamed when complete; otherwise it is removed.

    Its name is unique. What killed writers of the same target left is removed when it is a day old.
    """
    check_target(path)
    sweep(path.parent, path.name, older_than=DAY)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with writing(path):
            if folder:
                temporary.mkdir()
            else:
                os.close(create(temporary, mode))
            yield temporary
    finally:
        _remove(temporary)


def sweep(folder: Path, target: str | None = None, *, older_than: float = 0.0) -> None:
    """Remove temporary files in a folder that no process works on: of all files, or of `target` alone."""
    with suppress(OSError):
        for name in os.listdir(folder):
            match = TEMPORARY.fullmatch(name)
            if match and target in (None, match[1]) and time.time() - os.lstat(folder / name).st_mtime >= older_than:
                _remove(folder / name)


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def check_target(path: Path) -> None:
    """Refuse to replace a device, a pipe or a socket, or a link to one."""
    found = _found(path)  # if nothing, it does not exist, or writing will report the error
    is_file = found is None or stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    if found and (os.path.abspath(path).startswith(STREAMS) or not is_file):
        raise StoreError(f"{path} is a device, a pipe or a socket, not a file: give the name of a file to write.")


def create(path: Path, mode: int) -> int:
    """A new file, with what of these permissions the user's umask allows."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)


@contextmanager
def alone_with(path: Path, lock: Path) -> Iterator[None]:
    """Hold the lock of `path`. It ends with the process, even if that is killed; the lock file stays."""
    with writing(lock):
        try:
            held = FileLock(lock, timeout=0).acquire()
        except Timeout as error:
            raise StoreError(f"{path} is being worked on by another process: wait for it or end it.") from error
    with held:
        yield


def make_folder(path: Path) -> None:
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in a sentence why a file or a folder cannot be written."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise StoreError(
                f"No room on the disk to write {path}: free some space, then repeat the command; "
                "what was saved before is whole."
            ) from error
        reason = error.strerror or str(error) or type(error).__name__  # libraries raise some without errno
        raise StoreError(f"Cannot write {path} ({reason}): choose another folder (--runs, -o) or fix it.") from error
