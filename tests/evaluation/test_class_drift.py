"""What stands behind a row of the accuracy matrix: confusion, and how far classes moved."""

import numpy as np
import pytest
import torch

from ipal.config import run_config
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream
from ipal.data.task import LabelledNodes, TestSplit
from ipal.estimator.model import Prediction
from ipal.evaluation.class_drift import ClassDrift
from ipal.evaluation.evaluate import Cloud, class_clouds, confusion, counted, evaluate, recalls
from ipal.evaluation.rows import Row
from ipal.methods.base import Remembered
from ipal.runs import runner
from ipal.runs.run_folder import RunStore
from tests.support import Watcher


def test_confusion_counts_by_hand():
    truth, predicted = np.array([0, 0, 0, 1, 1]), np.array([0, 2, 2, 1, 0])
    pairs = counted(predicted, truth)
    assert confusion(pairs) == {"0": {"0": 1, "2": 2}, "1": {"0": 1, "1": 1}}
    assert recalls(pairs) == {"0": 100 * (1 / 3), "1": 50.0}


class Shown:
    """A model that gives what is written on the nodes: the class it takes them for, and where they lie."""

    classes_ = np.arange(10)

    def predict_graph(self, graph: Graph, nodes: torch.Tensor | None = None) -> Prediction:
        x = graph.x if nodes is None else graph.x[nodes.numpy()]
        return Prediction(x[:, 0].astype(np.int64), torch.from_numpy(x[:, 1:]), torch.zeros(len(x), 0))


def split_of(labels: list[int], taken_for: list[int], places: list[float]) -> TestSplit:
    x = np.stack([taken_for, places, np.zeros(len(labels))], axis=1).astype(np.float32)
    answers = LabelledNodes(np.arange(len(labels)), np.array(labels))
    return TestSplit(Graph(x, np.zeros((2, 0), dtype=np.int64)), answers, answers)


def test_a_class_that_comes_again_is_scored_over_all_its_test_nodes():
    first = split_of([7, 7, 8, 8], [7, 7, 8, 7], [0.0, 2.0, 5.0, 5.0])
    again = split_of([7, 9, 7, 7, 7], [9, 9, 8, 7, 9], [4.0, 1.0, 4.0, 4.0, 6.0])
    row, clouds = evaluate(Shown(), [first, again], "balanced")
    assert row.test == [75.0, 62.5], "each split is scored as before"
    assert row.per_class == {"7": 50.0, "8": 50.0, "9": 100.0}
    assert row.confusion == {"7": {"7": 3, "8": 1, "9": 2}, "8": {"7": 1, "8": 1}, "9": {"9": 1}}
    places = np.array([0.0, 2.0, 4.0, 4.0, 4.0, 6.0])
    assert clouds["7"].mean.tolist() == pytest.approx([places.mean(), 0])
    assert clouds["7"].spread.item() == pytest.approx(places.std())
    assert clouds["8"].mean.tolist() == [5.0, 0.0]
    assert evaluate(Shown(), [first], "balanced").row.per_class == {"7": 100.0, "8": 50.0}


def test_a_class_that_comes_again_moves_from_where_it_was_learned_last():
    before = ClassDrift({"a": cloud(0, 0), "b": cloud(0, 0)})
    now = {"a": cloud(9, 0, spread=1), "b": cloud(2, 0), "c": cloud(1, 1)}
    places, moves = before.updated(now, {}, learned={"a", "c"})
    assert {name: move["shift"] for name, move in moves.items()} == {"a": 0.0, "b": 1.0, "c": 0.0}
    _, moves = places.updated({"a": cloud(9, 3)}, {})
    assert moves["a"]["shift"] == 3.0


def test_a_run_places_a_class_that_comes_again_once(tiny_stream: TaskStream):
    tiny_stream.classes.append([1, 0])
    rows = [Row(validation=[], test=[], per_class={}, confusion={"0": {"1": 2}, "1": {"1": 3}, "5": {"0": 1}})]
    found = runner._confusion(tiny_stream, rows)
    assert found == {"classes": list("012345"), "after_task": [[[0, 1, 2], [1, 1, 3], [5, 0, 1]]]}


