"""A method that stores raw nodes is marked wherever it appears."""

from pathlib import Path

import pytest

from ipal.bench import suite
from tests.snippets import in_this_process
from tests.support import Command

GRAPH = "synthetic:nodes=240,classes=6,features=16"


@pytest.mark.parametrize(("method", "stores"), [("er-gnn", True), ("gem", True), ("joint", True), ("ewc", False)])
def test_a_method_that_stores_exemplars_is_marked_where_it_is_shown(
    command: Command, method: str, stores: bool
) -> None:
    shown = command("run", "--dataset", GRAPH, "--method", method, "--set", "train.epochs=1")
    assert ("raw nodes ARE stored" in shown.out) == stores
    assert ("no node is stored" in shown.out) != stores
    assert ("†" in command("list", "runs").out) == stores
    listed = {row["name"]: row for row in command("list", "methods", "--json").json}
    assert listed[method]["stores_exemplars"] is stores


def test_a_bench_marks_them_too(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(suite.ENGINES, "local", in_this_process)
    head = f"kind: table1\nseeds: 1\nall: {{dataset: '{GRAPH}', train.epochs: 1}}\nentries:\n"
    (tmp_path / "two.yaml").write_text(head + "  gem: {}\n  bare: {}\n")
    done = command("bench", "two.yaml")
    assert "gem †" in done.out
    assert "bare †" not in done.out
    assert "† stores raw nodes" in done.out
    command("report")
    table = (tmp_path / "report" / "table1.md").read_text()
    assert "| GEM † |" in table
    assert "| Bare |" in table
