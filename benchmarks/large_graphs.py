"""The closed form on large graphs: a whole stream, seconds by part, peak memory of the host and of the device.

    python benchmarks/large_graphs.py --graph reddit-shaped
    python benchmarks/large_graphs.py --graph arxiv-structure --device cuda
    python benchmarks/large_graphs.py --graph huge --device cuda

A graph is any that `--dataset` takes, or `huge`: 50 million nodes with 1 billion directed edges (`--nodes`,
`--degree`), made on the device in pieces. There one graph holds all classes, which are learned ten at a time from 60 %
of its nodes and recognised on all of it, with two steps, a restart of 0.2 and 2,048 columns.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import work
from timing import Line, begin, learn, options
from work import Layers

from ipal.backend.runtime import Runtime
from ipal.closed_form.method import Analytic
from ipal.config import ProtocolConfig
from ipal.data.csr import Neighbours
from ipal.data.datasets import load
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream, default_split
from ipal.data.task import LabelledNodes, Task, TestSplit
from ipal.estimator.model import Model
from ipal.estimator.settings import learner_config
from ipal.evaluation.evaluate import evaluate
from ipal.runs.environment import PeakMemory

CLASSES, FEATURES, HOMOPHILY, SIGNAL = 40, 64, 0.6, 0.15
EDGES_AT_ONCE = 100_000_000
PARTS = ["task graphs", "learning", "evaluation"]


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks with their tests, however they came about."""

    graph: Graph
    lessons: Iterator[tuple[Task, list[TestSplit]]]
    settings: dict[str, Any]


def named(name: str, test_graph: str) -> Stream:
    """A stream over a graph that has a name."""
    dataset = load(name)
    split = dataset.split or default_split(dataset.num_classes)
    stream = TaskStream(dataset.graph, dataset.y, split, ProtocolConfig(test_graph=test_graph), 0)

    def lessons() -> Iterator[tuple[Task, list[TestSplit]]]:
        for index in range(len(stream)):
            yield stream.task(index), stream.test_splits(index)

    return Stream(dataset.graph, lessons(), {})


def huge(nodes: int, degree: float, device: torch.device) -> Stream:
    """A graph made on the device, ten classes a task, all in one graph."""
    graph = huge_graph(nodes, degree, device)
    y = np.arange(nodes) % CLASSES
    taught = np.random.default_rng(0).random(nodes) < 0.6

    def lessons() -> Iterator[tuple[Task, list[TestSplit]]]:
        test_splits = []
        for first in range(0, CLASSES, 10):
            own = (y >= first) & (y < first + 10)
            train, others = np.flatnonzero(own & taught), np.flatnonzero(own & ~taught)
            test_splits.append(
                TestSplit(graph, *(LabelledNodes(part, y[part]) for part in (others[::2], others[1::2])))
            )
            yield Task(graph, train, y[train]), list(test_splits)

    return Stream(graph, lessons(), {"steps": 2, "restart": 0.2, "width": 2048})


