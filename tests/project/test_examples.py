"""The examples show what they claim to show; their page has the output and the time that they have."""

import importlib
import json
import re
import runpy
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.support import Command

PAGE = (PROJECT / "examples" / "README.md").read_text(encoding="utf-8")
PROGRAMS = sorted((PROJECT / "examples").glob("*.py"))
NOTEBOOKS = {path.name: json.loads(path.read_text()) for path in (PROJECT / "examples").glob("*.ipynb")}
NUMBER = re.compile(r"\d[\d.]*(?:e[+-]?\d+)?")


@pytest.fixture
def timed(request: pytest.FixtureRequest) -> Iterator[None]:
    """No more processor time than the page says, in which the start of Python counts; loading is not measured here."""
    importlib.import_module("torch_geometric.data")
    before = time.process_time()
    yield
    (seconds,) = re.findall(rf"^\| \[{request.param}\].*? \| (\d+) \|", PAGE, re.MULTILINE)
    assert time.process_time() - before < float(seconds)


def run(name: str) -> Any:
    """What the example's main() returns; its output is left to capsys."""
    return runpy.run_path(str(PROJECT / "examples" / name))["main"]()


def on_page(name: str) -> str:
    """The output that the page shows below the command that runs an example."""
    found = re.search(rf"```console\npython examples/{name}\n```\n\n```text\n(.*?)```", PAGE, flags=re.DOTALL)
    assert found, name
    return found[1]


def assert_as_on_page(printed: str, name: str) -> None:
    """The words of the page, and its numbers: these may differ by what other processors round otherwise."""
    for ours, theirs in zip(printed.strip().splitlines(), on_page(name).strip().splitlines(), strict=True):
        assert NUMBER.sub("#", ours).split() == NUMBER.sub("#", theirs).split()
        expected = [float(number) for number in NUMBER.findall(theirs)]
        points = 5 if "%" in ours else 0.03
        assert [float(number) for number in NUMBER.findall(ours)] == pytest.approx(expected, rel=0.03, abs=points), ours


def test_each_has_its_place_on_the_page() -> None:
    assert sorted(re.findall(r"^\| \[(.*?)\]", PAGE, re.MULTILINE)) == sorted([*NOTEBOOKS, *(p.name for p in PROGRAMS)])
    assert [len(path.read_text().splitlines()) < 60 for path in PROGRAMS] == [True, True]


def test_other_numbers_than_those_of_the_page_are_noticed() -> None:
    shown = on_page("fraud_stream.py")
    assert_as_on_page(shown.replace("72% of fraud D", "70% of fraud D"), "fraud_stream.py")
    with pytest.raises(AssertionError):
        assert_as_on_page(shown.replace("72% of fraud D", "60% of fraud D"), "fraud_stream.py")


@pytest.mark.parametrize("timed", ["fraud_stream.py"], indirect=True)
def test_rare_fraud_is_missed_by_a_model_whose_accuracy_looks_good(timed: None, capsys: Any) -> None:
    found = run("fraud_stream.py")
    assert found["EWC"]["accuracy"] > 0.9
    assert min(found["EWC"].values()) < 0.3
    assert min(found["closed form"].values()) > 0.9
    said = capsys.readouterr().out
    assert_as_on_page(said, "fraud_stream.py")
    *_, aside = re.findall(r"(\d+)% of fraud D, (\d+)% of the rest", said)
    assert int(aside[0]) > 10 * int(aside[1])


@pytest.mark.parametrize("timed", ["two_sites.py"], indirect=True)
def test_two_sites_have_the_model_of_both(timed: None, capsys: Any) -> None:
    found = run("two_sites.py")
    assert found["merged"] == found["in one place"] > 0.9
    assert max(found["first alone"], found["second alone"]) < 0.85, "each lacks a diagnosis"
    assert found["difference"] < 1e-6
    assert found["flagged"] == 0
    assert_as_on_page(capsys.readouterr().out, "two_sites.py")


# ---------------------------------------------------------------------- notebooks


def first_steps(namespace: dict[str, Any], said: str) -> None:
    assert "10 classes, accuracy on those of the first task:" in said
    assert namespace["model"].score(namespace["graph"]) > 0.9
    assert "rests on its settings" in said
    assert set(namespace["runs"]["method"]) == {"ncm", "analytic"}
    assert namespace["runs"]["AP"].min() > 80


def months_at_work(namespace: dict[str, Any], said: str) -> None:
    accuracies = [float(number) for number in re.findall(r"accuracy ([\d.]+)%", said)]
    assert len(accuracies) == 3
    assert min(accuracies) > 95
    found, lost = map(float, re.findall(r"rejected: ([\d.]+)% of the bots, ([\d.]+)%", said)[0])
    assert found > 90 > 8 > lost
    assert [one["what"] for one in namespace["model"].history_] == ["learned", "learned", "learned", "forgot"]
    assert "bot" in namespace["model"].classes_
    assert "feature names" in said  # the audit


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize(
    ("timed", "name", "check"),
    [
        ("first_steps.ipynb", "first_steps.ipynb", first_steps),
        ("months_at_work.ipynb", "months_at_work.ipynb", months_at_work),
    ],
    indirect=["timed"],
)
def test_the_cells_of_a_notebook_run_in_their_order(
    timed: None,
    name: str,
    check: Callable[[dict[str, Any], str], None],
    command: Command,
    asked: list[int],
    capsys: Any,
) -> None:
    namespace: dict[str, Any] = {}
    said = ""
    for cell in NOTEBOOKS[name]["cells"]:
        if cell["cell_type"] == "code":
            for line in (line for line in cell["source"] if line.startswith("!")):
                done = command(*line.removeprefix("!ipal ").split())
                assert done.code == 0, done.err
                said += done.out
            exec("".join(line for line in cell["source"] if not line.startswith("!")), namespace)
            said += capsys.readouterr().out
    check(namespace, said)


@pytest.mark.parametrize("notebook", NOTEBOOKS.values(), ids=list(NOTEBOOKS))
def test_a_notebook_has_no_outputs(notebook: dict[str, Any]) -> None:
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert {cell["cell_type"] for cell in notebook["cells"]} == {"markdown", "code"}
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_only_a_known_repository_gives_buttons_for_colab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "scripts" / "documentation")
    page = importlib.import_module("examples").everything
    assert "colab" not in page(None).lower()
    for address in ("https://github.com/some/where", "https://github.com/some/where.git"):
        assert page(address).count("https://colab.research.google.com/github/some/where/blob/main/examples/") == len(
            NOTEBOOKS
        )
