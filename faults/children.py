"""Forked processes: the command, or any function, in a process that may be killed."""

import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from faults.core import Failed, limit_memory

MOST_LINES = 3
"""Of a refusal on stderr."""
PATIENCE = 120.0
"""Seconds for a command to end, on a busy machine."""
OWN_MISTAKE = 70
"""Exit code of a child that ended with an exception."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    """Negative: the number of the signal that ended it."""
    out: str
    err: str
    memory: int
    """Largest resident memory, in bytes."""

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL

    def in_short(self) -> str:
        return f"exit code {self.code}: {' | '.join(self.err.strip().splitlines()[-4:])[-600:]}"


class Child:
    """A process under way, with its words in two files."""

    def __init__(self, pid: int, told: Sequence[Path], started: subprocess.Popen[bytes] | None = None) -> None:
        self.pid, self._told, self._started = pid, told, started
        self.begin = time.perf_counter()

    def lives(self, seconds: float) -> bool:
        """Whether it is still there after so many seconds; returns at once when it ends."""
        handle = os.pidfd_open(self.pid)
        try:
            watch = select.poll()
            watch.register(handle, select.POLLIN)
            return not watch.poll(max(0.0, 1000 * seconds))
        finally:
            os.close(handle)

    def kill(self, *, group: bool = False) -> None:
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, signal.SIGKILL)

    def end(self, seconds: float) -> Ended:
        """Wait for it. One that takes longer is killed, and has failed."""
        hangs = self.lives(seconds)
        if hangs:
            self.kill()
        _, status, usage = os.wait4(self.pid, 0)
        if self._started is not None:
            self._started.returncode = 0  # it has been waited for
        if hangs:
            raise Failed(f"took more than {seconds:g} s")
        out, err = (path.read_text(errors="replace") for path in self._told)
        return Ended(os.waitstatus_to_exitcode(status), out, err, 1024 * usage.ru_maxrss)


def fork(
    act: Callable[[], object],
    folder: Path,
    *,
    more_memory: int | None = None,
    group: bool = False,
    out: Path | None = None,
) -> Child:
    """A child that does one thing, in a folder; what it says goes to files beside the folder, or to `out`."""
    told = _files(folder)
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Child(pid, told)
    code = OWN_MISTAKE
    try:
        if group:
            os.setsid()
        for number, path in enumerate([out or told[0], told[1]], start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_TRUNC), number)
        os.chdir(folder)
        if more_memory is not None:
            limit_memory(more_memory)
        act()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def start(arguments: Sequence[object], folder: Path) -> Child:
    """The command as a user starts it, in a process group of its own."""
    told = _files(folder)
    with told[0].open("wb") as out, told[1].open("wb") as err:
        command = [sys.executable, "-m", "ipal", *map(str, arguments)]
        started = subprocess.Popen(command, stdout=out, stderr=err, cwd=folder, start_new_session=True)
    return Child(started.pid, told, started)


def perform(arguments: Sequence[object]) -> Callable[[], None]:
    """The command as something to do in a fork, where Python and torch are loaded already."""

    def act() -> None:
        from ipal.cli import main

        sys.argv = ["ipal", *map(str, arguments)]
        main()

    return act


def command(arguments: Sequence[object], folder: Path, *, seconds: float = 60, more_memory: int | None = None) -> Ended:
    """The command in a fork, to its end."""
    return fork(perform(arguments), folder, more_memory=more_memory).end(seconds)


def must_succeed(ended: Ended, what: str) -> Ended:
    if ended.code != 0:
        raise Failed(f"{what}: {ended.in_short()}")
    return ended


def must_be_refused(ended: Ended, what: str, *, underway: bool = False) -> None:
    """Exit code 2 and one sentence. Where work was under way, its progress may stand before."""
    lines = [line for line in ended.err.splitlines() if line.strip()]
    if ended.code != 2 or "Traceback" in ended.err:
        raise Failed(f"{what}: {ended.in_short()}")
    said = [place for place, line in enumerate(lines) if line.startswith("Error: ")]
    first = said[0] if said and underway else 0
    if len(lines[first:]) > MOST_LINES:
        raise Failed(f"{what}: {len(lines[first:])} lines on stderr: {lines[-1][:200]}")


def _files(folder: Path) -> list[Path]:
    beside = folder.parent / f"said-{folder.name}-{os.getpid()}-{time.monotonic_ns()}"
    told = [beside.with_suffix(suffix) for suffix in (".out", ".err")]
    for path in told:  # now: the child may be killed before it could
        path.touch()
    return told
