"""Benches in real processes, watched from outside."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.processes import Started

# One run that is done at once, and one that takes some seconds: long enough to be caught.
SLOW = "kind: table2\nseeds: 1\nall: {dataset: 'synthetic:nodes=1500,classes=6,features=64', method: bare}\n"
BENCH = ("bench", "x.yaml", "--jobs", "1")
ENTRIES = ["quick: {train.epochs: 1}", "slow: {train.epochs: 600}"]


def start(folder: Path, *more: object) -> Started:
    """A bench in a process of its own."""
    return Started(folder, *BENCH, *more)


def start_python(folder: Path, *more: object) -> "subprocess.Popen[str]":
    """The same from the start of Python on: Ray ends with it."""
    return subprocess.Popen(
        [sys.executable, "-m", "ipal", *BENCH, *map(str, more)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored by tests in the background
        env={**os.environ, "NO_COLOR": "1"},
    )


def wait_until(true, what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def finished(runs: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in runs.glob("*/result.json")}


def checkpoints(runs: Path) -> set[int]:
    """When the unfinished runs were last saved."""
    saved = runs.glob("*/checkpoint.safetensors")
    return {path.stat().st_mtime_ns for path in saved if not (path.parent / "result.json").exists()}
