"""Streams as a kind of thing: what each gives, and task-incremental beside class-incremental."""

import numpy as np
import pytest
import torch

from ipal.config import ProtocolConfig, run_config
from ipal.data.datasets import Dataset
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream
from ipal.data.streams.tasks import TaskIncremental
from ipal.data.task import LabelledNodes, TestSplit
from ipal.errors import ConfigError
from ipal.estimator.model import Prediction
from ipal.evaluation.evaluate import evaluate, evaluate_before
from ipal.runs import runner


def test_task_incremental_has_the_same_tasks_and_tests_with_candidates(tiny: Dataset) -> None:
    one, other = (kind(tiny.graph, tiny.y, (2, 2, 2), ProtocolConfig(), 0) for kind in (TaskStream, TaskIncremental))
    assert one.split_hash == other.split_hash
    for index in range(3):
        np.testing.assert_array_equal(one.task(index).nodes, other.task(index).nodes)
    assert [test_split.classes for test_split in one.test_splits(2)] == [None] * 3
    assert [test_split.classes for test_split in other.test_splits(2)] == [(0, 1), (2, 3), (4, 5)]


class Scored:
    """A model whose scores of classes 5, 7 and 9 are the features of the nodes."""

    classes_ = np.array([5, 7, 9])
    method = None

    def predict_graph(self, graph: Graph, nodes: torch.Tensor | None = None) -> Prediction:
        scores = torch.from_numpy(graph.x if nodes is None else graph.x[nodes.numpy()])
        return Prediction(self.classes_[scores.argmax(dim=1).numpy()], scores)


def test_only_the_candidates_compete_by_hand() -> None:
    x = np.array([[1, 9, 3], [8, 9, 7], [2, 1, 3]], dtype=np.float32)
    graph, answers = Graph(x, np.zeros((2, 0), dtype=np.int64)), LabelledNodes(np.array([0, 1, 2]), np.array([9, 9, 9]))
    open_split, closed = TestSplit(graph, answers, answers), TestSplit(graph, answers, answers, classes=(9, 5))
    assert evaluate([Scored()], [open_split], "micro")[0].confusion == {"9": {"7": 2, "9": 1}}
    row = evaluate([Scored()], [closed], "micro")[0]
    assert row.confusion == {"9": {"5": 1, "9": 2}}
    assert row.validation == row.test == pytest.approx([200 / 3])
    # Before a task is learned, chance is that of a guess among the candidates.
    before = evaluate_before(Scored(), closed, "micro")
    assert (before.accuracy, before.chance) == pytest.approx((200 / 3, 50))
    assert evaluate_before(Scored(), open_split, "micro").chance == pytest.approx(100 / 3)


def test_sizes_are_those_of_the_graphs_of_tasks(tiny_stream: TaskStream) -> None:
    graphs = [tiny_stream.task(index).graph for index in range(len(tiny_stream))]
    assert tiny_stream.sizes() == [(graph.num_nodes, graph.num_edges) for graph in graphs]


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        (
            {"stream": "tide"},
            ["Unknown stream 'tide'", "time"],
        ),
        ({"stream": {"name": "task", "sigma": 2}}, ["'protocol.stream.sigma'"]),
    ],
)
def test_a_stream_that_is_none_gets_a_sentence(protocol: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as said:
        runner.resolve(run_config({"dataset": "digits", "protocol": protocol}))
    assert all(word in str(said.value) for word in words)
