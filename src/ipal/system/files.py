"""Files that appear whole or not at all, and files that are read: plain ones, of a bounded length."""

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
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from ipal.errors import StoreError

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}(?:\.onnx)?", re.DOTALL)
"""The name of what is being written, with the target's name in it."""
DAY = 86400.0
STREAMS = ("/dev/std", "/dev/fd/", "/proc/")


def open_plain(path: Path) -> BinaryIO:
    """A file to be read. A pipe, a device or a folder is an OSError: none of them is waited for."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind):
        os.close(handle)
        code = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
        raise OSError(code, os.strerror(errno.EISDIR) if code == errno.EISDIR else "Not a plain file", str(path))
    return open(handle, "rb")


def read_bounded(path: Path, most: int) -> bytes:
    """All of a file that has at most so many bytes; of a longer one, one byte more than that."""
    with open_plain(path) as file:
        return file.read(most + 1)


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write all of a file: a reader sees the old one or the new one, never a part."""
    with written_whole(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to be written bit by bit: aside, flushed to the disk, and renamed once all went well."""
    with aside(path) as temporary:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    _flush_folder(path.parent)


@contextmanager
def aside(path: Path, ending: str = "", *, folder: bool = False) -> Iterator[Path]:
    """A new file (or folder) beside `path`, to be renamed when it is whole; whatever is not renamed is removed.

    Its name is its own, so that two writers cannot meet. It is locked as long as its writer lives: what a killed
    writer of the same file left behind is known by that, and removed when it is a day old.
    """
    check_target(path)
    sweep(path.parent, path.name, older_than=DAY)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{ending}")
    try:
        if folder:
            temporary.mkdir()
        else:
            os.close(create(temporary))
        with _held(temporary):
            yield temporary
    except OSError as error:
        raise explain_write_failure(path, error) from error
    finally:
        _remove(temporary)


def sweep(folder: Path, target: str | None = None, *, older_than: float = 0.0) -> None:
    """Remove what killed writers left in a folder: of all files, or of `target` alone.

    Nothing is removed that a living process writes (on Windows, where that cannot be seen: nothing younger than a day).
    """
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        match = TEMPORARY.fullmatch(name)
        if match and target in (None, match[1]) and _is_left_over(folder / name, older_than):
            _remove(folder / name)


def _is_left_over(path: Path, older_than: float) -> bool:
    try:
        age = time.time() - path.lstat().st_mtime
        if path.is_symlink() or age < (older_than if fcntl else DAY):
            return False
        handle = os.open(path, os.O_RDONLY)
    except OSError:  # gone already, or not ours
        return False
    try:
        if fcntl:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it is being written
        return False
    finally:
        os.close(handle)
    return True


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Keep a file or folder locked: it belongs to a living process."""
    if not fcntl:
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # where the file system knows no locks, nothing is taken for left over either
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def check_target(path: Path) -> None:
    """Refuse to put a file in the place of a device, a pipe or a socket, or of a link to one."""
    try:
        mode = path.stat().st_mode
    except OSError:  # nothing is there, or writing will say what is wrong
        return
    is_stream = os.path.abspath(path).startswith(STREAMS)
    if is_stream or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise StoreError(f"{path} is a device, a pipe or a socket, not a file: give the name of a file to write.")


def create(path: Path) -> int:
    """A new file, with the permissions that the user's umask allows (`tempfile` would keep others out)."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


@contextmanager
def alone_with(path: Path, lock: Path) -> Iterator[None]:
    """Nobody else works on `path` meanwhile. The lock goes with the process, even if it is killed; its file stays."""
    held = FileLock(lock, timeout=0)
    try:
        held.acquire()
    except Timeout as error:
        raise StoreError(f"{path} is being worked on by another process: wait for it or end it.") from error
    except OSError as error:
        raise explain_write_failure(lock, error) from error
    try:
        yield
    finally:
        held.release()


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain_write_failure(path, error) from error


def explain_write_failure(path: Path, error: OSError) -> StoreError:
    if error.errno in NO_ROOM:
        return StoreError(
            f"No room on the disk to write {path}: free some space, then repeat the command; "
            "what was saved before is whole."
        )
    reason = error.strerror or str(error) or type(error).__name__  # libraries raise some without a reason of the system
    return StoreError(f"Cannot write {path} ({reason}): choose another folder (--runs, -o) or fix it.")


def _flush_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut (where the system lets a folder be opened)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
