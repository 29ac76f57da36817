"""Jobs that kill their process. Apart, because the process that receives one imports this: without torch, at once."""

import multiprocessing
import os
import signal
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipal.bench.jobs import Job
from ipal.runs.run_folder import RunFolder


@dataclass(frozen=True)
class Deadly(Job):
    """Kills the process it is sent to, the first so many times: at once."""

    graves: Path
    deaths: int
    where: str = "local"
    """`ray` spares the process on the way to those that Ray has started."""

    def __reduce__(self) -> Any:
        return _arrive, (dict(vars(self)),)


def _arrive(facts: dict[str, Any]) -> Job:
    job = Deadly(**facts)
    if (job.where == "ray") == (multiprocessing.parent_process() is None):
        _die(job.graves, job.deaths)
    return job


@dataclass(frozen=True)
class Trap(Job):
    """Kills the process as well, but not before its run begins."""

    graves: Path
    deaths: int

    @property
    def folder(self) -> RunFolder:
        return _Trapped(super().folder.path, self.graves, self.deaths)


class _Trapped(RunFolder):
    def __init__(self, path: Path, graves: Path, deaths: int) -> None:
        super().__init__(path)
        self._graves, self._deaths = graves, deaths

    def locked(self) -> AbstractContextManager[None]:
        _die(self._graves, self._deaths)
        return super().locked()


def _die(graves: Path, deaths: int) -> None:
    died = len(list(graves.iterdir()))
    if died < deaths:
        (graves / str(died)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
