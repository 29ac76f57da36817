"""Where the time of IPAL goes on a GPU: kernels of a step and the time between them, and all that is no step.

    python benchmarks/gpu_profile.py                CS-CL, one run alone
    python benchmarks/gpu_profile.py --stack 10     ten gammas, whose steps are taken as one
    python benchmarks/gpu_profile.py --nodes 2000   arxiv-structure in mini-batches; an epoch takes the place of a step

For every task: the time of a replayed step, by the device's clock over many of them; then a few steps under torch's
profiler, which slows them, for the number of kernels, their time, and the time when none runs, with the longest by
name. Then seconds of what comes before, between and after the steps, with the device waited for after each.
"""

import argparse
import json
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from timing import arxiv_sized, begin, cs, describe
from torch.profiler import ProfilerActivity, profile

from ipal.backend.cuda_graphs import Recordings
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig, ProtocolConfig, Sampling, TrainConfig
from ipal.data.datasets import Dataset
from ipal.data.streams import TaskStream, default_split
from ipal.engine.executors.recorded import Automatic
from ipal.engine.executors.stacked import Stack
from ipal.engine.trainer import Epoch, finished
from ipal.estimator import files
from ipal.estimator.model import Model, begin_learning
from ipal.estimator.settings import learner_config
from ipal.evaluation.evaluate import evaluate_all
from ipal.methods.ipal import IPAL
from ipal.runs.stacked_tests import predict_together

TIMED, PROFILED = 60, 10
"""Steps of a task by the device's clock, and under the profiler."""
LONGEST = 10
"""Kernels that are named."""
WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
"""What the profiler calls the work of a GPU."""


@dataclass
class Clock:
    """Seconds of the parts of a run, with all that the device was asked to do in them."""

    device: str
    parts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self.wait()
        start = time.perf_counter()
        yield
        self.wait()
        self.parts[name].append(time.perf_counter() - start)

    def timed(self, name: str, method: Any) -> Any:
        """The same method, as a part."""

        def call(*arguments: Any) -> Any:
            with self.part(name):
                return method(*arguments)

        return call


def steps(epochs: Sequence[Iterator[Epoch]], number: int) -> None:
    """So many steps of runs that take turns."""
    for _ in range(number):
        for one in epochs:
            next(one)


def replayed(epochs: Sequence[Iterator[Epoch]], number: int, device: str) -> float:
    """Milliseconds of a step, by the device's clock."""
    if device != "cuda":
        start = time.perf_counter()
        steps(epochs, number)
        return 1000 * (time.perf_counter() - start) / number
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()  # type: ignore[no-untyped-call]
    steps(epochs, number)
    last.record()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / number  # type: ignore[no-untyped-call]


