"""Cost against size: nodes, edges, features, classes and tasks, each doubled five times; exponents of time and memory.

    python benchmarks/scaling.py                    a table
    python benchmarks/scaling.py -o docs/figures    and scaling.svg, scaling.png and scaling.json there

Every size is a run in a process of its own, made as `ipal run` makes it, on synthetic graphs, with isolated test
graphs; the quickest of some counts. Time is that of learning and evaluation. Memory is the peak of resident memory
during the run, less that of a run on a graph of a few hundred nodes made just before it in the same process, which
also loads the libraries. An exponent is the slope of a line through the logarithms, by least squares: over all sizes,
and over the upper half, as constants hide it in small ones. In nodes and edges the size is the number of nodes plus
directed edges.

Nodes double at a fixed mean degree, so that edges double with them; edges double by the degree; classes double within
the same nodes and tasks; tasks double with the same nodes and classes in each, so that nodes and classes double with
them. After every task all tasks so far are evaluated: the time of evaluation is quadratic in tasks by what is asked.
IPAL tells nodes from replayed samples of every old class, which is linear in old classes at every step, and distils
affinities of mixtures with every old class to every old class, which is quadratic.
"""

import itertools
import json
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scaling_figure import draw
from timing import begin, options

from ipal.config import EncoderConfig, TrainConfig, override, run_config
from ipal.report.figures import write_figure
from ipal.runs import runner
from ipal.runs.environment import machine_facts
from ipal.runs.run_folder import RunStore
from ipal.runs.runner import Silent

EPOCHS, EXPANSION = 5, 512
SMALLEST_MEMORY = 2**20
"""Below this, the difference of two peaks says nothing."""
SET = {"gamma": 0.4, "node_weights": "pagerank"}
MOST = 1.1
"""The exponent in nodes plus edges that is to be kept to."""


def methods(epochs: int, width: int) -> dict[str, dict[str, Any]]:
    """Settings by method. Nothing is chosen or calibrated by the methods, which costs a constant factor."""
    network = {"encoder": dict(EncoderConfig()), "train": dict(TrainConfig(epochs=epochs))}
    trained = {"method": "ipal", **network, "ipal": SET}
    return {
        "IPAL, full graph": trained,
        "IPAL, mini-batches": {**trained, "protocol": {"batch": {"nodes": 2000, "fanouts": [10, 25]}}},
        "closed form": {"method": "analytic", "analytic": {"steps": 2, "restart": 0.2, "width": width, "ridge": 0.01}},
    }


@dataclass(frozen=True)
class Shape:
    """A graph and how it is cut."""

    nodes: int
    degree: float = 8
    features: int = 64
    classes: int = 8
    tasks: int = 4

    @property
    def dataset(self) -> str:
        return (
            f"synthetic:nodes={self.nodes},degree={self.degree:g},features={self.features},classes={self.classes},"
            "homophily=0.8"
        )


MINIMAL = Shape(nodes=200, tasks=2, classes=4)


