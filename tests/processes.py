"""The command in a process of its own, where signals and locks are asked about and the start of Python is not."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

# Before the first fork: read when torch is loaded. The policy is the command's own.
AT_LOADING = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


class Started:
    """A command under way, in a process group of its own, as a terminal starts it; used as `subprocess.Popen` is.

    It is forked off a process that has loaded the library and computed nothing, which saves the seconds that loading
    torch takes. That process is started with the first command, one for each process of tests. The command gets no more
    than `memory` bytes beyond what is loaded, where that is given, and `environment` on top of that of the tests.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: object,
        memory: int | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        context = loaded_context()
        self._told = [folder / f".{name}-{time.monotonic_ns()}" for name in ("out", "err")]
        words = list(map(str, arguments))
        self._process = context.Process(target=_perform, args=(folder, self._told, words, memory, dict(environment)))
        self._process.start()

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


def loaded_context() -> Any:
    """Makes processes that are forked off one that has loaded the library and computed nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ipal.runs.runner"])
    with patch.dict(os.environ, AT_LOADING):
        forkserver.ensure_running()  # here: a thread that blocks signals would hand that on
    return context


def _perform(
    folder: Path, told: list[Path], arguments: list[str], memory: int | None, environment: dict[str, str]
) -> Any:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it, and hand that on
    os.chdir(folder)
    os.environ.update(environment)
    if memory is not None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory,) * 2)
    for number, path in enumerate(told, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
    sys.argv = ["ipal", *arguments]
    from ipal.cli import main

    main()
