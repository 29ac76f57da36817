"""Every command that reads a graph for a saved model takes its edges as the model learned them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ipal
from ipal import Analytic, ProtocolConfig
from ipal.data.datasets import Dataset, load
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.deploy.serving.bodies import Limits
from ipal.deploy.serving.served import Served
from tests.cli.merge_and_forget_support import RUN, assert_same, data_of, loaded, model, saved, view, write
from tests.support import Command


@pytest.fixture
def run(command: Command, tiny: Dataset) -> Path:
    """A directed run whose one task is the whole graph; each edge of the file runs one way."""
    edges = tiny.graph.edges
    write("one-way.npz", view(tiny), edge_index=edges[:, edges[0] < edges[1]])
    directed = ["--set", "protocol.edges=directed", "--split", 6, "--json"]
    return Path(command("run", "--dataset", "one-way.npz", *RUN, *directed).json["run"])


@pytest.fixture
def task(run: Path) -> Task:
    graph = load("one-way.npz", undirected=False)
    return TaskStream(graph.graph, graph.y, (6,), ProtocolConfig(), 0).task(0)


def without(task: Task, sense: str, leaving: Any) -> Analytic:
    """The model that never learned these nodes, or never saw them."""
    data = data_of(task)
    if sense == "--rows":
        data.train_mask = data.train_mask & ~leaving
        return model().partial_fit(data)
    stay = np.flatnonzero(~leaving)
    rest = task.graph.induced(stay)
    data.x, data.edge_index, data.y, data.train_mask = rest.x, rest.edges, data.y[stay], data.train_mask[stay]
    return model().partial_fit(data)


@pytest.mark.parametrize("place", ["in its run", "a file of its own"])
@pytest.mark.parametrize("sense", ["--rows", "--nodes"])
def test_nodes_are_forgotten_in_the_graph_as_it_was_learned(
    command: Command, run: Path, task: Task, tiny: Dataset, sense: str, place: str
) -> None:
    source = shutil.copy(run / "model.safetensors", "moved.safetensors") if place == "a file of its own" else run
    leaving = np.zeros(task.graph.num_nodes, dtype=bool)
    leaving[task.nodes[:5]] = True
    write("g.npz", data_of(task), forget=leaving, train=data_of(task).train_mask)
    done = command("forget", source, sense, "g.npz", "-o", "less.st")
    assert done.code == 0, done.err
    assert_same(loaded("less.st"), without(task, sense, leaving), tiny)


def test_a_model_file_says_how_edges_were_learned(command: Command, tiny: Dataset) -> None:
    both, edges = view(tiny), tiny.graph.edges
    one_way = view(tiny)
    one_way.edge_index = edges[:, edges[0] < edges[1]]
    saved(model().partial_fit(both), "both.st")
    saved(model().partial_fit(both).partial_fit(one_way), "one-way.st")
    assert [ipal.load(name).model_.directed for name in ("both.st", "one-way.st")] == [False, True]
    write("g.npz", one_way)
    directed = {}
    for name in ("both.st", "one-way.st"):
        directed[name] = command("predict", name, "--graph", "g.npz", "-o", f"{name}.csv", "--json").json["directed"]
    assert directed == {"both.st": False, "one-way.st": True}


def test_a_server_takes_edges_as_the_model_learned_them(run: Path) -> None:
    served = Served(run / "model.safetensors", Limits())
    assert served.loaded.facts["directed"]
    served.close()
