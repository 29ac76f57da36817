"""One damaged thing does not hide the others, stored configurations run again, code is used."""

import ast
import re
import shutil
from collections import Counter
from pathlib import Path

from tests.conftest import PROJECT

SMALL = ("--dataset", "synthetic:nodes=240,classes=6,features=16", "--set", "train.epochs=1")


def test_a_damaged_run_is_listed_as_such_beside_the_others(command, tmp_path):
    first, second = (Path(command("run", *SMALL, "--seed", seed, "--json").json["run"]) for seed in (0, 1))
    (tmp_path / first / "result.json").write_text("{")
    rows = command("list", "runs", "--json").json
    assert {row["run"]: row["status"] for row in rows} == {first.name: "damaged", second.name: "finished"}


def test_the_stored_configuration_of_a_run_gives_the_same_run(command, tmp_path):
    first = command("run", *SMALL, "--json").json
    shutil.move(tmp_path / first["run"] / "config.yaml", tmp_path / "again.yaml")
    again = command("run", "--config", "again.yaml", "--runs", "other", "--json").json
    assert Path(again["run"]).name == Path(first["run"]).name
    assert again["accuracy_matrix"] == first["accuracy_matrix"]


def test_every_function_is_used_outside_the_tests() -> None:
    package = [path.read_text() for path in (PROJECT / "src").rglob("*.py")]
    others = [path.read_text() for folder in ("scripts", "benchmarks") for path in (PROJECT / folder).rglob("*.py")]
    others += [path.read_text() for path in (PROJECT / "src").rglob("*.yaml")]  # functions of the catalogue
    words = Counter(word for text in package + others for word in re.findall(r"\w+", text))
    functions = [node for text in package for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    once = [node for node in functions if words[node.name] == 1 and not node.name.startswith("__")]
    # A decorator may be what uses a function, as with commands.
    assert [node.name for node in once if not node.decorator_list] == []
