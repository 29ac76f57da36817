"""Counts in place of shares, few labelled nodes, classes by size: who teaches, who is tested, who is only there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ipal.config import Counts, ProtocolConfig, run_config
from ipal.data.graph import Graph
from ipal.data.streams import CONTEXT, STREAMS, TEST, TRAIN, VALIDATION, TaskStream
from ipal.data.streams.splits import assign_parts, order_classes
from ipal.errors import ConfigError, DataError
from ipal.runs.resolved import check_settings
from tests.runs.test_resume import Stop, run, tiny_config
from tests.support import Command, complaint

Y = np.repeat([4, 7, 9], [6, 10, 8])
PARTS = (TRAIN, VALIDATION, TEST, CONTEXT)


def made(y: NDArray[Any], split: tuple[int, ...] | None = None, seed: int = 0, **protocol: Any) -> TaskStream:
    """A stream on a ring of nodes whose feature is their number."""
    ring = np.stack([np.arange(len(y)), np.roll(np.arange(len(y)), 1)])
    graph = Graph(x=np.arange(len(y), dtype=np.float32)[:, None], edges=np.hstack([ring, ring[::-1]]))
    config = ProtocolConfig.model_validate(protocol)
    return STREAMS.find(config.stream.name)(graph, y, split, config, seed)  # type: ignore[call-arg, return-value]


def sizes(stream: TaskStream, label: int) -> list[int]:
    return [int(np.sum(stream.part[stream.y == label] == part)) for part in PARTS]


def test_the_largest_class_comes_first_and_of_equal_ones_the_smaller_label() -> None:
    by_size = ProtocolConfig(class_order="size")
    assert order_classes(Y, by_size, 0) == [7, 9, 4]
    assert order_classes(np.repeat([3, 1, 2], [2, 2, 5]), by_size, 0) == [2, 1, 3]
    assert order_classes(np.array(["b", "a", "b"]), by_size, 0) == ["b", "a"]
    assert made(Y, (1, 1, 1), class_order="size").classes == [[7], [9], [4]]


def test_counts_are_taken_of_every_class_and_the_rest_is_context_by_hand() -> None:
    stream = made(Y, (1, 1, 1), parts={"train": 3, "validation": 1, "test": 2})
    assert [sizes(stream, label) for label in (4, 7, 9)] == [[3, 1, 2, 0], [3, 1, 2, 4], [3, 1, 2, 2]]
    assert stream.task_of.tolist() == [0] * 6 + [1] * 10 + [2] * 8, "context belongs to the task of its class"
    assert [graph for graph, _ in stream.sizes()] == [6, 10, 8]


def test_a_class_with_fewer_nodes_is_split_by_the_shares_where_that_is_asked_for() -> None:
    counts = {"train": 5, "validation": 2, "test": 3}
    stream = made(Y, (1, 1, 1), parts={**counts, "fewer": "shares"}, train_share=0.5, validation_share=0.1)
    assert [sizes(stream, label) for label in (4, 7, 9)] == [[3, 1, 2, 0], [5, 2, 3, 0], [4, 1, 3, 0]]
    dropping = ProtocolConfig(parts=Counts(**counts), small_classes="drop")  # type: ignore[arg-type]
    assert assign_parts(Y, dropping, 0)[1] == [4, 9]
    with pytest.raises(DataError, match=r"Fewer nodes than protocol.parts asks for: class 4 \(6 .*fewer=shares, or"):
        made(Y, parts=counts)


def test_after_the_first_task_a_class_has_few_labelled_nodes_by_hand() -> None:
    stream = made(Y, (1, 1, 1), stream={"name": "class", "shots": 2}, class_order="size")
    # 60/20/20 of 10, 8 and 6 nodes.
    assert [sizes(stream, label) for label in (7, 9, 4)] == [[6, 2, 2, 0], [2, 2, 2, 2], [2, 1, 1, 2]]
    assert [len(stream.task(index).nodes) for index in range(3)] == [6, 2, 2]
    plain = made(Y, (1, 1, 1), class_order="size")
    for part in (VALIDATION, TEST):
        np.testing.assert_array_equal(stream.part == part, plain.part == part, "who is tested does not depend on shots")
    assert not (plain.part[stream.part == CONTEXT] != TRAIN).any()
    assert made(Y, (1, 1, 1), stream={"name": "class", "shots": 99}).split_hash == made(Y, (1, 1, 1)).split_hash


def test_other_seeds_label_other_nodes() -> None:
    few = [made(Y, (1, 2), seed, stream={"name": "class", "shots": 1}).part == TRAIN for seed in range(5)]
    assert len({tuple(one.tolist()) for one in few}) > 1


def test_only_the_first_classes_are_learned_where_so_many_are_asked_for() -> None:
    stream = made(Y, (1, 1), stream={"name": "class", "classes": 2}, class_order="size")
    assert stream.classes == [[7], [9]]
    assert stream.describe()["dropped_classes"] == [4]
    assert (stream.task_of[Y == 4] == -1).all()
    assert (stream.part[Y == 4] == -1).all()
    with pytest.raises(DataError, match="classes is 4, but there are 3 classes"):
        made(Y, stream={"name": "class", "classes": 4})


@settings(max_examples=30, deadline=None)
@given(
    counts=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
    shots=st.none() | st.integers(1, 3),
    members=st.lists(st.integers(10, 16), min_size=2, max_size=5),
    seed=st.integers(0, 1000),
    graphs=st.tuples(st.sampled_from(["isolated", "seen"]), st.sampled_from(["isolated", "seen"])),
)
def test_nodes_without_a_role_are_in_graphs_and_neither_taught_nor_tested(
    counts: tuple[int, int, int], shots: int | None, members: list[int], seed: int, graphs: tuple[str, str]
) -> None:
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(members)), members))
    asked = dict(zip(("train", "validation", "test"), counts, strict=True))
    few = {"name": "class"} | ({} if shots is None else {"shots": shots})
    protocol = {"train_graph": graphs[0], "test_graph": graphs[1], "class_order": "size"}
    stream = made(y, (1,) * len(members), seed, parts=asked, stream=few, **protocol)
    taught, tested, chosen, there = set(), set(), set(), set()
    for index in range(len(stream)):
        task = stream.task(index)
        assert task.origin is not None
        taught |= set(task.origin[task.nodes].tolist())
        there |= set(task.origin.tolist())
    for split in stream.test_splits(len(stream) - 1):
        number = split.graph.x[:, 0].astype(int)
        tested |= set(number[split.test.nodes].tolist())
        chosen |= set(number[split.validation.nodes].tolist())
        np.testing.assert_array_equal(split.test.labels, y[number[split.test.nodes]])
    assert there == set(range(len(y)))
    assert not (taught & tested)
    assert not (taught & chosen)
    assert not (tested & chosen)
    assert len(tested) == counts[2] * len(members)
    assert taught | tested | chosen | set(np.flatnonzero(stream.part == CONTEXT).tolist()) == there
    # The order of nodes in the file decides which are drawn, never how many, nor the order of classes.
    again = made(np.sort(y), (1,) * len(members), seed, parts=asked, stream=few, **protocol)
    assert again.classes == stream.classes
    for label in range(len(members)):
        assert sizes(again, label) == sizes(stream, label)


@pytest.mark.parametrize("name", ["class", "online"])
def test_inductive_training_lacks_only_what_is_tested(name: str) -> None:
    own = {"batch": "task", "hops": 0} if name == "online" else {}
    parts = {"train": 3, "validation": 1, "test": 2}
    stream = made(Y, (1, 1, 1), parts=parts, visibility="inductive", stream={"name": name, **own})
    for index in range(3):
        task = stream.batch(index, 0)
        there = (stream.task_of == index) & np.isin(stream.part, (TRAIN, CONTEXT))
        np.testing.assert_array_equal(task.origin, np.flatnonzero(there))
        assert len(task.nodes) == 3


@pytest.mark.parametrize("name", STREAMS)
def test_what_is_left_open_is_not_in_the_configuration(name: str) -> None:
    config = check_settings(run_config({"dataset": "digits", "method": "ncm", "protocol": {"stream": name}}))
    assert not {"shots", "classes"} & config.protocol.stream.settings.keys()
    few = check_settings(run_config({"dataset": "digits", "protocol": {"stream": {"name": "class", "shots": 5}}}))
    assert few.to_tree()["protocol"]["stream"] == {"name": "class", "shots": 5}


def test_an_interrupted_run_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    protocol = {
        "stream": {"name": "class", "shots": 5},
        "class_order": "size",
        "parts": {"train": 10, "validation": 5, "test": 10},
    }
    config = tiny_config(protocol=protocol)
    whole = run(config, tmp_path / "whole").result()
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "parts", Stop(after_tasks=2))
    again = run(config, tmp_path / "parts").result()
    assert again["metrics"] == whole["metrics"]
    assert again["protocol"] == whole["protocol"]
    assert whole["protocol"]["parts"] == {"train": 10, "validation": 5, "test": 10, "fewer": "error"}
    assert whole["metrics"]["mean_overall_accuracy"] > 0


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("protocol.parts={train: 999, validation: 1, test: 1}", ["Fewer nodes than protocol.parts asks for: class 0"]),
        ("protocol.parts={train: 9, validation: 1}", ["'protocol.parts.test' is missing"]),
        ("protocol.parts={train: 0, validation: 1, test: 1}", ["'protocol.parts.train' cannot be 0"]),
        ("protocol.stream={name: class, shots: 0}", ["'protocol.stream.shots' cannot be 0"]),
        ("protocol.stream={name: class, classes: 11}", ["protocol.stream.classes is 11", "10 classes"]),
        ("protocol.class_order=[0, 1, 1]", ["must name each of the 10 classes once"]),
    ],
)
def test_what_cannot_be_asked_for_gets_a_sentence(command: Command, setting: str, words: list[str]) -> None:
    complaint(command("run", "--dataset", "digits", "--method", "ncm", "--set", setting), *words)


def test_a_wrong_count_is_named() -> None:
    with pytest.raises(ConfigError, match=r"Unknown setting 'protocol\.parts\.more'"):
        run_config({"dataset": "digits", "protocol": {"parts": {"train": 1, "validation": 1, "test": 1, "more": 1}}})
