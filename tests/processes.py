"""The command in a process of its own, where signals and locks are asked about and the start of Python is not."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Before the first fork: read when torch is loaded. The policy is the command's own.
AT_LOADING = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


class Started:
    """A command under way, in a process group of its own, as a terminal starts it; used as `subprocess.Popen` is.

    It is forked off a process that has loaded the library and computed nothing, which saves the seconds that loading
    torch takes. That process is started with the first command, one for each process of tests.
    """

    def __init__(self, folder: Path, *arguments: object) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["ipal.runs.runner"])
        before = {name: os.environ.get(name) for name in AT_LOADING}
        os.environ.update(AT_LOADING)
        self._told = [folder / f".{name}-{time.monotonic_ns()}" for name in ("out", "err")]
        self._process = context.Process(target=_perform, args=(folder, self._told, list(map(str, arguments))))
        self._process.start()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 60) -> tuple[str, str]:
        """Wait for its end; what it said on stdout and on stderr."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            raise subprocess.TimeoutExpired("ipal", timeout)
        out, err = (path.read_text() for path in self._told)
        return out, err


def _perform(folder: Path, told: list[Path], arguments: list[str]) -> Any:
    os.setsid()
    os.chdir(folder)
    for number, path in enumerate(told, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
    sys.argv = ["ipal", *arguments]
    from ipal.cli import main

    main()
