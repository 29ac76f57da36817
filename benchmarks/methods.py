"""Seconds that each method takes for ten epochs of each of seven two-class tasks, beside another implementation's.

The graph is a synthetic one of Coauthor CS's size, the encoder 256 wide. Only learning is timed, with all that a
method does at the end of a task. The other side is a public benchmark of the field (GCN-256, full batch, DGL 1.1.3),
measured on a machine of the same kind for the same work; its EWC squares the gradient of the mean loss, which is
`fisher=batch` here: the per-node Fisher information is another, larger computation.
"""

import time
from statistics import median
from typing import Any

import numpy as np
from timing import begin, cs_sized, describe, options

from ipal.config import EncoderConfig, ProtocolConfig, TrainConfig
from ipal.data.streams import TaskStream
from ipal.learners import METHODS

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
    ("joint", {"passes": 0}, 52.0),
    ("ipal", {"gamma": 0.4, "passes": 0}, None),
]


def seven_tasks(size: str) -> TaskStream:
    """Fourteen of the fifteen classes, two a task."""
    dataset = cs_sized(size)
    inside = np.flatnonzero(dataset.y < sum(TASKS))
    print(f"{describe(dataset)}; tasks of {'+'.join(map(str, TASKS))} classes, {EPOCHS} epochs each")
    return TaskStream(dataset.graph.induced(inside), dataset.y[inside], TASKS, ProtocolConfig(), seed=0)


def seconds(stream: TaskStream, method: str, settings: dict[str, Any], width: int) -> tuple[float, float]:
    """Learning all tasks, by a learner that has seen none of them: wall-clock time, and that of all its threads."""
    encoder = EncoderConfig(hidden=width, width=width)
    learner = METHODS.find(method)(encoder=encoder, train=TrainConfig(epochs=EPOCHS), **settings)
    start, busy = time.perf_counter(), time.process_time()
    for index in range(len(stream)):
        for _ in learner.learn(stream.task(index)):
            pass
    return time.perf_counter() - start, time.process_time() - busy


def main() -> None:
    parser = options("Seven tasks by every method.", repeats=3)
    parser.add_argument("--only", nargs="+", default=None, help="methods (default all); the first is the measure")
    chosen = parser.parse_args()
    begin(chosen.threads)
    stream = seven_tasks(chosen.size)
    width = 256 if chosen.size == "full" else 16
    cases = [case for case in CASES if chosen.only is None or case[0] in chosen.only]
    times: dict[int, list[tuple[float, float]]] = {case: [] for case in range(len(cases))}
    # In turn, so that whatever else the machine does slows all of them; the first round warms up.
    for turn in range(chosen.repeats + 1):
        for case, (method, settings, _) in enumerate(cases):
            taken = seconds(stream, method, settings, width)
            if turn:
                times[case].append(taken)
    bare = median(wall for wall, _ in times[0])
    for case, (method, settings, theirs) in enumerate(cases):
        ours, busy = (median(column) for column in zip(*times[case], strict=True))
        name = f"{method} {' '.join(f'{k}={v}' for k, v in settings.items())}".strip()
        beside = f"other implementation {theirs:5.1f} s, ratio {theirs / ours:5.1f} x" if theirs else ""
        print(f"  {name:18s} {ours:7.2f} s, of bare {ours / bare:5.2f} x, CPU {busy:6.2f} s   {beside}")


if __name__ == "__main__":
    main()
