"""What a run computes with: made where the run starts, and handed down as one value."""

from dataclasses import dataclass, field
from typing import Any, Self

import torch

from ipal.errors import ConfigError
from ipal.system.memory_budget import Budget


@dataclass(frozen=True)
class Runtime:
    """Device, threads and memory of a run. Two that are equal derive the same of a graph.

    A learner has one (`learner.runtime_`), which its copies share; it is no part of what is saved.
    """

    device: torch.device
    budget: Budget = field(default_factory=Budget, compare=False)
    """What may be kept in main memory."""
    threads: int | None = field(default=None, compare=False)
    """CPU threads; None to leave torch's number as it is."""

    @classmethod
    def of(cls, device: str = "cpu", *, threads: int | None = None, budget: Budget | None = None) -> Self:
        """On a device that is there, or a sentence; with all memory where nothing is said."""
        return cls(usable_device(device), budget or Budget(), threads)

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        """Another process has memory of its own."""
        return Runtime.of, (str(self.device),)


def usable_device(name: str) -> torch.device:
    """A device that is there, or a sentence."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"Unknown device '{name}': use cpu, cuda or cuda:N.") from error
    if device.type not in {"cpu", "cuda"}:
        raise ConfigError(f"Unknown device '{name}': use cpu, cuda or cuda:N.")
    if device.type == "cpu":
        return device
    number = device.index or 0
    if number >= torch.cuda.device_count():
        found = f"{torch.cuda.device_count()} CUDA device(s) found"
        raise ConfigError(f"The device 'cuda:{number}' is not there ({found}): use --device cpu.")
    return torch.device("cuda", number)
