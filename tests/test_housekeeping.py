"""One damaged thing does not hide the others, and a stored configuration can be run again."""

import json
import shutil
from pathlib import Path

from tests.support import write_graph

SMALL = ("--dataset", "synthetic:nodes=240,classes=6,features=16", "--set", "train.epochs=1")


def test_a_damaged_run_is_listed_as_such_beside_the_others(ipal, tmp_path):
    first, second = (
        Path(json.loads(ipal("run", *SMALL, "--seed", seed, "--json", check=True).stdout)["run"]) for seed in (0, 1)
    )
    (tmp_path / first / "result.json").write_text("{")
    rows = json.loads(ipal("list", "runs", "--json", check=True).stdout)
    assert {row["run"]: row["status"] for row in rows} == {first.name: "damaged", second.name: "finished"}


def test_a_damaged_graph_is_reported_beside_the_others(ipal, tmp_path):
    graphs = tmp_path / "data" / "graphs"
    graphs.mkdir(parents=True)
    write_graph(graphs / "good.npz")
    (graphs / "bad.npz").write_bytes(b"PK\x03\x04 not a graph")
    rows = {row["name"]: row for row in json.loads(ipal("data", "--json", data=tmp_path / "data", check=True).stdout)}
    assert rows["good"]["nodes"] == 40
    assert not rows["bad"]["here"]
    assert "bad.npz" in rows["bad"]["how_to_get"]


def test_the_stored_configuration_of_a_run_gives_the_same_run(ipal, tmp_path):
    first = json.loads(ipal("run", *SMALL, "--json", check=True).stdout)
    shutil.move(tmp_path / first["run"] / "config.yaml", tmp_path / "again.yaml")
    again = json.loads(ipal("run", "--config", "again.yaml", "--runs", "other", "--json", check=True).stdout)
    assert Path(again["run"]).name == Path(first["run"]).name
    assert again["accuracy_matrix"] == first["accuracy_matrix"]
