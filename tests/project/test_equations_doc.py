"""The page of equations says what the code says, and leaves no equation out."""

import re
import runpy

import pytest

from ipal.estimator.registry import METHODS
from tests.conftest import PROJECT

SCRIPT = runpy.run_path(str(PROJECT / "scripts" / "equations.py"))


def test_the_page_is_what_the_script_prints(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(PROJECT / "scripts" / "equations.py"), run_name="__main__")
    written = (PROJECT / "docs" / "equations.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == written, "docs/equations.md is out of date: run `make docs`"


def test_every_equation_has_a_test_by_hand() -> None:
    known = SCRIPT["equations"]()
    tests = SCRIPT["tests"](known)
    without = [
        equation.name
        for equation in known
        if not any(test.endswith(f"::test_{equation.test_name}_by_hand") for test in tests[equation.test_name])
    ]
    assert not without


def test_every_equation_of_the_paper_has_a_number() -> None:
    # Of other works only those numbers are given that are sure.
    own = [equation for equation in SCRIPT["equations"]() if not equation.origin]
    assert len(own) >= 17
    assert not [equation.name for equation in own if not equation.numbers]


def test_every_other_work_is_named_with_its_year() -> None:
    origins = {equation.origin for equation in SCRIPT["equations"]() if equation.origin}
    assert len(origins) >= 10
    assert not [origin for origin in origins if not re.fullmatch(r"[A-Z][\w.& -]+ (et al\. )?(19|20)\d\d", origin)]


def test_every_method_with_an_equation_of_its_own_is_on_the_page() -> None:
    # Bare and Joint are cross-entropy and nothing else, PCL's contrast is IPAL's, NCM and MAS have no more than
    # the means of propagated features and of gradients. Analytic's are elsewhere in closed_form.
    without = {"bare", "joint", "pcl", "ncm", "mas", "analytic"}
    files = {f"ipal.{equation.name.rpartition('.')[0]}" for equation in SCRIPT["equations"]()} | {"ipal.methods.ipal"}
    assert not {method.__module__ for name, method in METHODS.items() if name not in without} - files


def test_an_equation_without_a_number_stands_after_the_papers_own_with_a_dash() -> None:
    rows = [line for line in SCRIPT["page"]().splitlines() if line.startswith("| ")][2:]
    labels = [row.split("|")[1].strip() for row in rows]
    own = [label for label in labels if " of " not in label]
    assert labels[: len(own)] == own == sorted(own, key=int)
    others = labels[len(own) :]
    assert "– of Magistri et al. 2024" in others
    assert "3 of Kirkpatrick et al. 2017" in others
    # Every equation has a row, whether it has a number or not.
    names = {re.search(r"\[`(.+)`\]", row)[1] for row in rows}
    assert names == {equation.name for equation in SCRIPT["equations"]()}


def test_every_equation_that_names_a_source_shows_its_mathematics() -> None:
    named = [equation for equation in SCRIPT["equations"]() if equation.source.startswith("Source:")]
    assert len(named) >= 17
    assert not [equation.name for equation in named if not equation.math]


def test_the_papers_equations_are_all_here() -> None:
    # Eq. 14 to 23 are the analysis of its appendix: what of it is code may be here.
    numbers = {number for equation in SCRIPT["equations"]() if not equation.origin for number in equation.numbers}
    assert numbers >= {*range(1, 14), 24}
    assert numbers <= set(range(1, 25))
