"""Graphs of one's own, and `ipal data`."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from ipal.data.datasets import Dataset, load
from tests.support import Command, sparse_parts, write_graph

# ---------------------------------------------------------------------- graphs of one's own


def test_a_graph_without_features_is_learned_from_and_the_record_says_how(command: Command, tmp_path: Path) -> None:
    write_graph(tmp_path / "bare.npz", x=None)
    options = ["--dataset", "bare.npz", "--set", "train.epochs=2", "--threads", 1]
    result = command("run", *options, "--json").json
    assert "structural features" in result["data"]["preprocessing"]
    # No result on such features is called isolated without the remark, to people as to scripts.
    assert "structural" in command("run", *options).out


def test_the_data_root_is_where_names_are_looked_up(command: Command, tmp_path: Path) -> None:
    (tmp_path / "root" / "graphs").mkdir(parents=True)
    write_graph(tmp_path / "root" / "graphs" / "friends.npz")
    assert command("run", "--dataset", "friends").code == 2
    options = ["--set", "train.epochs=1", "--threads", 1, "--data-root", "root", "--json"]
    result = command("run", "--dataset", "friends", *options).json
    assert Path(result["run"]).name.startswith("friends-ipal")
    names = {row["name"] for row in command("list", "datasets", "--data-root", "root", "--json").json}
    assert "friends" in names


# ---------------------------------------------------------------------- data


def test_graphs_are_shown_by_name_and_by_path_or_how_to_get_them(command: Command, tmp_path: Path) -> None:
    (tmp_path / "root" / "graphs").mkdir(parents=True)
    path = write_graph(tmp_path / "root" / "graphs" / "friends.npz")
    names = ("friends", "cs", path, "synthetic:nodes=50,classes=2")
    rows = command("data", *names, "--data-root", "root", "--json").json
    assert [row["here"] for row in rows] == [True, False, True, True]
    assert (rows[0]["nodes"], rows[0]["features"], len(rows[0]["classes"])) == (40, 5, 4)
    assert rows[0]["hash"] == rows[2]["hash"] == load(str(path)).hash
    assert Path(rows[0]["path"]).resolve() == path
    assert "--download cs" in rows[1]["how_to_get"]
    shown = command("data", *names, "--data-root", "root").out.replace("\n", " ")
    assert "ipal data --download cs" in shown
    assert rows[0]["hash"] in shown
    assert command("data").code == 2


def test_a_download_is_fetched_and_surveyed(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Dataset
) -> None:
    import torch_geometric.datasets as stock

    def fetch(root: str, name: str) -> None:
        """In place of the stock class: leaves its file where the real one would."""
        path = Path(root) / name / "raw" / "ms_academic_cs.npz"
        path.parent.mkdir(parents=True)
        x = sparse_parts("attr", sp.csr_array(tiny.graph.x))
        np.savez(path, **x, **sparse_parts("adj", tiny.graph.aggregation("sum")), labels=tiny.y)

    monkeypatch.setattr(stock, "Coauthor", fetch)
    done = command("data", "cs", "--download", "--data-root", "root", "--json")
    assert done.json[0]["here"] is True
    assert done.json[0]["nodes"] == 240
    assert "downloading cs" in done.err