def test_clouds_by_hand():
    # Class 7 at (0, 0) and (2, 0): mean (1, 0), each at distance 1. Class 9 alone: no spread. Node 3 is not asked for.
    f = torch.tensor([[0.0, 0.0], [5.0, 5.0], [2.0, 0.0], [99.0, 99.0]])
    (clouds,) = class_clouds([f], LabelledNodes(nodes=np.array([0, 1, 2]), labels=np.array([7, 9, 7])))
    assert clouds["7"].mean.tolist() == [1.0, 0.0]
    assert clouds["7"].spread.item() == 1.0
    assert clouds["9"].mean.tolist() == [5.0, 5.0]
    assert clouds["9"].spread.item() == 0.0


def cloud(x: float, y: float, spread: float = 2.0) -> Cloud:
    return Cloud(torch.tensor([float(x), float(y)]), torch.tensor(float(spread)))


def test_two_clouds_pooled_by_hand():
    # Three quarters at 0 with a variance of 9, a quarter at 4 with 1: 7 within them, 3/16 * 16 between their means.
    mean, spread = cloud(0, 0, spread=3).pooled(cloud(4, 0, spread=1), 0.25)
    assert mean.tolist() == [1.0, 0.0]
    assert spread.item() == pytest.approx(10**0.5)


def test_moves_are_measured_from_where_a_class_was_learned():
    first, moves = ClassDrift({}).updated({"a": cloud(0, 0)}, {"a": Remembered(5, torch.tensor([0.0, 1.0]))})
    assert moves == {"a": {"shift": 0.0, "gap": 0.5}}
    second, moves = first.updated({"a": cloud(3, 4, spread=9), "b": cloud(1, 1)}, {})
    assert moves == {"a": {"shift": 2.5, "gap": None}, "b": {"shift": 0.0, "gap": None}}, "in units of the first spread"
    _, moves = second.updated({"a": cloud(0, 0), "b": cloud(1, 3)}, {})
    assert moves["a"]["shift"] == 0.0
    assert moves["b"]["shift"] == 1.0


@pytest.mark.parametrize("there", [cloud(1, 1, spread=0), cloud(np.nan, 0)])
def test_what_cannot_be_measured_is_none(there):
    _, moves = ClassDrift({"a": there}).updated({"a": cloud(0, 0)}, {})
    assert moves == {"a": {"shift": None, "gap": None}}


def test_centroids_survive_saving():
    centroids = ClassDrift({"a": cloud(1, 2), "b": cloud(3, 4, spread=1)})
    again = ClassDrift.of_tensors(["a", "b"], centroids.tensors(), torch.device("cpu"))
    assert {name: [part.tolist() for part in one] for name, one in again.clouds.items()} == {
        "a": [[1.0, 2.0], 2.0],
        "b": [[3.0, 4.0], 1.0],
    }
    assert ClassDrift.of_tensors([], ClassDrift({}).tensors(), torch.device("cpu")).clouds == {}


@pytest.mark.parametrize("method", ["ipal", "bare", "analytic"])
def test_a_run_stores_what_stands_behind_its_numbers(method, tmp_path):
    resolved = runner.resolve(
        run_config(
            {
                "dataset": "synthetic:nodes=240,classes=6,features=16,signal=3,seed=1",
                "method": method,
                **({"train": {"epochs": 10}} if method != "analytic" else {"analytic": {"width": 64}}),
            }
        )
    )
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
    drift = folder.drift()
    if method == "analytic":
        assert drift is None, "its features stay where they are"
        return
    assert [sorted(moves) for moves in drift["after_task"]] == [list("01"), list("0123"), list("012345")]
    last = drift["after_task"][-1]
    assert last["0"]["shift"] > 0
    assert last["5"]["shift"] == 0
    assert all((move["gap"] is None) == (method == "bare") for move in last.values())