def shapes(steps: int, part: int) -> dict[str, list[Shape]]:
    """The sizes in every direction, the smallest first; `part` divides the nodes."""
    factors = [2**step for step in range(steps)]
    plain = Shape(nodes=16_000 // part)
    return {
        "nodes": [replace(plain, nodes=5_000 // part * factor) for factor in factors],
        "edges": [replace(plain, degree=8 * factor) for factor in factors],
        "features": [replace(plain, features=32 * factor) for factor in factors],
        # Nodes enough for the smallest of 128 classes to be split.
        "classes": [replace(plain, nodes=24_000 // part, classes=4 * factor, tasks=2) for factor in factors],
        "tasks": [
            Shape(nodes=1_000 // part * factor, classes=4 * factor, tasks=2 * factor, features=32) for factor in factors
        ],
    }


@dataclass(frozen=True)
class Cost:
    """What a run took."""

    size: int
    """What the exponent is of."""
    edges: int
    seconds: float
    learning_seconds: float
    evaluation_seconds: float
    wall_seconds: float
    """From the graph to the stored result."""
    processor_seconds: float
    """The same, of all threads together: waiting for others who use the cores is not in it."""
    memory: int
    minimal_memory: int


def one_run(shape: Shape, settings: dict[str, Any], threads: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The result of a run; and the directed edges of its graph, and the time from the graph to the stored result."""
    split = [shape.classes // shape.tasks] * shape.tasks
    asked = {"dataset": shape.dataset, "split": split, "threads": threads, "protocol": {"calibration": 0.0}}
    tree = override(asked, settings)
    resolved = runner.resolve(run_config(tree))
    with tempfile.TemporaryDirectory() as folder:
        wall, processor = time.perf_counter(), time.process_time()
        result = runner.run(resolved, RunStore(Path(folder)).folder_for(resolved.config), Silent())
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return result, {"edges": resolved.dataset.graph.num_edges, "wall_seconds": wall, "processor_seconds": processor}


def measured(direction: str, shape: Shape, settings: dict[str, Any], threads: int) -> Cost:
    """Made in a process that has done nothing else."""
    minimal, _ = one_run(MINIMAL, settings, threads)
    result, facts = one_run(shape, settings, threads)
    timing, peaks = result["timing"], (result["peak_memory_bytes"], minimal["peak_memory_bytes"])
    return Cost(
        size=shape.nodes + facts["edges"] if direction in ("nodes", "edges") else getattr(shape, direction),
        seconds=timing["total_seconds"],
        learning_seconds=sum(timing["seconds_per_task"]),
        evaluation_seconds=timing["evaluation_seconds"],
        memory=max(peaks[0] - peaks[1], SMALLEST_MEMORY),
        minimal_memory=peaks[1],
        **facts,
    )


def measured_apart(*case: Any) -> Cost:
    """In a process forked off one that has loaded the libraries and computed nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ipal.runs.runner", "ipal.report.figures"])
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(measured, *case).result()


def best(rounds: Sequence[Cost]) -> Cost:
    """The quickest, with the least memory, of some runs of one size: what others do on the machine only adds."""
    least = {name: min(getattr(cost, name) for cost in rounds) for name in ("memory", "processor_seconds")}
    return replace(min(rounds, key=lambda cost: cost.seconds), **least)


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of the line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def exponents(costs: Sequence[Cost]) -> dict[str, dict[str, float]]:
    """Of each quantity, over all sizes and over the upper half of them."""
    upper = costs[-max(2, math.ceil(len(costs) / 2)) :]
    return {
        name: {
            span: exponent([cost.size for cost in some], [getattr(cost, name) for cost in some])
            for span, some in (("all", costs), ("upper_half", upper))
        }
        for name in ("seconds", "memory", "learning_seconds", "evaluation_seconds", "wall_seconds", "processor_seconds")
    }


def table(curves: Sequence[dict[str, Any]]) -> list[str]:
    """One line a method and direction: smallest and largest cost, and the exponents."""
    lines = [
        "| doubled | method | size | seconds | exponent, all sizes (upper half) | of learning | of evaluation | "
        "of processor time | memory | exponent, all sizes (upper half) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for curve in curves:
        first, last, found = curve["costs"][0], curve["costs"][-1], curve["exponents"]

        def slope(name: str, found: dict[str, dict[str, float]] = found) -> str:
            return f"{found[name]['all']:.2f} ({found[name]['upper_half']:.2f})"

        lines.append(
            f"| {curve['direction']} | {curve['method']} | {first['size']:,} to {last['size']:,} | "
            f"{first['seconds']:.2f} to {last['seconds']:.2f} | {slope('seconds')} | {slope('learning_seconds')} | "
            f"{slope('evaluation_seconds')} | {slope('processor_seconds')} | "
            f"{first['memory'] / 1e6:,.0f} to {last['memory'] / 1e6:,.0f} MB | "
            f"{slope('memory')} |"
        )
    return lines


def verdict(curves: Sequence[dict[str, Any]]) -> str:
    """Whether the largest exponent in nodes plus edges keeps to the mark."""
    found = [
        (slope, f"{curve['method']}, {name}, {curve['direction']}, {span.replace('_', ' ')}")
        for curve in curves
        if curve["direction"] in ("nodes", "edges")
        for name in ("seconds", "memory")
        for span, slope in curve["exponents"][name].items()
    ]
    largest, where = max(found)
    kept = "kept" if largest <= MOST else "missed"
    return f"largest exponent in nodes + edges: {largest:.2f} ({where}); at most {MOST}: {kept}"


def main() -> None:
    parser = options("Cost against size.", repeats=2, what="runs of a size, of which the quickest counts")
    parser.add_argument("-o", "--output", type=Path, help="folder for scaling.svg, scaling.png and scaling.json")
    parser.add_argument("--directions", help="some of nodes,edges,features,classes,tasks (default all)")
    parser.add_argument("--long", type=float, default=8, help="seconds from which a run is made once (default 8)")
    chosen = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command does
    begin(chosen.threads)
    small = chosen.size == "small"
    sizes = shapes(2, 20) if small else shapes(6, 1)
    wanted = chosen.directions.split(",") if chosen.directions else list(sizes)
    learners = methods(1, 64) if small else methods(EPOCHS, EXPANSION)
    curves: list[dict[str, Any]] = []
    for direction, (method, settings) in itertools.product(wanted, learners.items()):
        rounds: list[list[Cost]] = [[] for _ in sizes[direction]]
        # Round by round, so that somebody else's busy minute does not fall on all runs of one size.
        for _ in range(1 if small else chosen.repeats):
            for shape, known in zip(sizes[direction], rounds, strict=True):
                if not known or known[0].seconds < chosen.long:
                    known.append(measured_apart(direction, shape, settings, chosen.threads))
        costs = [best(known) for known in rounds]
        for shape, cost in zip(sizes[direction], costs, strict=True):
            print(
                f"{direction:8s} {method:18s} {shape.nodes:>9,} nodes {cost.edges:>10,} edges {shape.features:>5,} "
                f"features {shape.classes:>4} classes {shape.tasks:>3} tasks: {cost.seconds:7.2f} s "
                f"(evaluation {cost.evaluation_seconds:6.2f}, whole {cost.wall_seconds:6.2f}, "
                f"processor {cost.processor_seconds:6.2f}), {cost.memory / 1e6:8.1f} MB",
                flush=True,
            )
        found = {"costs": [asdict(cost) for cost in costs], "exponents": exponents(costs)}
        curves.append({"direction": direction, "method": method, "settings": settings, **found})
    print("\n".join(["", *table(curves)]))
    if {"nodes", "edges"} & set(wanted):
        print(verdict(curves))
    if chosen.output:
        facts = {**machine_facts(), "threads": chosen.threads}
        content = {"environment": facts, "shapes": {key: [asdict(one) for one in sizes[key]] for key in wanted}}
        write_figure(chosen.output / "scaling", lambda: draw(curves))
        text = json.dumps({**content, "curves": curves}, indent=1)
        (chosen.output / "scaling.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
