"""Where a run takes place: versions, machine, memory."""

import os
import platform
import subprocess
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ipal.config import RunConfig
from ipal.runs.run_folder import code_stamp
from ipal.system.plugins import installed_version

PACKAGES = ["ipal", "torch", "torch-geometric", "numpy", "scipy", "scikit-learn", "safetensors"]


class Machine:
    """Versions and machine: looked up once for all runs of a process, when first asked for."""

    @cached_property
    def facts(self) -> dict[str, Any]:
        return {
            "python": platform.python_version(),
            "packages": {name: installed_version(name) for name in PACKAGES},
            "git_commit": _git_commit(),
            "code": code_stamp(),
            "platform": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
        }


def environment(machine: Machine, config: RunConfig, command: list[str]) -> dict[str, Any]:
    """What is stored with a run."""
    on_gpu = config.device.startswith("cuda") and torch.cuda.is_available()
    return {
        **machine.facts,
        "threads": config.threads,
        "device": config.device,
        "device_name": torch.cuda.get_device_name(config.device) if on_gpu else None,
        "command": [Path(command[0]).name, *command[1:]] if command else [],
    }


class PeakMemory:
    """Peak memory of this process since the object was made or `reset` (if Linux lets the peak be reset).

    Otherwise the peak of the whole process, which is never too small.
    """

    def __init__(self, process: Path = Path("/proc/self")) -> None:
        self._files: dict[str, int] = {}
        for name, access in (("status", os.O_RDONLY), ("clear_refs", os.O_WRONLY)):
            with suppress(OSError):
                self._files[name] = os.open(process / name, access)
        self.reset()

    def reset(self) -> None:
        with suppress(OSError, KeyError):
            os.write(self._files["clear_refs"], b"5")

    def bytes(self) -> int:
        with suppress(OSError, KeyError):
            _, found, rest = os.pread(self._files["status"], 8192, 0).partition(b"VmHWM:")
            if found:
                return int(rest.split(maxsplit=1)[0]) * 1024
        try:
            import resource
        except ImportError:  # Windows
            return 0
        unit = 1 if platform.system() == "Darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def __del__(self) -> None:
        for file in self._files.values():
            os.close(file)


def _git_commit() -> str | None:
    """The commit of the checkout; None for an installed package."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    status = ["git", "-C", str(root), "status", "--porcelain=v2", "--branch", "--", "src"]
    try:
        lines = subprocess.run(status, capture_output=True, text=True, timeout=10).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return None
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid")), None)
    return commit and commit + ("+changes" if any(not line.startswith("#") for line in lines) else "")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
