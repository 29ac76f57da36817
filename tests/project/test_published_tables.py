"""The tables that others printed: the script that writes them, and the page it writes to."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from ipal.bench.experiment_file import read_experiment
from ipal.estimator.registry import METHODS
from ipal.evaluation.metrics import METRICS
from tests.conftest import PROJECT

PATH = PROJECT / "scripts" / "published.py"
SCRIPT = runpy.run_path(str(PATH))
PRINTED, COLUMNS, OURS = SCRIPT["PRINTED"], SCRIPT["COLUMNS"], SCRIPT["OURS"]
PAGE = (PROJECT / "docs" / "published.md").read_text(encoding="utf-8")
MARKS = re.compile(r"<!-- published: (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)


def row(label: str, metrics: dict[str, Any], runs: int = 5) -> dict[str, Any]:
    keeps = METHODS.find(label).keeps != "statistics"
    named = [f"run-{seed}" for seed in range(runs)]
    return {"label": label, "method": label, "stores_exemplars": keeps, "runs": named, "metrics": metrics}


def scores(*names: str, mean: float = 80.0, sd: float | None = 1.5) -> dict[str, Any]:
    return {name: {"mean": mean + place, "sd": sd} for place, name in enumerate(names)}


def cells(table: str) -> list[list[str]]:
    """The lines of a Markdown table, its head first."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    head, _, *body = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return [head, *body]


def of_others(name: str) -> list[list[str]]:
    """The rows as the dict of the script says they are."""
    printed, width = PRINTED[name], len(COLUMNS[name])
    return [[method, "theirs", *one, *[""] * (width - len(one))] for method, one in printed["rows"].items()]


def run_script(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", ["published.py", *map(str, arguments)])
    runpy.run_path(str(PATH), run_name="__main__")


FEW = ("overall_accuracy", "mean_overall_accuracy", "class_accuracy", "mean_class_accuracy")
MADE = {
    "graphkeeper-group3": [
        row("analytic", scores("average_performance", "average_forgetting", mean=0.126, sd=None), runs=1),
        row("joint", scores("average_performance", "average_forgetting"), runs=20),
        row("ewc", {}, runs=0),
    ],
    "hopral-computers": [row("ipal", scores("average_performance", "average_forgetting"))],
    "fewshot-cs": [row("ncm", scores(*FEW))],
    "llm4gcl-cora": [row("er-gnn", scores("overall_accuracy", "mean_overall_accuracy"))],
    "somebody else's": [row("bare", {})],
}
EXPECTED = {
    "graphkeeper-group3": [
        ["Joint †", "ours, 20 seeds", "80.00 ± 1.50", "–"],
        ["EWC", "ours, 0 seeds", "–", "–"],
        ["closed form", "ours, 1 seed", "0.13", "1.13"],
    ],
    "hopral-computers": [["IPAL", "ours, 5 seeds", "80.00 ± 1.50", "81.00 ± 1.50"]],
    "fewshot-cs": [["NCM", "ours, 5 seeds", "", "80.00 ± 1.50 / 81.00 ± 1.50", "82.00 ± 1.50 / 83.00 ± 1.50"]],
    "llm4gcl-cora": [["ER-GNN †", "ours, 5 seeds", "81.00 ± 1.50 / 80.00 ± 1.50"]],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_others_come_first_and_then_ours_in_a_fixed_order(name: str, tmp_path: Path) -> None:
    (tmp_path / "made.json").write_text(json.dumps(MADE))
    found = SCRIPT["read"]([tmp_path / "made.json"])
    head, *body = cells(SCRIPT["table"](name, found[name]))
    assert head == ["method", "source", *COLUMNS[name]]
    assert body == of_others(name) + EXPECTED[name]


def test_a_table_is_written_between_its_marks_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = "<!-- published: {} -->".format
    other = f"{begin('llm4gcl-cora')}\nas it was\n<!-- end -->\nThe end.\n"
    page, made = tmp_path / "page.md", tmp_path / "made.json"
    page.write_text(f"Before\n{begin('fewshot-cs')}\nold\n<!-- end -->\n{other}")
    made.write_text(json.dumps({"fewshot-cs": MADE["fewshot-cs"]}))
    for _ in range(2):  # the second time changes nothing
        run_script(monkeypatch, made, "--write", "--page", page)
        text = page.read_text()
        assert text.startswith(f"Before\n{begin('fewshot-cs')}\n\n| method |")
        assert text.endswith(f"closed form.\n\n<!-- end -->\n{other}")
        assert cells(dict(MARKS.findall(text))["fewshot-cs"])[-1] == EXPECTED["fewshot-cs"][0]
    made.write_text(json.dumps({"fewshot-computers": []}))
    with pytest.raises(SystemExit, match="published: fewshot-computers"):
        run_script(monkeypatch, made, "--write", "--page", page)
    assert page.read_text() == text


def test_every_experiment_has_its_marks_in_the_page_once() -> None:
    assert sorted(name for name, _ in MARKS.findall(PAGE)) == sorted(PRINTED) == sorted(COLUMNS)
    assert PAGE.count("<!-- end -->") == len(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_the_page_has_what_others_printed_and_rows_of_known_methods(name: str) -> None:
    text = dict(MARKS.findall(PAGE))[name]
    head, *body = cells(text)
    theirs = of_others(name)
    assert head == ["method", "source", *COLUMNS[name]]
    assert body[: len(theirs)] == theirs
    ours = body[len(theirs) :]
    titles = [method.removesuffix(" †") for method, *_ in ours]
    assert titles == [title for title in OURS.values() if title in titles]
    assert all(re.fullmatch(r"ours, \d+ seeds?", source) for _, source, *_ in ours)
    missing = re.search(r"^Ours, not run yet: (.*)\.$", text, re.MULTILINE)
    assert sorted(titles + (missing[1].split(", ") if missing else [])) == sorted(OURS.values())


@pytest.mark.parametrize("name", PRINTED)
def test_ours_are_the_entries_of_the_experiment(name: str) -> None:
    """So that no row is lost on the way to the page."""
    experiment = read_experiment(PROJECT / "experiments" / f"{name}.yaml")
    assert {entry.label for entry in experiment.entries} == set(OURS)
    assert f"experiments/{name}.yaml" in PAGE
    assert {metric for metrics in COLUMNS[name].values() for metric in metrics} <= {
        one.name for one in METRICS.values()
    }
