"""`ipal predict`: graphs of all kinds in, a table out."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ipal
from ipal.data.datasets import load
from ipal.deploy.predict import predict
from ipal.estimator import files
from tests.cli.support import GRAPH
from tests.support import Command, complaint, write_graph


@pytest.fixture
def model(command: Command, tmp_path: Path) -> Path:
    """A model of the four classes of `write_graph`'s graphs."""
    write_graph(tmp_path / "learned.npz")
    done = command("run", "--dataset", "learned.npz", "--method", "ncm", "--json").json
    return Path(done["run"]) / "model.safetensors"


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_node_has_a_row(command: Command, finished: Path, tmp_path: Path) -> None:
    done = command("predict", finished.name, "--graph", GRAPH, "-o", "out.csv", "--json").json
    expected = predict(files.load(finished / "model.safetensors"), load(GRAPH).graph)
    rows = table(tmp_path / "out.csv")
    assert list(rows[0]) == ["node", "predicted", "confidence", "rejected", *(f"p({c})" for c in expected.classes)]
    assert [int(row["node"]) for row in rows] == list(range(240))
    assert [row["predicted"] for row in rows] == ["" if name is None else str(name) for name in expected.labels]
    assert [row["rejected"] == "true" for row in rows] == expected.rejected.tolist()
    assert [float(row["p(3)"]) for row in rows] == pytest.approx(
        expected.probabilities[:, expected.classes.tolist().index(3)], rel=1e-5
    )
    assert done["nodes"] == 240
    assert done["predicted"] == expected.counts()
    assert done["rejected"] == 0
    assert done["reject"] is None
    assert Path(done["file"]).samefile(tmp_path / "out.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "runs"]


def test_labels_need_not_be_there_and_are_not_looked_at(command: Command, model: Path, tmp_path: Path) -> None:
    write_graph(tmp_path / "unlabelled.npz", y=None)
    write_graph(tmp_path / "nonsense.npz", y=np.arange(40) % 7)
    for name in ("learned", "unlabelled", "nonsense"):
        assert command("predict", model, "--graph", f"{name}.npz", "-o", f"{name}.csv").code == 0
    contents = {(tmp_path / f"{name}.csv").read_text() for name in ("learned", "unlabelled", "nonsense")}
    assert len(contents) == 1
    complaint(command("run", "--dataset", "unlabelled.npz"), "No node", "has a label")


def test_some_nodes_are_predicted_as_among_all(command: Command, model: Path, tmp_path: Path) -> None:
    command("predict", model, "--graph", "learned.npz", "-o", "some.csv", "--nodes", "7,3")
    command("predict", model, "--graph", "learned.npz", "-o", "all.csv")
    whole, some = table(tmp_path / "all.csv"), table(tmp_path / "some.csv")
    assert [row["node"] for row in some] == ["7", "3"]
    for row in some:
        expected = whole[int(row["node"])]
        assert row["predicted"] == expected["predicted"]
        assert float(row["confidence"]) == pytest.approx(float(expected["confidence"]), rel=1e-4)


def test_a_file_that_is_there_is_replaced_only_by_force(command: Command, model: Path, tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("mine")
    say = ["predict", model, "--graph", "learned.npz", "-o", "out.csv"]
    complaint(command(*say), "exists already", "--force")
    assert (tmp_path / "out.csv").read_text() == "mine"
    assert command(*say, "--force").code == 0
    assert len(table(tmp_path / "out.csv")) == 40
    shown = command(*say, "--force").out
    assert "40 nodes predicted" in shown
    assert "none of them" not in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--graph", "narrow.npz"], ["3 features", "trained on 5"]),
        (["--graph", "bare.npz"], ["features a node", "trained on 5"]),
        (["--graph", "no-edges.npz"], ["lacks the array(s) edge_index"]),
        (["--graph", "learned.npz", "--nodes", "3,99"], ["--nodes names the node '99'", "0 to 39"]),
        (["--graph", "learned.npz", "--nodes", "9" * 5000], ["--nodes"]),
        (["--graph", "learned.npz", "--reject", "0.05"], ["not calibrated", "calibration=0.2"]),
    ],
)
def test_what_cannot_be_predicted_is_said_in_a_sentence(
    command: Command, model: Path, tmp_path: Path, options: list[str], words: list[str]
) -> None:
    write_graph(tmp_path / "narrow.npz", x=np.ones((40, 3)), y=None)
    write_graph(tmp_path / "bare.npz", x=None)
    write_graph(tmp_path / "no-edges.npz", edge_index=None)
    complaint(command("predict", model, *options, "-o", "out.csv"), *words)
    assert not (tmp_path / "out.csv").exists()


def test_unknown_classes_are_rejected_and_grouped(command: Command, tmp_path: Path) -> None:
    name = "synthetic:nodes=400,classes=5,features=16,signal=3,seed=1"
    dataset = ipal.load_dataset(name)
    known = dataset.y < 3
    data = replace(ipal.graph_from(dataset), train_mask=known)
    ipal.Analytic(width=256).partial_fit(data).save(tmp_path / "model")
    options = ("--graph", name, "--json")
    found = command("predict", tmp_path / "model", *options, "-o", "p.csv", "--reject", "0.05", "--coverage", "0.9")
    assert found.code == 0, found.err
    assert json.loads(found.out)["rejected"] > 100
    assert json.loads(found.out)["reject"] == 0.05
    rows = table(Path("p.csv"))
    as_in_python = ipal.load(tmp_path / "model").predict(data, reject=0.05)
    assert [row["predicted"] for row in rows] == ["" if label is None else str(label) for label in as_in_python]
    assert {row["predicted"] for row in rows if row["rejected"] == "true"} == {""}
    assert all(set(row["set"].split("|")) <= {"", "0", "1", "2"} for row in rows)
    grouped = command("discover", tmp_path / "model", *options, "-o", "g.csv", "--classes", "2")
    assert grouped.code == 0, grouped.err
    sizes = [group["nodes"] for group in json.loads(grouped.out)["groups"]]
    assert len(table(Path("g.csv"))) == sum(sizes) > 100
    shown = command("discover", tmp_path / "model", "--graph", name, "-o", "h.csv")
    assert "taken for" in shown.out
    predicted = command("predict", tmp_path / "model", "--graph", name, "-o", "r.csv", "--reject", "0.05")
    assert "none of them" in predicted.out
    complaint(command("predict", tmp_path / "model", *options, "-o", "q.csv", "--reject", "1.5"), "between 0 and 1")
