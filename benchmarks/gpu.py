"""One GPU: a stream of small tasks, a grid of fifty runs at once, mini-batches, the closed form, and memory over runs.

    python benchmarks/gpu.py              all parts
    python benchmarks/gpu.py stream grid  some of them

stream: IPAL on CS-CL, one seed, 200 epochs a task. With recorded steps as it is run, without them, and with cuSPARSE's
product, which is not repeatable, in place of ours: what the same matrix from the same seed costs.
grid: ten gammas and five seeds together, taking turns and with the gammas of a seed stacked, against single runs.
batches: IPAL on arxiv-structure in mini-batches as in the paper, with more and more epochs.
closed-form: the whole stream of arxiv-structure.
memory: sixty runs of IPAL on CS-CL, one after the other, a seed each: device memory after every run. Python's cyclic
collector is switched off: what a run leaves is its own doing. Exits with 1 where memory grows after the third run.
"""

import argparse
import gc
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import methods
import numpy as np
import torch
from machine import Work
from timing import WIDTH, Line, arxiv_sized, begin, cs, describe
from torch import Tensor

from ipal.backend.sparse import SparseMatrix
from ipal.bench.interleave import run_interleaved
from ipal.config import EncoderConfig, ProtocolConfig, TrainConfig, override, run_config
from ipal.data.datasets import Dataset
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream, default_split
from ipal.engine.executors.recorded import Automatic
from ipal.engine.trainer import Executor
from ipal.runs import runner
from ipal.runs.resolved import Resolver
from ipal.runs.run_folder import RunStore
from ipal.runs.runner import Silent

PARTS = ("stream", "grid", "batches", "closed-form", "memory")
GAMMAS = tuple(round(0.1 * step, 1) for step in range(1, 11))
SEEDS = range(5)
TRAIN = dict(TrainConfig())
OWN: dict[str, Any] = {"node_weights": "pagerank"}
FIXED: dict[str, Any] = {"encoder": dict(EncoderConfig()), "train": TRAIN, "ipal": {**OWN, "gamma": 0.4}}
"""IPAL with the paper's network, rates and node weights."""
UNCALIBRATED = {"protocol": {"calibration": 0.0}}
"""Labels alone count."""
MOST_GROWTH = 1.1
"""Memory after a run, at most, in units of that after the third: by then all libraries are loaded."""


def resolved(dataset: Dataset, **tree: Any) -> runner.Resolved:
    common = {"dataset": dataset.name, "device": "cuda", **UNCALIBRATED, **({} if "method" in tree else FIXED)}
    return runner.resolve(run_config(override(common, tree)), dataset=dataset)


def anew(dataset: Dataset) -> Dataset:
    """The same graph as another object, so that a run makes its tasks and operators anew, as the first one does."""
    return replace(dataset, graph=Graph(dataset.graph.x, dataset.graph.neighbours), known_hash=dataset.hash)


def one(dataset: Dataset, **tree: Any) -> tuple[dict[str, Any], float]:
    """The result of a run, and its seconds from reading the tasks to the stored result."""
    run = resolved(anew(dataset), **tree)
    with tempfile.TemporaryDirectory() as folder:
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = runner.run(run, RunStore(Path(folder)).folder_for(run.config), Silent())
        return result, time.perf_counter() - start


def scores(result: dict[str, Any]) -> str:
    return f"AP {result['average_performance']:6.2f}  AF {result['average_forgetting']:7.2f}"


