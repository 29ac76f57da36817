"""Where a run takes place: versions, machine, memory."""

import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import torch

from ipal.config import RunConfig
from ipal.system.plugins import loaded_files

PACKAGES = ["ipal", "torch", "torch-geometric", "numpy", "scipy", "scikit-learn", "safetensors"]


@dataclass(frozen=True)
class Machine:
    """Versions and hardware, which stay the same while a process lives: looked up once for all its runs."""

    python: str
    packages: dict[str, str | None]
    git_commit: str | None
    platform: str
    processor: str
    cores: int | None

    @classmethod
    def here(cls) -> Self:
        packages = {name: _version(name) for name in PACKAGES}
        python, system = platform.python_version(), platform.platform()
        return cls(python, packages, _git_commit(), system, _processor(), os.cpu_count())


def environment(
    config: RunConfig, command: list[str], machine: Machine | None = None, processes: int = 1
) -> dict[str, Any]:
    """Versions and machine, stored with the run."""
    on_gpu = config.device.startswith("cuda") and torch.cuda.is_available()
    return {
        **asdict(machine or Machine.here()),
        "threads": config.threads,
        "processes": processes,
        "device": config.device,
        "device_name": torch.cuda.get_device_name(config.device) if on_gpu else None,
        "command": [Path(command[0]).name, *command[1:]] if command else [],
        "plugins": list(map(str, loaded_files())),
    }


class PeakMemory:
    """Peak memory of this process since the object was made (if Linux lets the peak be reset)."""

    def __init__(self) -> None:
        # Otherwise the peak of the whole process, which is never too small.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def bytes(self) -> int:
        try:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        except OSError:
            pass
        try:
            import resource
        except ImportError:  # Windows
            return 0
        unit = 1 if platform.system() == "Darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of the checkout; None for an installed package."""
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    try:
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, timeout=10)
        if tracked.returncode:
            return None
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
        changed = subprocess.run([*git, "status", "--porcelain", "--", str(here)], capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return commit.stdout.strip() + ("+changes" if changed.stdout.strip() else "") or None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
