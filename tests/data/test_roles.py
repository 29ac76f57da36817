"""Counts in place of shares, few labelled nodes, classes by size: who teaches, who is tested, who is only there."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ipal.config import Counts, ProtocolConfig, run_config
from ipal.data.graph import Graph
from ipal.data.streams import CONTEXT, STREAMS, TEST, TRAIN, VALIDATION, TaskStream
from ipal.data.streams.splits import assign_parts, order_classes
from ipal.errors import DataError
from ipal.runs.resolved import check_settings
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
    with pytest.raises(DataError, match=r"Too few .* for class 4 \(6 .*ask for fewer with protocol\.parts"):
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


def test_only_the_first_classes_are_learned_where_so_many_are_asked_for() -> None:
    stream = made(Y, (1, 1), stream={"name": "class", "classes": 2}, class_order="size")
    assert stream.classes == [[7], [9]]
    assert stream.describe()["dropped_classes"] == [4]
    assert (stream.task_of[Y == 4] == -1).all()
    assert (stream.part[Y == 4] == -1).all()
    with pytest.raises(DataError, match="classes is 4, but there are 3 classes"):
        made(Y, stream={"name": "class", "classes": 4})


@pytest.mark.parametrize("name", STREAMS)
def test_what_is_left_open_is_not_in_the_configuration(name: str) -> None:
    config = check_settings(run_config({"dataset": "digits", "method": "ncm", "protocol": {"stream": name}}))
    assert not {"shots", "classes"} & config.protocol.stream.settings.keys()
    few = check_settings(run_config({"dataset": "digits", "protocol": {"stream": {"name": "class", "shots": 5}}}))
    assert few.to_tree()["protocol"]["stream"] == {"name": "class", "shots": 5}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "protocol.parts={train: 999, validation: 1, test: 1}",
            ["Too few", "nodes for class 0"],
        ),
        ("protocol.parts={train: 9, validation: 1}", ["'protocol.parts.test' is missing"]),
        ("protocol.stream={name: class, classes: 11}", ["protocol.stream.classes is 11", "10 classes"]),
    ],
)
def test_what_cannot_be_asked_for_gets_a_sentence(command: Command, setting: str, words: list[str]) -> None:
    complaint(command("run", "--dataset", "digits", "--method", "ncm", "--set", setting), *words)