def cusparse(self: SparseMatrix, dense: Tensor) -> Tensor:
    """The product as torch computes it on a GPU, in no fixed order."""
    if not hasattr(self, "_csr"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            csr = torch.sparse_csr_tensor(
                self.indptr, self.indices, self.values, size=self.shape, check_invariants=False
            )
        object.__setattr__(self, "_csr", csr)
    return self._csr @ dense  # type: ignore[attr-defined,no-any-return]


def floor(data: Dataset, epochs: int) -> tuple[float, Work]:
    """Seconds of plain training by stock layers on the tasks of a graph, and the least work of it: a start a step."""
    tasks = TaskStream(data.graph, data.y, data.split or default_split(data.num_classes), ProtocolConfig(), seed=0)
    methods.stock_seconds(tasks, WIDTH, 3, "cuda")
    starts = Work(starts=epochs * len(tasks))
    return methods.stock_seconds(tasks, WIDTH, epochs, "cuda"), methods.floor(tasks, WIDTH, epochs) + starts


def stream(data: Dataset, repeats: int, epochs: int) -> Line:
    print(f"\nIPAL, {describe(data)}: one seed, {epochs} epochs a task")
    settings = {"train": {"epochs": epochs}}
    one(data, train={"epochs": 3})  # libraries are loaded, kernels compiled
    sides: dict[str, tuple[Callable[[], Executor], Any]] = {
        "recorded": (Automatic, SparseMatrix.matmul),
        "recorded, cuSPARSE": (Automatic, cusparse),
        "step by step": (lambda: lambda training: training, SparseMatrix.matmul),
    }
    ours = []
    for name, (executor, product) in sides.items():
        with patch.object(runner, "Automatic", executor), patch.object(SparseMatrix, "matmul", product):
            found = [one(data, **settings) for _ in range(repeats if executor is Automatic else 1)]
        matrices = [result["accuracy_matrix"] for result, _ in found]
        same = (
            "one run"
            if len(found) == 1
            else "same matrix"
            if all(m == matrices[0] for m in matrices)
            else "matrices differ"
        )
        times = [seconds for _, seconds in found]
        ours.append(median(times))
        print(f"  {name:20s} {median(times):6.2f} s (best {min(times):.2f})  {scores(found[0][0])}  {same}")
    stock, least = floor(data, epochs)
    print(f"  stock GCNConv layers, plain training {stock:6.2f} s")
    return Line(f"IPAL, stream of CS, {epochs} epochs a task", ours[0], stock, "GCNConv, plain training", least, "cuda")


def matrices(results: list[dict[str, Any]]) -> np.ndarray:
    return np.array([result["accuracy_matrix"] for result in results], dtype=float)  # None above the diagonal


def made(data: Dataset, configs: list[Any], stacked: int) -> tuple[list[dict[str, Any]], float]:
    """The results of all runs in one process, and their seconds."""
    data, resolver = anew(data), Resolver()
    runs = [resolver.resolve(config, data) for config in configs]
    with tempfile.TemporaryDirectory() as folder:
        planned = [(run, RunStore(Path(folder)).folder_for(run.config)) for run in runs]
        start = time.perf_counter()
        failures = [reason for _, reason in run_interleaved(planned, stacked) if reason]
        seconds = time.perf_counter() - start
        if failures:
            raise RuntimeError(failures[0])
        return [folder.result() for _, folder in planned], seconds


def grid(
    data: Dataset, epochs: int, gammas: tuple[float, ...], seeds: range, compared: int, device: str = "cuda"
) -> Line:
    print(f"\nGrid of {len(gammas)} gammas x {len(seeds)} seeds, {epochs} epochs a task, in one process")
    network = {"encoder": dict(EncoderConfig()), "train": {**TRAIN, "epochs": epochs}}
    common = {"dataset": data.name, "device": device, **network, **UNCALIBRATED}
    settings = [{**OWN, "gamma": gamma} for gamma in gammas]
    configs = [run_config({**common, "seed": seed, "ipal": chosen}) for chosen in settings for seed in seeds]
    short = run_config({**common, "ipal": settings[0], "train": {**TRAIN, "epochs": 3}})
    made(data, [short], 1)  # libraries are loaded, kernels compiled
    found: dict[str, list[dict[str, Any]]] = {}
    fastest = float("inf")
    for name, stacked in (("taking turns", 1), ("stacked", len(gammas)), ("stacked again", len(gammas))):
        found[name], seconds = made(data, configs, stacked)
        fastest, each = min(fastest, seconds), seconds / len(configs)
        print(f"  {name:14s} {seconds:6.2f} s for {len(configs)} runs, {each:.3f} s each", flush=True)
    same = np.array_equal(*(matrices(found[name]) for name in ("stacked", "stacked again")), equal_nan=True)
    print(f"  stacked twice: {'the same matrices' if same else 'MATRICES DIFFER'}")
    step = max(1, len(configs) // max(1, compared))
    some = range(0, len(configs), step) if compared else range(0)
    alone = [made(data, [configs[place]], 1)[0][0] for place in some]
    for name in ("taking turns", "stacked") if compared else ():
        chosen = [found[name][place] for place in some]
        entries = np.abs(matrices(chosen) - matrices(alone))
        ap = [abs(a["average_performance"] - b["average_performance"]) for a, b in zip(chosen, alone, strict=True)]
        equal = int((np.nanmax(entries, axis=(1, 2)) == 0).sum())
        print(
            f"  {name} and alone, {len(alone)} runs compared: {equal} with equal matrices; largest difference of AP ",
            end="",
        )
        print(f"{max(ap):.4f}, of an entry {np.nanmax(entries):.4f}, mean of an entry {np.nanmean(entries):.4f}")
    means = [np.mean([result["average_performance"] for result in found[name]]) for name in ("taking turns", "stacked")]
    print(f"  mean AP of all runs: taking turns {means[0]:.3f}, stacked {means[1]:.3f}")
    stock, least = floor(data, epochs)
    what, times = f"grid of {len(configs)} runs of it", len(configs)
    return Line(what, fastest, stock * times, "GCNConv, one after the other", least * times, "cuda")


def mini_batches(data: Dataset, epochs: tuple[int, ...], nodes: int) -> None:
    print(f"\nIPAL, {describe(data)}: batches of {nodes}, fan-outs 10, 25")
    for number in epochs:
        result, seconds = one(data, protocol={"batch": {"nodes": nodes}}, train={"epochs": number})
        print(f"  {number:4d} epoch(s) a task  {seconds:7.2f} s  {scores(result)}")
    result, seconds = one(data, train={"epochs": epochs[-1]})
    print(f"  {epochs[-1]:4d} epoch(s), full graph  {seconds:.2f} s  {scores(result)}")


def closed_form(data: Dataset, repeats: int) -> Line:
    print(f"\nClosed form, {describe(data)}: the whole stream")
    streams = []
    for _ in range(repeats + 1):
        result, seconds = one(data, method="analytic")
        stream = result["timing"]["total_seconds"]
        streams.append(stream)
        print(f"  learned and tested in {stream:.2f} s, stored after {seconds:.2f} s  {scores(result)}")
    return Line("closed form, stream of arxiv-structure", median(streams[1:]), device="cuda")


def memory(data: Dataset, runs: int, epochs: int) -> bool:
    """Whether device memory stays as it is from the third run on."""
    print(f"\n{runs} runs of IPAL, {describe(data)}, {epochs} epochs a task, in one process: MiB after each")
    print("  run  in use on the device  reserved by torch  in tensors")
    used = []
    gc.disable()
    for seed in range(runs):
        run = resolved(data, seed=seed, train={"epochs": epochs})
        with tempfile.TemporaryDirectory() as folder:
            runner.run(run, RunStore(Path(folder)).folder_for(run.config), Silent())
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        used.append(total - free)
        parts = (used[-1], torch.cuda.memory_reserved(), torch.cuda.memory_allocated())
        print("  {:3d}  {:20.1f}  {:17.1f}  {:10.1f}".format(seed, *(part / 2**20 for part in parts)), flush=True)
    gc.enable()
    growth = max(used[2:]) / used[2]
    print(f"  largest after the third run: {growth:.3f} times that after it (at most {MOST_GROWTH})")
    return growth <= MOST_GROWTH


def measure(part: str, size: str) -> Line:
    """One line of the bench."""
    small = size == "small"
    if part == "stream":
        return stream(cs(size), 1 if small else 3, 6 if small else 200)
    if part == "grid":
        return grid(cs(size), 4 if small else 200, GAMMAS[:2] if small else GAMMAS, range(2) if small else SEEDS, 0)
    return closed_form(arxiv_sized(size), 1 if small else 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=[], choices=[*PARTS, []])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compared", type=int, default=10, help="runs of the grid that are made alone as well")
    parser.add_argument("--size", choices=["full", "small"], default="full", help="small: only to see that it runs")
    chosen = parser.parse_args()
    small = chosen.size == "small"
    begin(torch.get_num_threads())
    print(torch.cuda.get_device_name())
    parts = chosen.parts or PARTS
    data = cs(chosen.size)
    if "stream" in parts:
        stream(data, chosen.repeats, 6 if small else 200)
    if "grid" in parts:
        grid(data, 4 if small else 200, GAMMAS[:2] if small else GAMMAS, range(2) if small else SEEDS, chosen.compared)
    if {"batches", "closed-form"} & set(parts):
        large = arxiv_sized(chosen.size)
        if "batches" in parts:
            mini_batches(large, (1, 2) if small else (2, 10, 30), 100 if small else 2000)
        if "closed-form" in parts:
            closed_form(large, 1 if small else chosen.repeats)
    if "memory" in parts and not memory(data, 5 if small else 60, 6 if small else 40):
        sys.exit(1)


if __name__ == "__main__":
    main()
