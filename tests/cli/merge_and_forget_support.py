"""Small closed-form models and graph files for `ipal merge` and `ipal forget`, and whether two models are the same."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipal import Analytic
from ipal.data.datasets import Dataset
from ipal.data.task import Task
from ipal.runs import runner
from ipal.runs.run_folder import RunFolder
from tests.closed_form.analytic_support import assert_same_sums, by_label

SMALL: dict[str, Any] = {"width": 48, "steps": 2, "restart": (0.1, 0.4), "ridge": 0.1}
SET = [f"analytic.{setting}" for setting in ("width=48", "steps=2", "restart=[0.1,0.4]", "ridge=0.1")]
RUN = ["--method", "analytic", *(part for setting in SET for part in ("--set", setting)), "--threads", 1]


def model(**changes: Any) -> Analytic:
    return Analytic(**{**SMALL, **changes})


def view(graph: Dataset, nodes: NDArray[Any] | None = None, **more: Any) -> Any:
    """A subgraph (or all) as what the library learns from."""
    nodes = np.arange(len(graph.y)) if nodes is None else nodes
    part = graph.graph.induced(nodes)
    return SimpleNamespace(x=part.x, edge_index=part.edges, y=more.pop("y", graph.y[nodes]), **more)


def those(graph: Dataset, *classes: int) -> NDArray[Any]:
    return np.flatnonzero(np.isin(graph.y, classes))


def saved(learner: Any, name: str) -> Any:
    learner.save(name)
    return learner


def data_of(task: Task) -> Any:
    """A task as what the library learns from: unknown labels, but for the nodes that taught."""
    labels = np.full(task.graph.num_nodes, -1)
    labels[task.nodes] = task.labels
    return SimpleNamespace(x=task.graph.x, edge_index=task.graph.edges, y=labels, train_mask=labels >= 0)


def graphs_of(run: Path, option: str = "--graph") -> list[object]:
    """The graphs that a run has learned, as files, each named by an option."""
    stream, said = runner.resolve(RunFolder(run).config()).stream, list[object]()
    for index in range(len(stream)):
        data = data_of(stream.task(index))
        said += [option, write(f"task-{index}.npz", data, train=data.train_mask)]
    return said


def write(path: str, data: Any, **more: Any) -> Path:
    """A graph as a plain file, its masks under the names that the command reads."""
    arrays = {"x": data.x, "edge_index": data.edge_index, "y": data.y, **more}
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return Path(path)


def counts(learner: Analytic) -> dict[str, int]:
    """How many training nodes stand behind each class."""
    return learner.model_.nodes_behind_class()


def apart(one: Analytic, other: Analytic) -> float:
    """How far apart their weights are, by the size of the second's."""
    return float(np.linalg.norm(by_label(one) - by_label(other)) / np.linalg.norm(by_label(other)))


def assert_same(one: Analytic, other: Analytic, graph: Dataset) -> None:
    """The same sums to the bit, weights (to 1e-6 of their size) and predictions, in whichever order of classes."""
    assert counts(one) == counts(other)
    assert_same_sums(one, other)
    assert apart(one, other) <= 1e-6
    assert (one.predict(view(graph)) == other.predict(view(graph))).all()


def loaded(path: object) -> Analytic:
    return Analytic.load(str(path))
