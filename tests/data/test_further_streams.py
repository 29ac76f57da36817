"""Streams by time, by domain and with returning classes: which node comes when, and what is tested."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ipal.config import ProtocolConfig, run_config
from ipal.data.datasets import Dataset
from ipal.data.streams import STREAMS, TEST, TRAIN, TaskStream
from ipal.errors import ConfigError, DataError
from ipal.evaluation.evaluate import evaluate
from ipal.runs.resolved import Resolver
from tests.data.support import stream_of
from tests.learning import learn
from tests.support import Command, complaint

FURTHER = ("time", "domain", "returning")


@pytest.fixture
def timed(tiny: Dataset) -> Dataset:
    return replace(tiny, facts={"time": np.random.default_rng(0).integers(2000, 2050, len(tiny.y))})


def arrivals(stream: TaskStream) -> np.ndarray:
    """How often each node is a training node of a task."""
    tasks = (stream.task(index) for index in range(len(stream)))
    return np.concatenate([task.origin[task.nodes] for task in tasks])  # type: ignore[index]


@pytest.mark.parametrize("train_graph", ["isolated", "seen"])
@pytest.mark.parametrize("name", FURTHER)
def test_every_training_node_arrives_once_with_its_own_label(timed: Dataset, name: str, train_graph: str) -> None:
    stream = stream_of(timed, name, train_graph=train_graph)
    assert sorted(arrivals(stream)) == np.flatnonzero(stream.part == TRAIN).tolist()
    for index in range(len(stream)):
        task = stream.task(index)
        np.testing.assert_array_equal(timed.y[task.origin[task.nodes]], task.labels)
        assert sorted(set(task.labels.tolist())) == sorted(stream.classes[index])


def test_periods_follow_each_other_and_have_about_as_many_nodes(timed: Dataset) -> None:
    stream = stream_of(timed, {"name": "time", "periods": 4})
    times = [timed.facts["time"][stream.task_of == index] for index in range(4)]
    assert all(one.max() < other.min() for one, other in pairwise(times))
    assert all(abs(len(one) - 60) < 20 for one in times)


def test_few_times_make_few_periods(tiny: Dataset) -> None:
    dataset = replace(tiny, facts={"time": np.arange(240) % 3})
    assert len(stream_of(dataset, {"name": "time", "periods": 2})) == 2
    assert len(stream_of(dataset, {"name": "time", "periods": 3})) == 3
    with pytest.raises(DataError, match=r"3 times do not.*lower protocol\.stream\.periods"):
        stream_of(dataset, {"name": "time", "periods": 4})


def test_without_times_there_is_no_stream_by_time(command: Command) -> None:
    words = ("needs the time of every node", "add an array 'time'")
    complaint(command("run", "--dataset", "digits", "--set", "protocol.stream=time"), *words)


def test_domains_have_every_class_and_rising_degrees(tiny: Dataset) -> None:
    stream = stream_of(tiny, {"name": "domain", "parts": 3})
    assert stream.classes == [[0, 1, 2, 3, 4, 5]] * 3
    degree = np.diff(tiny.graph.neighbours.indptr)
    for label in range(6):
        means = [degree[(stream.task_of == index) & (tiny.y == label)].mean() for index in range(3)]
        assert means == sorted(means)


def test_returning_classes_by_hand(tiny: Dataset) -> None:
    """Six classes over four tasks begin at 0, 0, 1, 2, 2, 3; those of tasks 0 and 1 return two tasks later."""
    stream = stream_of(tiny, {"name": "returning", "parts": 4, "times": 2})
    assert stream.classes == [[0, 1], [2], [0, 1, 3, 4], [2, 5]]
    for test_split in stream.test_splits(2):
        assert test_split.graph is not None
    first, second, third = (set(test_split.test.labels.tolist()) for test_split in stream.test_splits(2))
    assert (first, second, third) == ({0, 1}, {2}, {0, 1, 3, 4})
    # After its return a class is tested on the nodes of both visits.
    ones = [int((stream.test_splits(index)[0].test.labels == 0).sum()) for index in (0, 2)]
    assert ones[1] > ones[0]
    assert ones[1] == ((tiny.y == 0) & (stream.part == TEST)).sum()


def test_a_class_that_may_come_more_often_than_there_are_tasks_is_in_all_that_are_left(tiny: Dataset) -> None:
    stream = stream_of(tiny, {"name": "returning", "parts": 3, "times": 1000})
    assert stream.classes == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize("test_graph", ["isolated", "seen"])
def test_only_the_seen_graph_has_edges_between_visits(tiny: Dataset, test_graph: str) -> None:
    stream = stream_of(tiny, "returning", test_graph=test_graph)
    graph = stream.test_splits(3)[0].graph
    crossing = stream.task_of[graph.edges[0]] != stream.task_of[graph.edges[1]]
    assert crossing.any() == (test_graph == "seen")


@pytest.mark.parametrize("method", ["analytic", "er-gnn", "ewc", "ipal", "ncm"])
def test_every_method_learns_classes_that_return(tiny: Dataset, method: str) -> None:
    settings: dict[str, Any] = {"protocol": {"stream": "returning"}, "train": {"epochs": 1}}
    settings |= {"analytic": {"width": 64}} if method == "analytic" else {}
    run = Resolver().resolve(run_config({"dataset": tiny.name, "method": method, **settings}), tiny)
    model: Any = run.learner_config()
    for index in range(len(run.stream)):
        model = learn(model, run.stream.task(index))
        row = evaluate([model], run.stream.test_splits(index), "balanced")[0]
        assert len(row.test) == index + 1
    assert sorted(model.classes_.tolist()) == list(range(6))


def test_a_split_that_the_stream_does_not_make_is_refused(tiny: Dataset) -> None:
    config = run_config({"dataset": tiny.name, "protocol": {"stream": "domain"}, "split": [2, 2, 2]})
    with pytest.raises(ConfigError, match=r"makes tasks of 6\+6\+6 classes, not of 2\+2\+2: leave the split out"):
        Resolver().resolve(config, tiny)
    resolved = Resolver().resolve(config.model_copy(update={"split": None}), tiny)
    assert Resolver().resolve(resolved.config, tiny).config == resolved.config


@pytest.mark.parametrize("name", ["domain", "returning"])
def test_a_task_without_training_or_test_nodes_is_refused(tiny: Dataset, name: str) -> None:
    with pytest.raises(DataError, match=r"Task \d+ of \d+ has no (training|validation|test) node: make fewer tasks"):
        stream_of(tiny, {"name": name, "parts": 60})


def test_all_streams_are_known() -> None:
    assert list(STREAMS) == ["class", "task", "time", "domain", "graphs", "returning", "online"]
    assert ProtocolConfig().stream.name == TaskStream.name
