"""What a finished run leaves on disk."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import ipal as package
from ipal.data.datasets import load
from tests.cli.support import GRAPH


def test_the_result_holds_all_that_a_reader_asks_for(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    matrix = result["accuracy_matrix"]
    assert [[value is not None for value in row] for row in matrix] == np.tri(3, dtype=bool).tolist()
    assert all(0 <= value <= 100 for row in matrix for value in row if value is not None)
    assert result["average_performance"] == pytest.approx(np.mean(matrix[-1]))
    assert result["average_forgetting"] == pytest.approx(np.mean([matrix[-1][i] - matrix[i][i] for i in (0, 1)]))
    assert sorted(result["per_class"]) == list("012345")
    protocol = result["protocol"]
    assert protocol["split"] == [2, 2, 2]
    assert protocol["classes"] == [[0, 1], [2, 3], [4, 5]]
    assert protocol["exemplar_free"] is True
    assert len(result["timing"]["seconds_per_task"]) == 3
    assert len(result["timing"]["seconds_per_epoch"]) == 3
    assert result["timing"]["total_seconds"] > 0
    assert result["peak_memory_bytes"] > 10**7
    retained = result["retained"]
    assert retained["bytes"] == sum(item["bytes"] for item in retained["items"])
    assert retained["stores_exemplars"] is False
    assert result["data"]["hash"] == load(GRAPH).hash


def test_a_finished_run_leaves_the_files_it_says(finished: Path) -> None:
    names = {path.name for path in finished.iterdir() if not path.name.startswith(".asked-")} - {".lock"}
    files = {"config.yaml", "environment.json", "history.csv", "model.safetensors", "result.json", "log.txt"}
    assert names == files | {"confusion.json"}, "no checkpoint and no half-written file stays"


def test_the_history_has_every_loss_term_of_every_epoch(finished: Path) -> None:
    with (finished / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["task", "epoch", "contrast", "distillation"]
    assert [(int(row["task"]), int(row["epoch"])) for row in rows] == [(t, e) for t in range(3) for e in range(3)]
    assert all(float(row["contrast"]) > 0 for row in rows)
    # There is nothing to distil on the first task.
    assert [row["distillation"] == "" for row in rows] == [True] * 3 + [False] * 6


def test_the_environment_names_versions_and_threads(finished: Path) -> None:
    environment = json.loads((finished / "environment.json").read_text())
    assert environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["packages"]["ipal"] == package.__version__
    assert {"numpy", "scipy", "torch-geometric", "safetensors"} <= set(environment["packages"])
    assert environment["threads"] == 1
    assert environment["device"] == "cpu"
    assert environment["command"][1:3] == ["run", "--dataset"]
    assert environment["platform"]
    assert environment["cores"] >= 1


def test_the_saved_model_predicts_what_the_run_measured(finished: Path) -> None:
    """The model in the run folder is the one behind the numbers in result.json."""
    model = package.load(finished / "model.safetensors")
    result = json.loads((finished / "result.json").read_text())
    dataset = load(GRAPH)
    stream = package.TaskStream(dataset.graph, dataset.y, (2, 2, 2), package.ProtocolConfig(), seed=0)
    assert model.classes_.tolist() == list(range(6))
    for index, split in enumerate(stream.test_splits(2)):
        data = Data(x=torch.from_numpy(split.graph.x), edge_index=torch.from_numpy(split.graph.edges))
        predicted = model.predict(data)
        assert np.array_equal(predicted, model.model_.predict_graph(split.graph).labels)
        hits = predicted[split.test.nodes] == split.test.labels
        recall = [100 * hits[split.test.labels == label].mean() for label in np.unique(split.test.labels)]
        assert np.mean(recall) == pytest.approx(result["accuracy_matrix"][-1][index])
