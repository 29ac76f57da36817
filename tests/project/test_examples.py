"""The examples show what they claim to show, and their page prints what they print."""

import hashlib
import re
import runpy
from typing import Any

import pytest

from tests.conftest import PROJECT

EXAMPLES = sorted((PROJECT / "examples").glob("*.py"))
PAGE = (PROJECT / "examples" / "README.md").read_text()
NUMBER = re.compile(r"\d[\d.]*(?:e[+-]?\d+)?")


def run(name: str, *arguments: Any) -> Any:
    """What the example's main() returns; its output is left to capsys."""
    return runpy.run_path(str(PROJECT / "examples" / name))["main"](*arguments)


def on_page(name: str) -> str:
    """The output that the page shows below the command that runs an example."""
    found = re.search(rf"```console\npython examples/{name}\n```\n\n```text\n(.*?)```", PAGE, flags=re.DOTALL)
    assert found, name
    return found[1]


def assert_as_on_page(printed: str, name: str) -> None:
    """The words of the page, and its numbers: these may differ by what other processors round otherwise."""
    pairs = list(zip(printed.strip().splitlines(), on_page(name).strip().splitlines(), strict=True))
    for ours, theirs in pairs:
        ours, theirs = (re.sub(r"^version: \w+", "version:", line) for line in (ours, theirs))
        words, numbers = zip(
            *((NUMBER.sub("#", line).split(), NUMBER.findall(line)) for line in (ours, theirs)), strict=True
        )
        assert words[0] == words[1]
        points = 5 if "%" in ours else 0.03
        assert [float(n) for n in numbers[0]] == pytest.approx([float(n) for n in numbers[1]], rel=0.03, abs=points), (
            ours
        )


def test_each_is_short_and_has_its_place_on_the_page():
    assert len(EXAMPLES) == 3
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) < 60, path.name
        assert on_page(path.name)


def test_other_numbers_than_those_of_the_page_are_noticed():
    shown = on_page("fraud_stream.py")
    assert_as_on_page(shown.replace("72% of fraud D", "70% of fraud D"), "fraud_stream.py")
    with pytest.raises(AssertionError):
        assert_as_on_page(shown.replace("72% of fraud D", "60% of fraud D"), "fraud_stream.py")


def test_rare_fraud_is_missed_by_a_model_whose_accuracy_looks_good(capsys):
    found = run("fraud_stream.py")
    assert found["EWC"]["accuracy"] > 0.9
    assert min(found["EWC"].values()) < 0.3
    assert min(found["closed form"].values()) > 0.9
    said = capsys.readouterr().out
    assert_as_on_page(said, "fraud_stream.py")
    *_, aside = re.findall(r"(\d+)% of fraud D, (\d+)% of the rest", said)
    assert int(aside[0]) > 10 * int(aside[1])


def test_two_sites_have_the_model_of_both(capsys):
    found = run("two_sites.py")
    assert found["merged"] == found["in one place"] > 0.9
    assert max(found["first alone"], found["second alone"]) < 0.85, "each lacks a diagnosis"
    assert found["difference"] < 1e-6
    assert found["flagged"] == 0
    assert_as_on_page(capsys.readouterr().out, "two_sites.py")


def test_a_model_lives_for_four_months(tmp_path, capsys):
    found = run("four_months.py", str(tmp_path))
    assert found["known lost"] < 0.1
    assert found["unknown found"] > 0.9
    assert found["accuracy"] > 0.9
    version = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    assert version.startswith(found["version"]), "the server has the model that forgot"
    assert found["history"][:2] == ["learned", "learned"]
    assert found["history"][-1] == "forgot"
    assert_as_on_page(capsys.readouterr().out, "four_months.py")
