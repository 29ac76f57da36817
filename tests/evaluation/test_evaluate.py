"""What stands behind a row of the accuracy matrix."""

from collections import Counter

import numpy as np
import pytest
import torch

from ipal.config import run_config
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream
from ipal.data.task import LabelledNodes, TestSplit
from ipal.estimator.model import Prediction
from ipal.evaluation.evaluate import confusion, evaluate
from ipal.evaluation.rows import Row
from ipal.runs import runner
from ipal.runs.run_folder import RunStore
from tests.support import Watcher


def test_confusion_counts_by_hand():
    truth, predicted = np.array([0, 0, 0, 1, 1]), np.array([0, 2, 2, 1, 0])
    found = confusion(Counter(zip(truth.tolist(), predicted.tolist(), strict=True)))
    assert found == {"0": {"0": 1, "2": 2}, "1": {"0": 1, "1": 1}}


class Shown:
    """A model that gives the class that is written on a node."""

    classes_ = np.arange(10)
    method = None

    def predict_graph(self, graph: Graph, nodes: torch.Tensor | None = None) -> Prediction:
        x = graph.x if nodes is None else graph.x[nodes.numpy()]
        return Prediction(x[:, 0].astype(np.int64), torch.zeros(len(x), 0))


def split_of(labels: list[int], taken_for: list[int]) -> TestSplit:
    x = np.array(taken_for, dtype=np.float32)[:, None]
    answers = LabelledNodes(np.arange(len(labels)), np.array(labels))
    return TestSplit(Graph(x, np.zeros((2, 0), dtype=np.int64)), answers, answers)


def test_a_class_that_comes_again_is_scored_over_all_its_test_nodes():
    first, again = split_of([7, 7, 8, 8], [7, 7, 8, 7]), split_of([7, 9, 7, 7, 7], [9, 9, 8, 7, 9])
    row = evaluate([Shown()], [first, again], "balanced")[0]
    assert row.test == [75.0, 62.5], "each split is scored as before"
    assert row.per_class == {"7": 50.0, "8": 50.0, "9": 100.0}
    assert row.confusion == {"7": {"7": 3, "8": 1, "9": 2}, "8": {"7": 1, "8": 1}, "9": {"9": 1}}
    assert evaluate([Shown()], [first], "balanced")[0].per_class == {"7": 100.0, "8": 50.0}


def test_a_run_places_a_class_that_comes_again_once(tiny_stream: TaskStream):
    tiny_stream.classes.append([1, 0])
    rows = [Row(validation=[], test=[], per_class={}, confusion={"0": {"1": 2}, "1": {"1": 3}, "5": {"0": 1}})]
    found = runner._confusion(tiny_stream, rows)
    assert found == {"classes": list("012345"), "after_task": [[[0, 1, 2], [1, 1, 3], [5, 0, 1]]]}


def test_a_run_stores_what_stands_behind_its_numbers(tmp_path):
    tree = {"dataset": "synthetic:nodes=240,classes=6,features=16,signal=3,seed=1", "method": "ncm"}
    resolved = runner.resolve(run_config(tree))
    folder = RunStore(tmp_path).folder_for(resolved.config)
    result = runner.run(resolved, folder, Watcher())
    confused = folder.confusion()
    assert confused["classes"] == ["0", "1", "2", "3", "4", "5"]
    assert len(confused["after_task"]) == 3
    counts = np.zeros((6, 6))
    for true, predicted, count in confused["after_task"][-1]:
        counts[true, predicted] = count
    recall = 100 * counts.diagonal() / counts.sum(axis=1)
    assert recall.tolist() == pytest.approx([result["per_class"][name] for name in confused["classes"]])