def traced(epochs: Sequence[Iterator[Epoch]], number: int, device: str) -> list[dict[str, Any]]:
    """The GPU's work in so many steps, in order of time: name, beginning and length in microseconds."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities) as found:
        steps(epochs, number)
        if device == "cuda":
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        found.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    return sorted((event for event in events if event.get("cat") in WORK), key=lambda event: float(event["ts"]))


def say_kernels(events: list[dict[str, Any]], number: int) -> None:
    """A line on the kernels of a step, and the longest of them."""
    if not events:
        print("    nothing ran on a GPU")
        return
    busy, end = 0.0, 0.0
    for event in events:  # several may run at once
        start, stop = float(event["ts"]), float(event["ts"]) + float(event["dur"])
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    span = end - float(events[0]["ts"])
    total = sum(float(event["dur"]) for event in events)
    print(
        f"    under the profiler: {len(events) / number:.1f} kernels a step, {total / number:.0f} us of kernels, "
        f"{(span - busy) / number:.0f} us in which none runs, {span / number:.0f} us in all"
    )
    times, counts = Counter[str](), Counter[str]()
    for event in events:
        times[event["name"]] += event["dur"]
        counts[event["name"]] += 1
    for name, spent in times.most_common(LONGEST):
        print(f"    {spent / number:7.1f} us  {counts[name] / number:5.1f} x  {name[:110]}")


def profiled(data: Dataset, device: str, stacked: int, nodes: int, timed: int, number: int) -> None:
    tasks = TaskStream(data.graph, data.y, data.split or default_split(data.num_classes), ProtocolConfig(), seed=0)
    settings: dict[str, Any] = {
        "train": TrainConfig(epochs=3 + timed + number),
        "node_weights": "pagerank",
        "calibration": 0.0,
        "seed": 0,
    }
    gammas = [0.4] if stacked == 1 else [round(0.1 * (place + 1), 1) for place in range(stacked)]
    settings |= {"encoder": EncoderConfig(), "batch": Sampling(nodes=nodes) if nodes else "full"}
    configs = [learner_config(IPAL, {"gamma": gamma, **settings}) for gamma in gammas]
    models: list[Model | None] = [None] * stacked
    executor, clock, runtime = Stack() if stacked > 1 else Automatic(), Clock(device), Runtime.of(device)
    capture = "of which capture and instantiation"
    with (
        patch.object(Recordings, "record", clock.timed("recording", Recordings.record)),
        patch.object(torch.cuda.CUDAGraph, "capture_end", clock_end(clock, capture)),
    ):
        for index in range(len(tasks)):
            with clock.part("cutting out the task"):
                task = tasks.batch(index, 0)
            with clock.part("preparation and first step"):
                begun = [
                    begin_learning(config, model, task, runtime, executor)
                    for config, model in zip(configs, models, strict=True)
                ]
                epochs = [one.epochs() for one in begun]
                steps(epochs, 2)  # the first is the preparation alone
            with clock.part("second step, with recording"):
                steps(epochs, 1)
            milliseconds = replayed(epochs, timed, device)
            several = -(-len(task.nodes) // nodes) if nodes else 1
            print(f"  task {index}: {task.graph.num_nodes} nodes, {milliseconds / several:.3f} ms a step", end="")
            print(f", {several} steps an epoch" if nodes else "", flush=True)
            say_kernels(traced(epochs, number, device), number * several)
            with clock.part("last step and end of the task"):
                steps(epochs, 1)  # in turns: what they do at once, the first does for all
                known = [one.finish(finished(rest)) for one, rest in zip(begun, epochs, strict=True)]
            with clock.part("evaluation"):
                evaluate_all(known, tasks.test_splits(index), "micro", predict_together(known))
            models = list(known)
    with tempfile.TemporaryDirectory() as folder, clock.part("storing the model"):
        for one in known:
            files.snapshot(one).on_cpu().save(Path(folder) / "model")
    print("  milliseconds beside the steps, of every task in turn:")
    for name, spent in clock.parts.items():
        print(f"    {name:38s} sum {1000 * sum(spent):7.1f}  " + " ".join(f"{1000 * one:.1f}" for one in spent))


def clock_end(clock: Clock, name: str) -> Any:
    """The end of a capture, which makes the recorded graph ready to run; nothing may wait for the device meanwhile."""
    end = torch.cuda.CUDAGraph.capture_end

    def call(graph: torch.cuda.CUDAGraph) -> None:
        start = time.perf_counter()
        end(graph)
        clock.parts[name].append(time.perf_counter() - start)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["full", "small"], default="full", help="small: only to see that it runs")
    parser.add_argument("--stack", type=int, default=1, help="runs whose steps are taken as one")
    parser.add_argument("--nodes", type=int, default=0, help="training nodes of a mini-batch; 0 for whole tasks")
    parser.add_argument("--device", default="cuda")
    chosen = parser.parse_args()
    begin(torch.get_num_threads())
    data = arxiv_sized(chosen.size) if chosen.nodes else cs(chosen.size)
    timed, number = (4, 2) if chosen.size == "small" else (5, 1) if chosen.nodes else (TIMED, PROFILED)
    for turn in ("first, with libraries loaded and kernels compiled on the way", "again"):
        print(f"\nIPAL, {describe(data)}, {chosen.stack} run(s); {turn}")
        profiled(data, chosen.device, chosen.stack, chosen.nodes, timed, number)


if __name__ == "__main__":
    main()
