"""The page of equations says what the code says, and leaves no equation out."""

import runpy

import pytest

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


def test_every_equation_has_a_number() -> None:
    assert not [equation.name for equation in SCRIPT["equations"]() if not equation.numbers]


def test_every_equation_that_names_a_source_shows_its_mathematics() -> None:
    named = [equation for equation in SCRIPT["equations"]() if equation.source.startswith("Source:")]
    assert len(named) >= 17
    assert not [equation.name for equation in named if not equation.math]


def test_the_papers_equations_are_all_here() -> None:
    # Eq. 1 is the replay that the paper improves on; Eq. 14 to 23 are the analysis of its appendix.
    numbers = {number for equation in SCRIPT["equations"]() if not equation.origin for number in equation.numbers}
    assert numbers == {*range(2, 14), 24}
