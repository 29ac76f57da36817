"""What a machine can do at best, measured, and the least time that a computation takes there.

    floor = bytes / bandwidth + operations / rate of dense products + kernel starts x time of one

Bandwidth is that of copying an array much larger than the caches (bytes read and written), rates are those of square
products, each the best of some rounds: a floor is never too high because the machine was busy while it was measured.
"""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ipal.runs.environment import machine_facts

ROUNDS = 7


@dataclass(frozen=True)
class Work:
    """What a computation cannot do without."""

    bytes: float = 0
    """Moved between memory and processor."""
    operations: float = 0
    """Additions and multiplications in single precision."""
    double: float = 0
    """The same in double precision."""
    starts: float = 0
    """Of kernels on a GPU, one after the other."""

    def __add__(self, other: "Work") -> "Work":
        return Work(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))

    def __mul__(self, times: float) -> "Work":
        return Work(*(times * part for part in asdict(self).values()))


@dataclass(frozen=True)
class Speed:
    """Of one device: bytes, and operations of dense products in single and double precision, a second."""

    bandwidth: float
    single: float
    double: float
    start: float = 0
    """Seconds to start a kernel."""

    def floor(self, work: Work) -> float:
        """The least seconds for this work."""
        computed = work.operations / self.single + work.double / self.double
        return work.bytes / self.bandwidth + computed + work.starts * self.start


def best(of: Callable[[], object], device: torch.device, rounds: int = ROUNDS) -> float:
    """Seconds of the fastest round, after one to warm up."""
    taken = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        of()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - start)
    return min(taken[1:])


def measured(device: torch.device, size: str = "full") -> Speed:
    """The speed of a device now, with as many threads as torch has."""
    on_gpu, small = device.type == "cuda", size == "small"
    values = 2**20 if small else 2**30 if on_gpu else 2**26
    source = torch.zeros(values, device=device)
    target = torch.ones_like(source)
    bandwidth = 8 * values / best(lambda: target.copy_(source), device)
    rates = []
    for kind, side in ((torch.float32, 8192 if on_gpu else 2048), (torch.float64, 4096 if on_gpu else 1536)):
        side = 256 if small else side
        square = torch.rand(side, side, dtype=kind, device=device)
        found = torch.empty_like(square)
        rates.append(2 * side**3 / best(lambda a=square, b=found: torch.mm(a, a, out=b), device))
    one = torch.zeros(1, device=device)
    start = best(lambda: [one.add_(1) for _ in range(1000)], device) / 1000 if on_gpu else 0.0
    return Speed(bandwidth, *rates, start)


def cache_bytes() -> int:
    """Of the largest cache of the processor that the system names; 0 where it names none."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    found = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        found.append(int(text.rstrip("KMG")) * units.get(text[-1:], 1))
    return max(found)


def described(size: str = "full") -> dict[str, Any]:
    """A machine, as it stands in a file of results."""
    facts = machine_facts()
    devices = {"cpu": measured(torch.device("cpu"), size)}
    if torch.cuda.is_available():
        devices["cuda"] = measured(torch.device("cuda"), size)
    return {
        "processor": facts["processor"],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cache": cache_bytes(),
        "packages": facts["packages"],
        "commit": facts["git_commit"],
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "speed": {name: asdict(speed) for name, speed in devices.items()},
    }
