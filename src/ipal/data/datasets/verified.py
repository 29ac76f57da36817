"""Which graph folders are known to hold what their hash says: a large graph is read through once, not at every use.

What is remembered is what the system says of each file (size, times, inode) when its content was verified. A file that
was replaced, written or copied differs in one of them, and its folder is verified again.
"""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from ipal.errors import StoreError
from ipal.system.files import make_folder, write_atomically

RECORD = ".verified.json"
MOST_BYTES = 100_000
SETTLED = 2.0
"""Seconds: times of files are no finer than that everywhere. What was written so shortly before could be written once
more and look the same, and is not remembered."""

Stamps = dict[str, Any]


def stamps(folder: Path, content_hash: str) -> Stamps:
    """What a folder looks like now, and the hash that its content is to have."""
    files = {}
    for path in sorted(folder.glob("*.npy")) + sorted(folder.glob("*.json")):
        if path.name != RECORD:
            found = path.stat()
            files[path.name] = [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]
    return {"hash": content_hash, "files": files}


def is_known(folder: Path, now: Stamps) -> bool:
    """Whether this content was verified before."""
    return any(_read(record) == now for record in _records(folder))


def remember(folder: Path, verified: Stamps, began: float) -> None:
    """Note that a folder was verified, from `began` on, as it was then: in the folder, or else for this user alone."""
    newest = max(modified for _, modified, _, _ in verified["files"].values())
    if newest > (began - SETTLED) * 1e9:
        return
    for record in _records(folder):
        with suppress(StoreError):  # it may not be written there; nowhere: the folder is verified at every use
            make_folder(record.parent)
            write_atomically(record, json.dumps(verified))
            return


def _records(folder: Path) -> list[Path]:
    places = [folder / RECORD]
    with suppress(RuntimeError):  # a user without a home
        name = hashlib.sha256(str(folder.resolve()).encode(errors="surrogateescape")).hexdigest()
        places.append(Path.home() / ".cache" / "ipal" / "verified" / f"{name}.json")
    return places


def _read(record: Path) -> Any:
    try:
        return json.loads(record.read_bytes()) if record.stat().st_size <= MOST_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
