"""Where the time and memory of a run go, from the spans that a recorder collects during it.

Time is split into laps: what comes before the first task, every task, what comes after the last. On a GPU a part ends
when the GPU has finished it, and CUDA graphs, which have no parts, are not used: that is slower than an ordinary run,
whose time can be measured for comparison.
"""

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ipal.backend.runtime import usable_device
from ipal.config import RunConfig
from ipal.runs import runner
from ipal.runs.environment import PeakMemory, environment
from ipal.runs.run_folder import RunStore
from ipal.runs.runner import Observer, Resolved, Silent
from ipal.system.memory_budget import Budget
from ipal.system.tracing import SILENT, Account, Gauge, Lap, Recorder, Tracer
from ipal.system.tracing import Path as Part

START, END, OTHER, RECORDING = "start", "end", "other", "recording"
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
    undisturbed: bool = False,
) -> dict[str, Any]:
    """Make a run in a temporary folder and return its times as plain data.

    `fit` may change the run once its graph is known, and gives its memory budget.
    With `undisturbed` the run is repeated without a recorder.
    """
    device = usable_device(wanted.device)
    recorder = _recorder_on(device)
    with recorder.listening():
        resolved, result = _made(wanted, observer, data_root, fit, checkpoint_every, recorder)
    config = resolved.config
    seconds = None
    if undisturbed:
        begin = time.perf_counter()
        _made(wanted, Silent(), data_root, fit, checkpoint_every, SILENT)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - begin
    return {
        "name": RunStore(Path()).folder_for(config).path.name,
        "dataset": config.dataset,
        "method": config.method,
        "seed": config.seed,
        "device": str(device),
        "epochs": resolved.learner_config().epochs,
        "average_performance": result["average_performance"],
        "undisturbed_seconds": seconds,
        **summary(recorder.laps),
        "config": config.to_tree(),
        "environment": environment(resolved.machine, config, sys.argv),
    }


def summary(laps: Sequence[Lap]) -> dict[str, Any]:
    """The first lap is the start, the last the end; those between are tasks."""
    start, *tasks, end = laps
    booked = [
        *((0, (START, *path), account) for path, account in start.parts.items()),
        *((task, _shown(path), account) for task, lap in enumerate(tasks, 1) for path, account in lap.parts.items()),
        *((len(laps) - 1, (END, *path), account) for path, account in end.parts.items()),
        *((number, (RECORDING,), Account(lap.recording)) for number, lap in enumerate(laps)),
    ]
    behind = [(number, path, account) for number, lap in enumerate(laps) for path, account in lap.background.items()]
    gauges = dict.fromkeys(name for _, _, account in booked for name in account.peaks)
    return {
        "tasks": len(tasks),
        "seconds": sum(lap.nanoseconds for lap in laps) / 1e9,
        "seconds_per_task": [lap.nanoseconds / 1e9 for lap in tasks],
        "peak_bytes": {name: _highest(name, (account for _, _, account in booked)) for name in gauges},
        "peak_bytes_per_task": {
            name: [_highest(name, lap.parts.values()) for lap in tasks] for name in gauges
        },
        "parts": _added_up(booked, len(laps)),
        "background": _added_up(behind, len(laps)),
    }  # fmt: skip


def _shown(path: Part) -> Part:
    if not path:
        return (OTHER,)
    return path[1:] if path[0] == TRANSPARENT and len(path) > 1 else path


def _added_up(booked: Iterable[tuple[int, Part, Account]], laps: int) -> list[dict[str, Any]]:
    """Time and peaks of each part: in total, and by task (all laps but the first and the last)."""
    parts: dict[Part, list[tuple[int, Account]]] = defaultdict(list)
    for lap, path, account in booked:
        parts[path].append((lap, account))
    rows = []
    for path, accounts in parts.items():
        every, nanoseconds = [account for _, account in accounts], [0] * laps
        for lap, account in accounts:
            nanoseconds[lap] += account.nanoseconds
        rows.append(
            {
                "part": list(path),
                "own_seconds": sum(nanoseconds) / 1e9,
                "own_seconds_per_task": [each / 1e9 for each in nanoseconds[1:-1]],
                "times": sum(account.times for account in every),
                "peak_bytes": {name: _highest(name, every) for account in every for name in account.peaks},
            }
        )
    return rows


def _highest(gauge: str, accounts: Iterable[Account]) -> int:
    return max((account.peaks.get(gauge, 0) for account in accounts), default=0)


def _made(
    wanted: RunConfig, observer: Observer, root: Path | None, fit: Fit, checkpoint_every: int | None, tracer: Tracer
) -> tuple[Resolved, Mapping[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="ipal-profile-") as aside:
        with tracer.span("reading the graph"):
            resolved = runner.resolve(wanted, root)
        resolved, budget = fit(resolved)
        folder = RunStore(Path(aside)).folder_for(resolved.config)
        runtime = resolved.runtime(budget=budget, tracer=tracer)
        result = runner.run(resolved, folder, observer, checkpoint_every=checkpoint_every, runtime=runtime)
        return resolved, result


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