def huge_graph(nodes: int, degree: float, device: torch.device) -> Graph:
    """Node i is of class i mod 40. In-degrees follow a Pareto law; a neighbour is of the same class more often."""
    generator = torch.Generator(device).manual_seed(0)
    uniform = torch.rand(nodes, generator=generator, device=device)
    drawn = (uniform.clamp_min_(1e-9).pow_(-0.4) * (degree / 5 * 3 + 0.5)).clamp_max_(20_000).long()
    starts = torch.nn.functional.pad(drawn.cumsum(0), (1, 0)).cpu().numpy()
    indices, counts = np.empty(starts[-1], dtype=np.int32), []
    done = 0
    for first, end in Neighbours(starts, indices[:0]).chunks(EDGES_AT_ONCE):
        row = torch.arange(first, end, device=device).repeat_interleave(drawn[first:end])
        other = torch.randint(0, nodes, row.shape, generator=generator, device=device)
        alike = torch.rand(row.shape, generator=generator, device=device) < HOMOPHILY
        other = torch.where(alike, other - other % CLASSES + row % CLASSES, other).clamp_max_(nodes - 1)
        keys = torch.unique_consecutive((((row - first) * nodes) + other)[row != other].sort().values)
        some = (keys % nodes).int().cpu().numpy()
        counts.append(torch.bincount(keys // nodes, minlength=end - first).cpu().numpy())
        indices[done : done + len(some)] = some
        done += len(some)
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    centres = torch.randn(CLASSES, FEATURES, generator=generator, device=device)
    x = np.empty((nodes, FEATURES), dtype=np.float32)
    for first in range(0, nodes, 5_000_000):
        rows = torch.arange(first, min(first + 5_000_000, nodes), device=device)
        noise = torch.randn(len(rows), FEATURES, generator=generator, device=device)
        x[first : first + len(rows)] = noise.add_(centres[rows % CLASSES], alpha=SIGNAL).cpu().numpy()
    return Graph(x, Neighbours(indptr, indices[:done]))


def warm_up(device: torch.device) -> None:
    """Libraries load their kernels when they are used first."""
    for kind in (torch.float32, torch.float64):
        square = torch.eye(64, dtype=kind, device=device)
        torch.linalg.solve_triangular(torch.linalg.cholesky_ex(square @ square).L, square, upper=False)
    config = learner_config(Analytic, {"device": str(device), "calibration": 0.0, "width": 256})
    model: Model | None = None
    stream = named("synthetic:nodes=400,classes=4,features=40", "seen")
    for task, test_splits in stream.lessons:
        model = learn(config, model, task)
        evaluate(model, test_splits, "balanced")


@contextmanager
def timed(seconds: Counter[str], part: str, device: torch.device) -> Iterator[None]:
    """Add the seconds of a part, with the kernels that it has started."""
    clock = time.perf_counter()
    yield
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds[part] += time.perf_counter() - clock


def parser() -> argparse.ArgumentParser:
    parser = options("The closed form on large graphs.", repeats=1)
    parser.add_argument("--graph", default="reddit-shaped", help="any dataset, or huge (default reddit-shaped)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--test-graph", choices=["isolated", "seen"], default="isolated")
    parser.add_argument("--nodes", type=int, default=50_000_000, help="of huge")
    parser.add_argument("--degree", type=float, default=20, help="of huge: mean number of in-neighbours")
    return parser


def measure(chosen: argparse.Namespace) -> Line:
    """Print a whole stream by parts."""
    device = torch.device(chosen.device)
    on_gpu = device.type == "cuda"
    if on_gpu:
        print(torch.cuda.get_device_name(device))
    name, nodes = chosen.graph, chosen.nodes
    if chosen.size == "small":
        name, nodes = ("huge", 2000) if name == "huge" else ("synthetic:nodes=400,classes=6", 0)
    if on_gpu:
        warm_up(device)
    memory, clock = PeakMemory(), time.perf_counter()
    stream = huge(nodes, chosen.degree, device) if name == "huge" else named(name, chosen.test_graph)
    graph, made = stream.graph, time.perf_counter() - clock
    made_in = memory.bytes()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    memory = PeakMemory()
    settings = stream.settings | ({"width": 256} if chosen.size == "small" else {})
    config = learner_config(Analytic, {"device": str(device), "calibration": 0.0, **settings})
    runtime, model = Runtime.of(str(device)), None
    scores: list[float] = []
    seconds: Counter[str] = Counter()
    while True:
        with timed(seconds, "task graphs", device):
            lesson = next(stream.lessons, None)
        if lesson is None:
            break
        task, test_splits = lesson
        with timed(seconds, "learning", device):
            model = learn(config, model, task, runtime)
        with timed(seconds, "evaluation", device):
            scores = evaluate(model, test_splits, "balanced").test
    graph_said = f"{graph.num_nodes:,} nodes, {graph.num_edges:,} directed edges, {graph.num_features} features"
    print(f"{name}, {chosen.test_graph} test graphs: {graph_said}")
    assert model is not None, "there are tasks"
    of = model.state.memory.map
    print(f"AP {np.mean(scores):.2f} over {len(scores)} tasks; {of.steps} steps, {of.restarts}, width {of.width}")
    print("| part | seconds |\n|---|---|")
    for part in PARTS:
        print(f"| {part} | {seconds[part]:.2f} |")
    print(f"| **whole stream** | **{sum(seconds.values()):.2f}** |")
    print(f"making or reading the graph: {made:.1f} s, peak {made_in / 1e9:.2f} GB")
    on_device = f", of the device {torch.cuda.max_memory_allocated(device) / 1e9:.1f} GB" if on_gpu else ""
    print(f"peak memory of the host {memory.bytes() / 1e9:.2f} GB{on_device}")
    # Every step once over the graph, and all that is learned of it; predictions are left out.
    taught, entries = int(model.state.memory.sums.count.sum()), graph.num_edges + graph.num_nodes
    size = Layers(graph.num_nodes, entries, graph.num_features, None, taught, 0)
    least = work.closed_form(size, len(model.labels), sum(part.number for part in of.columns), of.width, of.steps)
    return Line(
        f"closed form, stream of {graph.num_nodes:,} nodes", sum(seconds.values()), None, "", least, device.type
    )


def main() -> None:
    chosen = parser().parse_args()
    begin(chosen.threads)
    measure(chosen)


if __name__ == "__main__":
    main()
