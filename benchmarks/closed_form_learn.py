"""The closed form learns one task: against the same sums and the same solution in plain SciPy and torch.

Steps, restart, columns and ridge are set, so that both sides compute the same model; features are projected and
rectified by the same random directions. The stock side propagates all columns at once, adds up the whole matrix and
solves it; ours rounds rows to a grid, so that sums are exact and can be merged and taken away. Fails where the two
disagree about the class of more than one node in fifty.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import work
from timing import Line, begin, compared, cora_sized, cs_sized, describe, interleaved, learn, options, ratio
from torch import Tensor

from ipal.closed_form.feature_map import Part
from ipal.closed_form.method import Analytic
from ipal.data.datasets import Dataset
from ipal.data.graph import Graph
from ipal.data.task import Task
from ipal.estimator.settings import learner_config

STEPS, RESTART, RIDGE = 10, 0.2, 0.01
CASES: dict[str, tuple[str, Callable[[str], Dataset]]] = {
    "cora": ("Cora-ML-sized", cora_sized),
    "cs": ("CS-sized", cs_sized),
}
DISAGREEMENT = 0.02


def unit(rows: Any) -> Any:
    """Rows of length one."""
    lengths = np.sqrt((rows * rows).sum(axis=1)).clip(1e-12)
    return sp.diags_array(1 / lengths) @ rows


def stock(task: Task, part: Part) -> Tensor:
    """Weights, (width, classes); in double precision."""
    graph, columns = task.graph, part.columns
    start = unit(graph.x.astype(np.float64))
    start = start @ columns.projection.astype(np.float64) if columns.is_projected else start.toarray()
    scale = sp.diags_array((np.diff(graph.neighbours.indptr) + 1.0) ** -0.5)
    entries = np.ones(graph.num_edges), graph.neighbours.indices, graph.neighbours.indptr
    plain = sp.csr_array(entries, shape=(graph.num_nodes, graph.num_nodes))
    matrix = (scale @ (plain + sp.eye_array(graph.num_nodes)) @ scale).tocsr()
    rows = start
    for _ in range(STEPS):
        rows = (1 - RESTART) * (matrix @ rows) + RESTART * start
    rows = rows[task.nodes] / np.linalg.norm(rows[task.nodes, : columns.linear], axis=1, keepdims=True).clip(1e-12)
    linear = torch.from_numpy(rows[:, : columns.linear])
    others = torch.from_numpy(rows[:, columns.linear :]) if columns.is_projected else linear @ part.directions.double()
    squared_length = columns.linear if columns.is_projected else 1
    phi = torch.cat([linear, torch.relu(others) * (2 * squared_length / part.rectified) ** 0.5], dim=1)
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(task.labels)).double()
    count, weight = one_hot.sum(dim=0), one_hot.shape[1] / len(phi)
    mean = phi.T @ one_hot / count
    gram = weight * phi.T @ phi + (mean * (1 - weight * count)) @ mean.T
    gram.diagonal().add_(RIDGE)
    return torch.linalg.solve(gram, mean)


def measure(case: str, size: str, repeats: int) -> list[Line]:
    """Print one case: the model alone, as the stock side makes it, and with calibration, as it is by default."""
    title, make = CASES[case]
    dataset, width = make(size), 1024 if size == "full" else 64
    graph = dataset.graph
    nodes = np.flatnonzero(np.random.default_rng(0).random(graph.num_nodes) < 0.6)
    made: dict[str, Any] = {}

    def task() -> Task:
        """On a graph of its own: what was made of another one is not used again."""
        return Task(Graph(graph.x, graph.neighbours, symmetric=True), nodes, dataset.y[nodes])

    def ours(calibration: float = 0.0) -> None:
        settings = {"steps": STEPS, "restart": RESTART, "width": width, "ridge": RIDGE}
        made["ours"] = learn(learner_config(Analytic, {**settings, "calibration": calibration}), None, task())

    def theirs() -> None:
        made["stock"] = stock(task(), part)

    ours()
    (part,) = made["ours"].state.memory.map.parts
    times = interleaved({"calibrated": partial(ours, 0.2), "ours": ours, "stock": theirs}, repeats)
    with torch.no_grad():
        by_stock = made["ours"].embed(graph).double() @ made["stock"]
        off = float((made["ours"].forward(graph).scores.argmax(1) != by_stock.argmax(1)).double().mean())
    print(f"\n{title} ({describe(dataset)}), {len(nodes):,} nodes learned, {width} columns")
    for side, taken in times.items():
        print(f"  {side:10s} {median(taken):9.1f} ms")
    print(f"  ratio      {ratio(times['stock'], times['ours']):9.2f} x   nodes that differ: {100 * off:.1f} %")
    if off > DISAGREEMENT:
        sys.exit("The two sides did not learn the same.")
    least = work.closed_form(work.Layers.of(graph, nodes), dataset.num_classes, part.columns.number, width, STEPS)
    line = compared(f"closed form learns, {title}", times, "stock", "SciPy, torch", least)
    calibrated = replace(line, what=f"{line.what}, calibrated", ours=median(times["calibrated"]) / 1000)
    return [line, calibrated]


def main() -> None:
    chosen = options("The closed form against the same sums in SciPy and torch.", repeats=5).parse_args()
    begin(chosen.threads)
    for case in CASES:
        measure(case, chosen.size, chosen.repeats)


if __name__ == "__main__":
    main()
