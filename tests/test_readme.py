"""What the README tells a newcomer to type, works."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.support import write_graph

README = (PROJECT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


COMMANDS = [line.partition("#")[0].strip() for block in blocks("console") for line in block.splitlines()]


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("ipal ")])
def test_the_commands_of_the_readme_run(line, ipal, tmp_path):
    write_graph(tmp_path / "my-graph.npz")
    assert ipal(*shlex.split(line)[1:], check=True).stdout


def test_the_python_of_the_readme_runs_and_learns(tmp_path):
    (code,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    accuracies = [float(value) for value in re.findall(r"\] (\d\.\d+)", done.stdout)]
    assert len(accuracies) == 4
    assert min(accuracies) > 0.8
    assert (tmp_path / "digits.safetensors").exists()


def test_make_run_does_what_the_readme_says(ipal):
    assert {"make run", "make test"} <= set(COMMANDS)
    recipe = subprocess.run(["make", "-n", "run"], capture_output=True, text=True, cwd=PROJECT, timeout=60).stdout
    (command,) = [line for line in recipe.splitlines() if "bin/ipal" in line]
    said = ipal(*shlex.split(command)[1:], check=True)
    for words in ("Accuracy (%)", "AP", "AF", "time", "peak memory", "retained", "no node is stored", "folder"):
        assert words in said.stdout
    assert "epochs" in said.stderr  # the progress bar
    performance = float(re.search(r"^AP\s+([\d.]+) %", said.stdout, flags=re.MULTILINE)[1])
    assert performance > 94


def test_ci_calls_make_test_and_nothing_else():
    lines = (PROJECT / ".ci" / "run").read_text().split("\n")
    assert [line for line in lines if "make" in line] == ["exec make test"]


@pytest.mark.parametrize("what", ["choose", "ablate"])
def test_the_tables_are_printed(what, tmp_path, monkeypatch, capsys):
    """The README's script, on a tiny graph and with the smallest grid."""
    tables = runpy.run_path(str(PROJECT / "scripts" / "tables.py"), run_name="tables")
    monkeypatch.setitem(tables["choose"].__globals__, "GRID", {"train.epochs": [1], "ipal.gamma": [0.1, 0.2]})
    monkeypatch.setitem(tables["choose"].__globals__, "ABLATIONS", {"all": {}, "no DBP": {"ipal.boundary": False}})
    # In this process: a pool would start others, which do not know the smaller grid.
    monkeypatch.setitem(tables["choose"].__globals__, "ProcessPoolExecutor", lambda jobs: Here())
    dataset = "synthetic:nodes=240,classes=6,features=16"
    arguments = ["tables.py", what, "--datasets", dataset, "--runs", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    tables["main"]()
    printed = capsys.readouterr().out
    assert len([line for line in printed.splitlines() if line.count("±") >= 1]) == 2
    assert ("highest mean validation AP" in printed) == (what == "choose")
    assert len(list(Path(tmp_path).glob("*/result.json"))) == 10


class Here:
    """A pool of no processes."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    map = staticmethod(map)
