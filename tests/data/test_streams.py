"""Streams partition classes and nodes, and a learner is never handed what it must not see."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ipal.config import ProtocolConfig
from ipal.data.datasets import Dataset
from ipal.data.graph import Graph
from ipal.data.streams import TEST, TRAIN, VALIDATION, TaskStream, default_split
from ipal.data.streams.splits import assign_parts, order_classes
from ipal.data.task import Task
from ipal.errors import DataError
from ipal.estimator import files
from ipal.methods.ipal import IPAL
from tests.learning import config, learn

FEW = config(IPAL, epochs=3, seed=3, calibration=0.2)


def make_stream(y: np.ndarray, split: tuple[int, ...] | None, protocol: ProtocolConfig, seed: int) -> TaskStream:
    random = np.random.default_rng(seed)
    edges = random.integers(0, len(y), (2, 3 * len(y)))
    graph = Graph(x=np.arange(len(y), dtype=np.float32)[:, None], edges=edges[:, edges[0] != edges[1]])
    return TaskStream(graph, y, split, protocol, seed)


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(3, 15), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
    order=st.sampled_from(["label", "shuffled"]),
)
def test_tasks_partition_the_classes_and_parts_partition_the_nodes(sizes, seed, order):
    y = np.repeat(np.arange(len(sizes)) * 3, sizes)  # labels need not be consecutive
    stream = make_stream(y, default_split(len(sizes)), ProtocolConfig(class_order=order), seed)
    assert sorted(label for classes in stream.classes for label in classes) == np.unique(y).tolist()
    assert set(np.unique(stream.part)) == {TRAIN, VALIDATION, TEST}
    for label, size in zip(np.unique(y), sizes, strict=True):
        parts = [np.sum(stream.part[y == label] == part) for part in (TRAIN, VALIDATION, TEST)]
        assert min(parts) >= 1
        assert sum(parts) == size
    # Every node's feature is its own number, so each task's rows can be followed back.
    taught = [int(v) for i in range(len(stream)) for v in stream.task(i).graph.x[stream.task(i).nodes, 0]]
    examined = [
        int(v)
        for test_split in stream.test_splits(len(stream) - 1)
        for answers in (test_split.validation, test_split.test)
        for v in test_split.graph.x[answers.nodes, 0]
    ]
    assert sorted(taught + examined) == list(range(len(y)))


def test_a_graph_without_a_split_of_its_own_is_cut_by_default(tiny: Dataset):
    assert tiny.split is None, "as of every graph that no benchmark has cut"
    stream = TaskStream(tiny.graph, tiny.y, tiny.split, ProtocolConfig(), 0)
    assert [len(classes) for classes in stream.classes] == list(default_split(6))
    y = np.repeat([0, 1, 2, 3, 4], [10, 10, 2, 10, 10])  # class 2 is too small, and is dropped
    stream = make_stream(y, None, ProtocolConfig(small_classes="drop"), 0)
    assert stream.classes == [[0, 1], [3, 4]]
    with pytest.raises(DataError, match="split"):
        make_stream(y, (), ProtocolConfig(small_classes="drop"), 0)


def test_an_isolated_task_keeps_only_edges_among_its_own_classes(tiny_stream: TaskStream):
    whole = tiny_stream.graph
    for index in range(len(tiny_stream)):
        mine = tiny_stream.task_of == index
        expected = np.sum(mine[whole.edges[0]] & mine[whole.edges[1]])
        assert tiny_stream.task(index).graph.edges.shape[1] == expected
    assert expected > 0


def learned_state(*tasks: Task) -> dict[str, torch.Tensor]:
    return dict(files.checkpoint(learn(FEW, *tasks)).tensors)


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def test_garbage_in_place_of_validation_and_test_labels_changes_nothing(tiny: Dataset):
    streams = [TaskStream(tiny.graph, tiny.y.copy(), (2, 2, 2), ProtocolConfig(), 0) for _ in range(2)]
    clean = learned_state(*map(streams[0].task, range(3)))
    held_out = streams[1].part != TRAIN
    streams[1].y[held_out] = 777
    assert_same(clean, learned_state(*map(streams[1].task, range(3))))
    # The check itself can fail: garbage among the training labels is noticed.
    streams[1].y[~held_out] = streams[1].y[~held_out][::-1]
    with pytest.raises((AssertionError, KeyError)):
        assert_same(clean, learned_state(*map(streams[1].task, range(3))))


def poison(stream: TaskStream, tasks: list[int]) -> TaskStream:
    """The same stream with the features of some tasks' nodes made useless."""
    x = stream.graph.x.copy()
    x[np.isin(stream.task_of, tasks)] = 777
    return TaskStream(Graph(x=x, edges=stream.graph.edges), stream.y, (2, 2, 2), stream.protocol, 0)


