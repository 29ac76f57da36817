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
from tests.cli.merge_and_forget_support import RUN, apart, assert_same, data_of, loaded, model, saved, view, write
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


def test_labels_are_corrected_in_the_graph_as_it_was_learned(
    command: Command, run: Path, task: Task, tiny: Dataset
) -> None:
    data = data_of(task)
    right = np.where(data.train_mask & (np.arange(len(data.y)) % 5 == 0), 3, data.y)
    write("right.npz", data, new_y=right, train=data.train_mask)
    parts = np.where((data.y == 2) & (np.arange(len(data.y)) % 2 == 0), 9, data.y)
    write("parts.npz", data, new_y=parts, train=data.train_mask)
    for arguments, labels in (
        (("relabel", run, "--graph", "right.npz"), right),
        (("relabel", run, "--graph", "parts.npz"), parts),
        (("forget", run, "--class", 4, "--graph", "right.npz"), np.where(data.y == 4, -1, data.y)),
    ):
        done = command(*arguments, "-o", "changed.st", "--force")
        assert done.code == 0, done.err
        data.y, data.train_mask = labels, labels >= 0
        assert_same(loaded("changed.st"), model().partial_fit(data), tiny)
        assert loaded("changed.st").model_.schema.directed


def test_a_model_file_says_how_edges_were_learned(command: Command, tiny: Dataset) -> None:
    both, edges = view(tiny), tiny.graph.edges
    one_way = view(tiny)
    one_way.edge_index = edges[:, edges[0] < edges[1]]
    saved(model().partial_fit(both), "both.st")
    saved(model().partial_fit(both).partial_fit(one_way), "one-way.st")
    assert [ipal.load(name).model_.schema.directed for name in ("both.st", "one-way.st")] == [False, True]
    write("g.npz", one_way)
    directed = {}
    for name in ("both.st", "one-way.st"):
        directed[name] = command("predict", name, "--graph", "g.npz", "-o", f"{name}.csv", "--json").json["directed"]
    assert directed == {"both.st": False, "one-way.st": True}


@pytest.mark.parametrize("said", [None, False])
def test_a_server_takes_edges_as_the_model_learned_them_unless_told(run: Path, said: bool | None) -> None:
    path = run / "model.safetensors"
    served = Served(path, Limits(), directed=said)
    assert served.loaded.directed is (said is None)
    served.close()


def test_a_merged_model_was_directed_where_one_of_its_parts_was(command: Command, tiny: Dataset) -> None:
    some, rest = view(tiny, np.flatnonzero(tiny.y < 3)), view(tiny, np.flatnonzero(tiny.y > 2))
    rest.edge_index = rest.edge_index[:, rest.edge_index[0] < rest.edge_index[1]]
    saved(model().partial_fit(some), "a.st")
    saved(model().partial_fit(rest), "b.st")
    for pair in (("a.st", "b.st"), ("b.st", "a.st")):
        command("merge", *pair, "-o", "c.st", "--force")
        assert loaded("c.st").model_.schema.directed


def test_edges_both_ways_would_be_another_model(task: Task) -> None:
    """What the tests above compare is not the same by chance."""
    data = data_of(task)
    undirected = data_of(task)
    undirected.edge_index = np.concatenate([data.edge_index, data.edge_index[::-1]], axis=1)
    assert apart(model().partial_fit(data), model().partial_fit(undirected)) > 1e-3
