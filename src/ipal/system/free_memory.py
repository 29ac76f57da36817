"""Available memory, checked before large allocations: a system that overcommits would kill the process."""

import os
from pathlib import Path

from ipal.errors import CapacityError


def available() -> int | None:
    """Bytes this process can still allocate: by machine, control group and ulimit; None if unknown."""
    known = [bytes for bytes in (_of_machine(), _of_group(), _of_process()) if bytes is not None]
    return max(0, min(known)) if known else None


def need(bytes: float, what: str, instead: str) -> None:
    """Raise an error if an allocation would not fit."""
    there = available()
    if there is not None and bytes > there:
        needed, free = (f"{size / 2**30:.1f} GiB" for size in (bytes, there))
        raise CapacityError(f"{what} takes about {needed} of memory, and {free} are free: {instead}.")


def _of_machine() -> int | None:
    lines = _lines("/proc/meminfo")
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _of_group() -> int | None:
    """Of a control group: its limit less its non-reclaimable memory."""
    root = Path("/sys/fs/cgroup")
    most, held = _lines(root / "memory.max"), _lines(root / "memory.current")
    if not most or not held or not most[0].isdecimal():
        return None
    cached = [line.split()[1] for line in _lines(root / "memory.stat") if line.startswith("inactive_file ")]
    return int(most[0]) - int(held[0]) + sum(map(int, cached))


def _of_process() -> int | None:
    """Of `ulimit -v`, which limits the address space."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    lines = _lines("/proc/self/statm")
    if most == resource.RLIM_INFINITY or not lines:
        return None
    return most - int(lines[0].split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
