"""Streams of batches: which node comes when, what it is attached to, and what is tested along the way."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipal.config import run_config
from ipal.data.datasets import Dataset
from ipal.data.streams import TRAIN, TaskStream
from ipal.data.streams.online import at_most, blurred_shares, spread_evenly
from ipal.errors import ConfigError, DataError, IpalError
from ipal.estimator.registry import METHODS
from ipal.runs.resolved import Resolver
from tests.data.support import stream_of
from tests.learning import learn
from tests.support import Command

ONLINE = {"name": "online", "batch": 12}
BLURRY = {"name": "online", "batch": 12, "sigma": 3}


def all_batches(stream: TaskStream) -> list[Any]:
    return [stream.batch(index, number) for index in range(len(stream)) for number in range(stream.batches[index])]


# ---------------------------------------------------------------------- equations


def test_blurred_shares_by_hand() -> None:
    """Two groups with middles 0 and 2, sigma 1: z is (0, -2), (-1/2, -1/2), (-2, 0)."""
    shares = blurred_shares(np.array([0.0, 2.0]), 3, 1.0)
    own = 1 / (1 + np.exp(-2))
    np.testing.assert_allclose(shares, [[own, 1 - own], [0.5, 0.5], [1 - own, own]])
    assert np.isfinite(blurred_shares(np.array([0.0, 2.0]), 3, 1e-9)).all()


def test_spread_evenly_by_hand() -> None:
    """Five nodes at 1/10, 3/10, ... of the way, on shares that end at 1/5, 4/5 and 1."""
    assert spread_evenly(5, np.array([1.0, 3.0, 1.0])).tolist() == [0, 1, 1, 1, 2]
    assert spread_evenly(4, np.array([0.0, 0.0, 2.0])).tolist() == [2, 2, 2, 2]
    assert spread_evenly(0, np.array([1.0])).tolist() == []


def test_at_most_so_many_of_each() -> None:
    place = np.array([0, 0, 0, 2, 1, 1])
    for seed in range(10):
        stay = at_most(place, 2, np.random.default_rng(seed))
        assert np.bincount(place[stay]).tolist() == [2, 2, 1]
    assert at_most(place, 3, np.random.default_rng(0)).tolist() == [0, 1, 2, 3, 4, 5]


# ---------------------------------------------------------------------- what arrives


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 50),
    stream=st.sampled_from([{"name": "online"}, {"name": "online", "sigma": 0.5}, {"name": "online", "sigma": 8.0}]),
    size=st.integers(8, 20),
    graph=st.sampled_from(["isolated", "seen"]),
    visibility=st.sampled_from(["transductive", "inductive"]),
)
def test_every_training_node_arrives_once_and_no_other_label(
    tiny: Dataset, seed: int, stream: dict[str, Any], size: int, graph: str, visibility: str
) -> None:
    found = stream_of(tiny, {**stream, "batch": size}, seed, train_graph=graph, visibility=visibility)
    batches = all_batches(found)
    arrived = np.concatenate([task.origin[task.nodes] for task in batches])
    assert sorted(arrived) == np.flatnonzero(found.part == TRAIN).tolist()
    for b, task in enumerate(batches):
        np.testing.assert_array_equal(tiny.y[task.origin[task.nodes]], task.labels)
        assert (found.batch_of[task.origin] <= b).all()  # nothing comes before its time
        if visibility == "inductive":
            assert (found.part[task.origin] == TRAIN).all()
        ends = task.origin[task.graph.edges]
        crossing = found.task_of[ends[0]] != found.task_of[ends[1]]
        assert not (crossing.any() and graph == "isolated")


def test_a_batch_of_a_task_is_the_task(tiny: Dataset) -> None:
    """Online and blurry streams of one batch a task, and no blur, are the class-incremental stream."""
    plain = stream_of(tiny, "class")
    every = ({"name": "online", "batch": "task"}, {"name": "online", "batch": 1000})
    for stream in (*every, {"name": "online", "batch": "task", "sigma": 0}):
        same = stream_of(tiny, stream)
        assert same.batches == [1] * len(plain)
        assert same.split_hash == plain.split_hash
        for index in range(len(plain)):
            one, other = plain.task(index), same.batch(index, 0)
            np.testing.assert_array_equal(one.origin, other.origin)
            np.testing.assert_array_equal(one.nodes, other.nodes)
            np.testing.assert_array_equal(one.graph.edges, other.graph.edges)


def test_blur_mixes_groups(tiny: Dataset) -> None:
    def mixed(sigma: int) -> int:
        """How many groups there are in all batches."""
        stream = stream_of(tiny, {**BLURRY, "sigma": sigma})
        return sum(len(np.unique(stream.task_of[task.origin[task.nodes]])) for task in all_batches(stream))

    assert sum(stream_of(tiny, ONLINE).batches) == mixed(0) < mixed(1) < mixed(5)


@pytest.mark.parametrize(("stream", "free"), [({**BLURRY, "hops": 0}, True), (BLURRY, False)])
def test_the_record_says_whether_old_nodes_come_back(
    tiny: Dataset, command: Command, stream: dict[str, Any], free: bool
) -> None:
    setting = f"protocol.stream={json.dumps(stream)}"
    run = command("run", "--dataset", tiny.name, "--method", "ncm", "--set", setting, "--json")
    assert run.json["protocol"]["exemplar_free"] is free


def test_the_neighbourhood_is_bounded(tiny: Dataset) -> None:
    alone = stream_of(tiny, {**ONLINE, "hops": 0}, train_graph="seen")
    near = stream_of(tiny, {**ONLINE, "hops": 1, "neighbours": 1}, train_graph="seen")
    for one, other in zip(all_batches(alone), all_batches(near), strict=True):
        new = len(one.origin)
        assert set(one.origin) <= set(other.origin)
        assert len(other.origin) <= 2 * new
    assert len(all_batches(near)[-1].origin) > len(all_batches(alone)[-1].origin)


# ---------------------------------------------------------------------- a run


def test_tests_along_the_way(tiny: Dataset, command: Command) -> None:
    stream = "protocol.stream={name: online, batch: 12, points: 5}"
    run = command("run", "--dataset", tiny.name, "--method", "ncm", "--set", stream, "--json").json
    batches = run["protocol"]["batches"]
    ends = np.cumsum(batches).tolist()
    assert set(ends) <= set(run["along"]["batch"])
    assert len(run["along"]["batch"]) <= 5 + len(batches)
    assert run["along"]["batch"] == sorted(run["along"]["batch"])
    at_ends = [run["along"]["test"][run["along"]["batch"].index(end)] for end in ends]
    assert at_ends == pytest.approx(run["average_performance_curve"])
    assert run["metrics"]["area_under_accuracy"] == pytest.approx(np.mean(run["along"]["test"]))
    assert len(run["timing"]["seconds_per_batch"]) == sum(batches)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_batches_or_says_why_not(tiny: Dataset, method: str) -> None:
    tree: dict[str, Any] = {"dataset": tiny.name, "method": method, "protocol": {"stream": BLURRY}}
    tree |= {"train": {"epochs": 1}, **({"analytic": {"width": 64}} if method == "analytic" else {})}
    if method in ("gem", "joint"):
        with pytest.raises(ConfigError, match=rf"'{method}' needs .* does not give: set protocol\.stream=class, or"):
            Resolver().resolve(run_config(tree), tiny)
        return
    run = Resolver().resolve(run_config(tree), tiny)
    model = learn(run.learner_config(), *all_batches(run.stream))
    assert sorted(model.classes_.tolist()) == list(range(6))


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ({"name": "online", "batch": 0}, "protocol.stream.batch"),
    ],
    ids=str,
)
def test_what_makes_no_stream_of_batches(tiny: Dataset, stream: dict[str, Any], words: str) -> None:
    with pytest.raises(IpalError, match=words):
        stream_of(tiny, stream)


def test_a_batch_without_training_nodes_is_refused(tiny: Dataset) -> None:
    with pytest.raises(DataError, match=r"Batch \d+ has no training node: set a larger"):
        stream_of(tiny, {"name": "online", "batch": 1, "sigma": 0.3})
