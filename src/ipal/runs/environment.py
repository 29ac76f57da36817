"""Where a run takes place: versions, machine, memory."""

import os
import platform
import re
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ipal.config import RunConfig
from ipal.system.plugins import installed_version

PACKAGES = ["ipal", "torch", "torch-geometric", "numpy", "scipy", "scikit-learn", "safetensors"]


@cache
def machine_facts() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "packages": {name: installed_version(name) for name in PACKAGES},
        "git_commit": _git_commit(),
        "platform": platform.platform(),
        "processor": _found(Path("/proc/cpuinfo"), r"model name\s*:\s*(.*)") or platform.processor(),
        "cores": os.cpu_count(),
    }


def environment(config: RunConfig, command: list[str]) -> dict[str, Any]:
    on_gpu = config.device.startswith("cuda") and torch.cuda.is_available()
    return {
        **machine_facts(),
        "threads": config.threads,
        "device": config.device,
        "device_name": torch.cuda.get_device_name(config.device) if on_gpu else None,
        "command": [Path(command[0]).name, *command[1:]] if command else [],
    }


class PeakMemory:
    """Peak memory of this process since the object was made, where Linux lets the peak be reset.

    Otherwise the peak of the whole process, which is never too small.
    """

    def __init__(self) -> None:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def bytes(self) -> int:
        if found := _found(Path("/proc/self/status"), r"VmHWM:\s*(\d+) kB"):
            return int(found) * 1024
        try:
            import resource
        except ImportError:  # Windows
            return 0
        unit = 1 if platform.system() == "Darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _git_commit() -> str | None:
    """The commit of the checkout; None for an installed package."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    describe = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+changes"]
    try:
        return subprocess.run(describe, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None


def _found(path: Path, pattern: str) -> str | None:
    """What a file of the system says."""
    with suppress(OSError):
        if found := re.search(pattern, path.read_text()):
            return found[1]
    return None
