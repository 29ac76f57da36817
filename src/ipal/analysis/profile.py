"""Where the time and memory of a run go, from the spans that a recorder collects during it.

Time is split into laps: what comes before the first task, every task, what comes after the last. On a GPU a part ends
when the GPU has finished it, and CUDA graphs, which have no parts, are not used: that is slower than an ordinary run.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ipal.backend.runtime import usable_device
from ipal.config import RunConfig
from ipal.runs import runner
from ipal.runs.environment import PeakMemory, environment
from ipal.runs.run_folder import RunStore
from ipal.runs.runner import Observer, Resolved
from ipal.system.memory_budget import Budget
from ipal.system.tracing import Gauge, Lap, Recorder
from ipal.system.tracing import Path as Part

START, END, OTHER = "start", "end", "other"
TRANSPARENT = "loss"
"""Parts inside this one are listed next to it: a loss calls the encoder, but does not include it."""

Fit = Callable[[Resolved], tuple[Resolved, Budget | None]]


def profile(
    wanted: RunConfig,
    observer: Observer,
    data_root: Path | None = None,
    fit: Fit = lambda resolved: (resolved, None),
    *,
    checkpoint_every: int | None = None,
) -> dict[str, Any]:
    """Make a run in a temporary folder and return its times as plain data.

    `fit` may change the run once its graph is known, and gives its memory budget.
    """
    device = usable_device(wanted.device)
    recorder = _recorder_on(device)
    with recorder.listening(), tempfile.TemporaryDirectory(prefix="ipal-profile-") as aside:
        with recorder.span("reading the graph"):
            resolved = runner.resolve(wanted, data_root)
        resolved, budget = fit(resolved)
        folder = RunStore(Path(aside)).folder_for(resolved.config)
        runtime = resolved.runtime(budget=budget, tracer=recorder)
        result = runner.run(resolved, folder, observer, checkpoint_every=checkpoint_every, runtime=runtime)
    config = resolved.config
    return {
        "name": folder.path.name,
        "dataset": config.dataset,
        "method": config.method,
        "seed": config.seed,
        "device": str(device),
        "epochs": resolved.learner_config().epochs,
        "average_performance": result["average_performance"],
        **summary(recorder.laps),
        "config": config.to_tree(),
        "environment": environment(resolved.machine, config, sys.argv),
    }


def summary(laps: Sequence[Lap]) -> dict[str, Any]:
    """The first lap is the start, the last the end; those between are tasks."""
    names = [START, *[""] * (len(laps) - 2), END]
    seconds = [sum(account.nanoseconds for account in lap.values()) / 1e9 for lap in laps]
    parts: dict[Part, dict[str, Any]] = {}
    for number, (name, lap) in enumerate(zip(names, laps, strict=True)):
        for path, account in lap.items():
            shown = (name, *path) if name else _shown(path)
            nothing = {"own_seconds": 0.0, "own_seconds_per_task": [0.0] * (len(laps) - 2), "times": 0}
            row = parts.setdefault(shown, {"part": list(shown), **nothing, "peak_bytes": {}})
            row["own_seconds"] += account.nanoseconds / 1e9
            row["times"] += account.times
            row["peak_bytes"] = highest(row["peak_bytes"], account.peaks)
            if not name:
                row["own_seconds_per_task"][number - 1] += account.nanoseconds / 1e9
    return {
        "tasks": len(laps) - 2,
        "seconds": sum(seconds),
        "seconds_per_task": seconds[1:-1],
        "peak_bytes": highest(*(account.peaks for lap in laps for account in lap.values())),
        "parts": list(parts.values()),
    }


def highest(*peaks: dict[str, int]) -> dict[str, int]:
    """The highest value of every gauge."""
    names = dict.fromkeys(name for one in peaks for name in one)
    return {name: max(one.get(name, 0) for one in peaks) for name in names}


def _shown(path: Part) -> Part:
    if not path:
        return (OTHER,)
    return path[1:] if path[0] == TRANSPARENT and len(path) > 1 else path


def _recorder_on(device: torch.device) -> Recorder:
    host = PeakMemory()

    def host_peak() -> int:
        peak = host.bytes()
        host.reset()
        return peak

    gauges: dict[str, Gauge] = {"host": host_peak}
    if device.type != "cuda":
        return Recorder(gauges)

    def device_peak() -> int:
        peak: int = torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"]
        torch.cuda.reset_peak_memory_stats(device)
        return peak

    torch.cuda.init()  # type: ignore[no-untyped-call]
    return Recorder({**gauges, "device": device_peak}, lambda: torch.cuda.current_stream(device).synchronize())
