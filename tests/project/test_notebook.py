"""The notebook of the examples: it is one, it is stripped, and its cells run from the first to the last."""

import json
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.support import Command

(NOTEBOOK,) = (PROJECT / "examples").glob("*.ipynb")
CONTENT = json.loads(NOTEBOOK.read_text())
CODE = [cell for cell in CONTENT["cells"] if cell["cell_type"] == "code"]


def run(source: list[str], namespace: dict[str, Any], command: Command) -> None:
    """A cell in a namespace; a line that begins with ! is a command."""
    for line in (line for line in source if line.startswith("!")):
        done = command(*line.removeprefix("!ipal ").split())
        assert done.code == 0, done.err
    exec("".join(line for line in source if not line.startswith("!")), namespace)


@pytest.mark.usefixtures("hurry")
def test_its_cells_run_and_learn(command: Command, asked: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}
    said = ""
    for cell in CODE:
        run(cell["source"], namespace, command)
        said += capsys.readouterr().out
    assert "10 classes, accuracy on those of the first task:" in said
    assert len(asked) == 4, "each by `score`, on nodes that were not learned from"
    assert namespace["model"].score(namespace["graph"]) > 0.9
    assert "rests on its settings" in said
    assert set(namespace["runs"]["method"]) == {"ncm", "analytic"}
    assert namespace["runs"]["AP"].min() > 80


def test_it_is_a_notebook_without_outputs() -> None:
    assert (CONTENT["nbformat"], CONTENT["nbformat_minor"]) == (4, 5)
    assert {cell["cell_type"] for cell in CONTENT["cells"]} == {"markdown", "code"}
    ids = [cell["id"] for cell in CONTENT["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CODE)
    assert all(isinstance(line, str) for cell in CONTENT["cells"] for line in cell["source"])
    assert NOTEBOOK.stat().st_size < 20_000


def test_the_examples_page_names_it() -> None:
    assert NOTEBOOK.name in (PROJECT / "examples" / "README.md").read_text()
