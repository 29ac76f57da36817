"""Devices by name."""

import torch

from ipal.backend.distributed import ONE_PROCESS, Team
from ipal.errors import ConfigError


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
