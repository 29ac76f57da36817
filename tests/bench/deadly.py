"""Jobs that kill their process. Apart, because the process that receives one imports this: without torch, at once."""

import os
import signal
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from ipal.bench.jobs import Job
from ipal.runs.run_folder import RunFolder


@dataclass(frozen=True)
class Marked(Job):
    """Kills processes, so many."""

    graves: Path = Path()
    deaths: int = 0

    @classmethod
    def of(cls, job: Job, graves: Path, deaths: int) -> Self:
        return cls(job.config, job.runs, job.data_root, graves=graves, deaths=deaths)


@dataclass(frozen=True)
class Deadly(Marked):
    """Kills the process it is sent to, the first so many times: at once."""

    def __reduce__(self) -> Any:
        return _arrive, ({f.name: getattr(self, f.name) for f in fields(self)},)


def _arrive(facts: dict[str, Any]) -> Job:
    job = Deadly(**facts)
    _die(job.graves, job.deaths)
    return job


class Trap(Marked):
    """Kills the process as well, but not before its run begins."""

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
