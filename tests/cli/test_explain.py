"""`ipal explain`: a table, JSON, a figure, and sentences for what is wrong."""

from pathlib import Path

import numpy as np
import pytest

from ipal.data.datasets import load
from ipal.estimator import files
from ipal.estimator.explain import explain
from tests.cli.support import GRAPH
from tests.support import Command, complaint


def test_it_prints_what_the_library_finds(command: Command, finished: Path) -> None:
    learner = files.load(finished / "model.safetensors")
    expected = explain(learner, load(GRAPH).graph, 7).as_plain_data(3)
    assert command("explain", finished.name, "--graph", GRAPH, "--node", 7, "--top", 3, "--json").json == expected
    text = command("explain", finished.name, "--graph", GRAPH, "--node", 7, "--top", 3).out
    assert expected["summary"] in text
    assert "itself" in text
    assert "1 hop away" in text
    for one in expected["evidence"]:
        assert f"{one['feature']} of node {one['node']}" in text
        assert f"{one['contribution']:+.4g}" in text


def test_another_class_to_compare_with(command: Command, finished: Path) -> None:
    asked = ("explain", finished.name, "--graph", GRAPH, "--node", 7, "--json")
    first = command(*asked).json
    other = next(name for name in first["scores"] if name not in (str(first["predicted"]), str(first["against"])))
    second = command(*asked, "--against", other).json
    assert str(second["against"]) == other
    assert second["margin"] == pytest.approx(first["scores"][str(first["predicted"])] - first["scores"][other])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--node", "1,2"), "one node"),
        (("--node", 7, "--against", "zebra"), "Class zebra was never learned; known are"),
        (("--node", 7, "--top", 0), "--top"),
    ],
)
def test_wrong_options_get_a_sentence(
    options: tuple[object, ...], words: str, command: Command, finished: Path
) -> None:
    complaint(command("explain", finished.name, "--graph", GRAPH, *options), words)


def test_nodes_and_features_are_called_by_their_names(command: Command, tmp_path: Path) -> None:
    names, random = ["anna", "ben", "cleo", "dora"] * 30, np.random.default_rng(0)
    rows = [
        f"{name}{at},{at % 2},{at % 2 + random.normal():.3f},{random.normal():.3f}" for at, name in enumerate(names)
    ]
    (tmp_path / "nodes.csv").write_text("id,label,height,noise\n" + "\n".join(rows))
    edges = [f"{names[at]}{at},{names[at + 2]}{at + 2}" for at in range(118)]
    (tmp_path / "edges.csv").write_text("source,target\n" + "\n".join(edges))
    command("run", "--dataset", "nodes.csv,edges.csv", "--method", "ncm", "--split", "2")
    asked = ("explain", "latest", "--node", "ben5", "--json")
    plain = command(*asked, "--graph", "nodes.csv,edges.csv").json
    assert plain["node"] == "ben5"
    assert {one["feature"] for one in plain["by_feature"]} == {"height", "noise"}
    assert {"dora7", "dora3"} <= {one["node"] for one in plain["by_node"]}
    moved = [",".join((row.split(",")[place]) for place in (0, 3, 2)) for row in rows]
    (tmp_path / "moved.csv").write_text("id,noise,height\n" + "\n".join(moved))
    again = command(*asked, "--graph", "moved.csv,edges.csv").json
    assert again["by_feature"] == plain["by_feature"], "columns in another order"
