"""Seconds that each method takes for ten epochs of each of seven two-class tasks, beside another implementation's.

The graph is a synthetic one of Coauthor CS's size, the encoder 256 wide. Only learning is timed, with all that a
method does at the end of a task. The other side is a public benchmark of the field (GCN-256, full batch, DGL 1.1.3),
measured on a machine of the same kind for the same work; its EWC squares the gradient of the mean loss, which is
`fisher=batch` here: the per-node Fisher information is another, larger computation. Stock layers of PyTorch Geometric
take their turn with the same epochs of plain training, without any method.
"""

import time
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import work
from encoder_step import Stock, stock_inputs
from machine import Work
from timing import Line, begin, cs_sized, describe, learn, options
from work import Layers

from ipal.config import EncoderConfig, ProtocolConfig, TrainConfig
from ipal.data.streams import TaskStream
from ipal.estimator.model import Model
from ipal.estimator.registry import METHODS
from ipal.estimator.settings import learner_config
from ipal.nn.encoders import GCN

TASKS = (2,) * 7
EPOCHS = 10
# Method, its settings, and the other implementation's seconds.
CASES: list[tuple[str, dict[str, Any], float | None]] = [
    ("bare", {}, 15.9),
    ("ewc", {"fisher": "batch"}, 13.5),
    ("ewc", {}, 13.5),
    ("lwf", {}, 13.9),
    ("mas", {}, 23.8),
    ("twp", {}, 33.9),
    ("er-gnn", {}, 19.0),
    ("gem", {}, 77.4),
    ("joint", {}, 52.0),
    ("ipal", {"gamma": 0.4}, None),
]


def seven_tasks(size: str) -> TaskStream:
    """Fourteen of the fifteen classes, two a task."""
    dataset = cs_sized(size)
    inside = np.flatnonzero(dataset.y < sum(TASKS))
    print(f"{describe(dataset)}; tasks of {'+'.join(map(str, TASKS))} classes, {EPOCHS} epochs each")
    return TaskStream(dataset.graph.induced(inside), dataset.y[inside], TASKS, ProtocolConfig(), seed=0)


def seconds(stream: TaskStream, method: str, settings: dict[str, Any], width: int) -> tuple[float, float]:
    """Learning all tasks, by a model that has seen none of them: wall-clock time, and that of all its threads."""
    encoder = EncoderConfig(hidden=width, width=width)
    # Not calibrated: others are not either.
    shared = {"encoder": encoder, "train": TrainConfig(epochs=EPOCHS), "calibration": 0.0}
    config = learner_config(METHODS.find(method), {**shared, **settings})
    model: Model | None = None
    start, busy = time.perf_counter(), time.process_time()
    for index in range(len(stream)):
        model = learn(config, model, stream.task(index))
    return time.perf_counter() - start, time.process_time() - busy


def stock_seconds(stream: TaskStream, width: int, epochs: int = EPOCHS, device: str = "cpu") -> float:
    """Plain training on all tasks, by stock layers and torch's Adam."""
    start = time.perf_counter()
    for task in map(stream.task, range(len(stream))):
        drawn = GCN(task.graph.num_features, EncoderConfig(hidden=width, width=width), torch.Generator().manual_seed(0))
        network = Stock(drawn).to(device)
        x, edges, nodes, labels = (
            part.to(device) for part in (*stock_inputs(task.graph), *map(torch.from_numpy, (task.nodes, task.labels)))
        )
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
        for _ in range(epochs):
            optimizer.zero_grad()
            F.cross_entropy(network(x, edges)[nodes], labels).backward()
            optimizer.step()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def floor(stream: TaskStream, width: int, epochs: int = EPOCHS) -> Work:
    """Of the epochs alone, whatever a method adds."""
    sizes = [Layers.of_task(stream.task(index)) for index in range(len(stream))]
    return sum((work.step(one, width, width) + work.adam(one, width, width) for one in sizes), Work()) * epochs


def measure(size: str, repeats: int, cases: list[tuple[str, dict[str, Any], float | None]]) -> list[Line]:
    """Print every case, and what stock layers take for the epochs alone. The first case is the plainest."""
    stream = seven_tasks(size)
    width = 256 if size == "full" else 16
    times: dict[int, list[tuple[float, float]]] = {case: [] for case in range(len(cases))}
    stock = []
    seconds(stream, *cases[0][:2], width)  # makes what all find: tasks and their operators
    # In turn, so that whatever else the machine does slows all of them.
    for _ in range(repeats):
        for case, (method, settings, _) in enumerate(cases):
            times[case].append(seconds(stream, method, settings, width))
        stock.append(stock_seconds(stream, width))
    bare, lines = median(wall for wall, _ in times[0]), []
    print(f"  stock GCNConv layers, plain training {median(stock):7.2f} s")
    for case, (method, settings, theirs) in enumerate(cases):
        ours, busy = (median(column) for column in zip(*times[case], strict=True))
        name = f"{method} {' '.join(f'{k}={v}' for k, v in settings.items())}".strip()
        beside = f"other implementation {theirs:5.1f} s, ratio {theirs / ours:5.1f} x" if theirs else ""
        print(f"  {name:18s} {ours:7.2f} s, of {cases[0][0]} {ours / bare:5.2f} x, CPU {busy:6.2f} s   {beside}")
        work_of = floor(stream, width)
        lines.append(Line(f"{name}, 7 x {EPOCHS} epochs", ours, median(stock), "GCNConv, plain training", work_of))
    return lines


def main() -> None:
    parser = options("Seven tasks by every method.", repeats=3)
    parser.add_argument("--only", nargs="+", default=None, help="methods (default all); the first is the measure")
    chosen = parser.parse_args()
    begin(chosen.threads)
    cases = [case for case in CASES if chosen.only is None or case[0] in chosen.only]
    measure(chosen.size, chosen.repeats, cases)


if __name__ == "__main__":
    main()
