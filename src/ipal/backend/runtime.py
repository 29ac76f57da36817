"""What a run computes with: made by whoever starts the run, and handed down as one value."""

from dataclasses import dataclass, field
from typing import Any, Self

import torch

from ipal.backend.distributed import ONE_PROCESS, Team
from ipal.errors import ConfigError
from ipal.system.memory_budget import Budget
from ipal.system.tracing import SILENT, Tracer


@dataclass(frozen=True)
class Runtime:
    """Device, threads, processes, memory and tracer of a run. Two that are equal derive the same of a graph.

    A learner has one (`learner.runtime_`), which its copies share; it is no part of what is saved.
    """

    device: torch.device
    team: Team = ONE_PROCESS
    """The processes that share the run."""
    budget: Budget = field(default_factory=Budget, compare=False)
    """What may be kept in main memory."""
    threads: int | None = field(default=None, compare=False)
    """CPU threads; None to leave torch's number as it is."""
    tracer: Tracer = SILENT
    """Records the parts of the run, or nothing."""

    @classmethod
    def of(
        cls,
        device: str = "cpu",
        *,
        threads: int | None = None,
        team: Team | None = None,
        budget: Budget | None = None,
        tracer: Tracer = SILENT,
    ) -> Self:
        """On a device that is there, or a sentence; in one process and with all memory where nothing is said."""
        team = team or ONE_PROCESS
        return cls(usable_device(device, team), team, budget or Budget(), threads, tracer)

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        """Another process has memory of its own, no team and no tracer."""
        return Runtime.of, (str(self.device),)


def usable_device(name: str, team: Team = ONE_PROCESS) -> torch.device:
    """A device that is there, or a sentence; of several processes each has a GPU of its own."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"Unknown device '{name}': use cpu, cuda or cuda:N.") from error
    if device.type not in {"cpu", "cuda"}:
        raise ConfigError(f"Unknown device '{name}': use cpu, cuda or cuda:N.")
    if device.type == "cpu":
        return device
    if team.size > 1 and device.index is not None:
        raise ConfigError(f"The device '{name}' is one GPU for all processes: use --device cuda, each takes its own.")
    number = team.local_rank if device.index is None else device.index
    if number >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} CUDA device(s) found"
        fewer = "start no more processes on a machine than it has GPUs, or " * (team.size > 1)
        raise ConfigError(f"The device 'cuda:{number}' is not there ({found}): {fewer}use --device cpu.")
    return torch.device("cuda", number)