def test_no_node_of_an_earlier_or_later_task_reaches_the_learner(tiny_stream: TaskStream):
    def second_task(stream: TaskStream) -> dict[str, torch.Tensor]:
        return learned_state(tiny_stream.task(0), stream.task(1))

    clean = second_task(tiny_stream)
    assert_same(clean, second_task(poison(tiny_stream, [0, 2])))
    with pytest.raises(AssertionError):
        assert_same(clean, second_task(poison(tiny_stream, [1])))


def test_inductive_training_graphs_lack_validation_and_test_nodes(tiny: Dataset):
    stream = TaskStream(tiny.graph, tiny.y, (2, 2, 2), ProtocolConfig(visibility="inductive"), 0)
    task = stream.task(1)
    assert task.graph.num_nodes == len(task.nodes) == np.sum((stream.task_of == 1) & (stream.part == TRAIN))
    assert stream.test_splits(1)[1].graph.num_nodes == np.sum(stream.task_of == 1)


def test_classes_can_come_in_an_order_of_ones_own(tiny: Dataset):
    order = (5, 4, 3, 2, 1, 0)
    stream = TaskStream(tiny.graph, tiny.y, (2, 2, 2), ProtocolConfig(class_order=order), 0)
    assert stream.classes == [[5, 4], [3, 2], [1, 0]]
    with pytest.raises(DataError, match="class_order"):
        TaskStream(tiny.graph, tiny.y, (2, 2, 2), ProtocolConfig(class_order=(0, 1)), 0)


@pytest.mark.parametrize(
    ("classes", "split"),
    [(1, (1,)), (2, (1, 1)), (3, (1, 2)), (7, (3, 2, 2)), (10, (4, 2, 2, 2)), (15, (5, 2, 2, 2, 2, 2))],
)
def test_the_general_rule_gives_the_benchmarks_their_splits(classes, split):
    assert default_split(classes) == split


def test_the_draws_of_a_seed_are_those_of_published_runs():
    # Integers all through, so the same on every machine: whoever changes them changes every published number.
    y = np.repeat([0, 1, 2], [5, 6, 7])
    parts = {0: "00102 020010 0021000", 1: "20001 000021 0100020"}
    orders = {0: [1, 4, 3, 0, 2, 5], 1: [1, 4, 0, 3, 2, 5]}
    for seed in (0, 1):
        part, dropped = assign_parts(y, ProtocolConfig(), seed)
        assert part.tolist() == [int(digit) for digit in parts[seed].replace(" ", "")]
        assert dropped == []
        assert order_classes(np.arange(6), ProtocolConfig(class_order="shuffled"), seed) == orders[seed]


@pytest.mark.parametrize(
    ("shares", "parts"),
    [((0.6, 0.2), [6, 2, 2]), ((0.8, 0.1), [8, 1, 1]), ((0.1, 0.45), [2, 4, 4]), ((0.95, 0.01), [8, 1, 1])],
)
def test_shares_are_rounded_and_no_part_is_empty(shares, parts):
    # 0.45 of ten is 4.5, and Python rounds halves to even; 0.01 and 0.04 of ten are none, and become one.
    protocol = ProtocolConfig(train_share=shares[0], validation_share=shares[1])
    part, _ = assign_parts(np.zeros(10, dtype=np.int64), protocol, 0)
    assert [np.sum(part == p) for p in (TRAIN, VALIDATION, TEST)] == parts


def test_classes_of_two_nodes_are_dropped_and_of_three_are_not():
    y = np.repeat([7, 8, 9], [2, 3, 4])
    part, dropped = assign_parts(y, ProtocolConfig(small_classes="drop"), 0)
    assert dropped == [7]
    assert part[:2].tolist() == [-1, -1]
    assert sorted(part[2:5].tolist()) == [TRAIN, VALIDATION, TEST]
    stream = make_stream(y, (1, 1), ProtocolConfig(small_classes="drop"), 0)
    assert stream.classes == [[8], [9]]
    assert stream.task_of.tolist() == [-1, -1, 0, 0, 0, 1, 1, 1, 1]
    with pytest.raises(DataError, match=r"class 7 \(2 node\(s\)\): add nodes"):
        assign_parts(y, ProtocolConfig(), 0)


def test_the_answers_of_a_test_are_the_labels_of_its_nodes(tiny: Dataset):
    for test_graph in ("isolated", "seen"):
        stream = TaskStream(tiny.graph, tiny.y, (2, 2, 2), ProtocolConfig(test_graph=test_graph), 0)
        test_splits = stream.test_splits(2)
        assert len(test_splits) == 3
        assert (test_splits[0].graph is test_splits[1].graph) == (test_graph == "seen")
        for index, test_split in enumerate(test_splits):
            for answers, part in ((test_split.validation, VALIDATION), (test_split.test, TEST)):
                mine = (stream.task_of == index) & (stream.part == part)
                assert np.array_equal(answers.labels, tiny.y[mine])
                assert np.array_equal(test_split.graph.x[answers.nodes], tiny.graph.x[mine])
