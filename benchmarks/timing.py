"""What the benchmarks share: sides timed in turn in one process, and a graph of Coauthor CS's size."""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from machine import Work
from torch import Tensor, nn

from ipal.backend.runtime import Runtime
from ipal.data.datasets import Dataset, catalog, load
from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.engine.trainer import finished
from ipal.estimator.model import Model, begin_learning
from ipal.estimator.settings import LearnerConfig
from ipal.runs.environment import machine_facts

WIDTH = 128


@dataclasses.dataclass(frozen=True)
class Line:
    """One measurement: seconds of ours, of something to compare them with, and the work that nobody can avoid."""

    what: str
    ours: float
    reference: float | None = None
    beside: str = ""
    """What the reference is."""
    work: Work | None = None
    device: str = "cpu"


def options(about: str, repeats: int, what: str = "timed rounds") -> argparse.ArgumentParser:
    """The options of every benchmark; `what` there are repeats of."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    parser.add_argument("--repeats", type=int, default=repeats, help=f"{what} (default {repeats})")
    parser.add_argument("--size", choices=["full", "small"], default="full", help="small: only to see that it runs")
    return parser


def begin(threads: int) -> None:
    """Set the number of threads and say what is being measured on."""
    torch.set_num_threads(threads)
    facts = machine_facts()
    versions = ", ".join(f"{name} {facts['packages'][name]}" for name in ("torch", "torch-geometric", "scipy"))
    print(f"{facts['processor']}, {threads} thread(s); {versions}")


def ipal_run(method: str, dataset: str, settings: Iterable[str], threads: int, *options: str) -> dict[str, Any]:
    """The result of one `ipal run`, in a process of its own; its folder is not kept."""
    words = [word for setting in settings for word in ("--set", setting)]
    with tempfile.TemporaryDirectory() as runs:
        command = [
            sys.executable,
            "-m",
            "ipal",
            "run",
            "--dataset",
            dataset,
            "--method",
            method,
            "--json",
            *words,
            *options,
        ]
        command += ["--threads", str(threads), "--runs", runs]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def compared(what: str, times: dict[str, list[float]], reference: str, beside: str, work: Work | None) -> Line:
    """The line of sides that took turns, of which ours is one: the median of the rounds of each."""
    ours, theirs = (median(times[side]) / 1000 for side in ("ours", reference))
    return Line(what, ours, theirs, beside, work)


def interleaved(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each side in every round, after one round to warm up.

    The sides take turns, so that whatever else the machine does slows all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            if turn:
                times[name].append(1000 * (time.perf_counter() - start))
    return times


def step(network: nn.Module, labels: Tensor, *inputs: object) -> Tensor:
    """Forward and backward pass of a network whose outputs are compared with labels; the loss."""
    network.zero_grad(set_to_none=True)
    loss = F.cross_entropy(network(*inputs), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def learn(config: LearnerConfig, model: Model | None, task: Task, runtime: Runtime | None = None) -> Model:
    """The model after one more task."""
    learning = begin_learning(config, model, task, runtime or (model.runtime if model else Runtime.of(config.device)))
    return learning.finish(finished(learning.epochs()))


def ratio(slow: list[float], fast: list[float]) -> float:
    """Median over the rounds of how many times longer one side took than the other."""
    return median(a / b for a, b in zip(slow, fast, strict=True))


def difference(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> float:
    """Largest deviation within any tensor, relative to that tensor's largest entry."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs, strict=True))


def cs(size: str) -> Dataset:
    """Coauthor CS where the data root has it; else a synthetic graph of its size."""
    if size == "full" and catalog.describe("cs", catalog.data_root())["here"]:
        return load("cs")
    return cs_sized(size)


def arxiv_sized(size: str) -> Dataset:
    """arxiv-structure where the data root has it; else a synthetic graph of its size."""
    if size == "full" and catalog.describe("arxiv-structure", catalog.data_root())["here"]:
        return load("arxiv-structure")
    full = "nodes=169343,classes=40,features=384,degree=14"
    return load("synthetic:" + (full if size == "full" else "nodes=900,classes=6,features=32"))


def cs_sized(size: str) -> Dataset:
    """A synthetic graph of Coauthor CS's size."""
    nodes, words, per_node = (18_333, 6_805, 62) if size == "full" else (450, 400, 12)
    dataset = bags_of_words(nodes, 9, words, per_node, 15)
    return dataclasses.replace(dataset, name="CS-sized synthetic", split=(5, 2, 2, 2, 2, 2))


def cora_sized(size: str) -> Dataset:
    """A synthetic graph of Cora-ML's size."""
    nodes, words, per_node = (2_995, 2_879, 50) if size == "full" else (300, 200, 12)
    return dataclasses.replace(bags_of_words(nodes, 5.4, words, per_node, 7), name="Cora-ML-sized synthetic")


def bags_of_words(nodes: int, degree: float, words: int, per_node: int, classes: int) -> Dataset:
    """A synthetic graph with sparse features."""
    plain = load(f"synthetic:nodes={nodes},classes={classes},features=1,degree={degree:g}")
    # Few words are frequent and most are rare; every other word of a node is typical of its class.
    random = np.random.default_rng(0)
    word = (words * random.random((nodes, per_node)) ** 2).astype(np.int64)
    word[:, ::2] = (word[:, ::2] + words // classes * plain.y[:, None]) % words
    ones = np.ones(word.size, dtype=np.float32)
    x = sp.csr_array((ones, (np.repeat(np.arange(nodes), per_node), word.reshape(-1))), shape=(nodes, words))
    x.data[:] = 1.0
    graph = Graph(x, plain.graph.neighbours, symmetric=True)
    return dataclasses.replace(plain, graph=graph)


def describe(dataset: Dataset) -> str:
    """A graph's size in words."""
    graph = dataset.graph
    x = graph.x
    kind = f"{x.nnz / x.shape[0]:.0f} non-zeros a row" if isinstance(x, sp.csr_array) else "dense"
    return (
        f"{dataset.name.partition(':')[0]}: {graph.num_nodes:,} nodes, {graph.num_edges:,} directed edges, "
        f"{graph.num_features:,} features, {kind}"
    )
