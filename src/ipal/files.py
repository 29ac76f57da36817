"""Files that appear whole or not at all, and files that are read: plain ones, of a bounded length."""

import errno
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ipal.errors import StoreError

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


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
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is no plain file, and is not replaced by one: name another.")
    # A name of its own, so that two writers cannot meet.
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(create(aside), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        raise explain_write_failure(path, error) from error
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
    _flush_folder(path.parent)


def create(path: Path) -> int:
    """A new file, with the permissions that the user's umask allows (`tempfile` would keep others out)."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


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
    return StoreError(f"Cannot write {path} ({error.strerror}): choose another folder (--runs, -o) or fix it.")


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
