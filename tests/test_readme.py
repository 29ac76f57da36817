"""What the README tells a newcomer to type, works."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.conftest import PROJECT
from tests.support import write_graph

README = (PROJECT / "README.md").read_text()


# Tables that `ipal report` writes name the commands that made them; those take hours and real data.
BY_HAND = re.sub(r"^<!-- ipal report: .*?^<!-- end -->", "", README, flags=re.DOTALL | re.MULTILINE)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", BY_HAND, flags=re.DOTALL)


def commands(block: str) -> list[str]:
    return [line.partition("#")[0].strip() for line in block.splitlines()]


COMMANDS = [line for block in blocks("console") for line in commands(block)]


@pytest.mark.parametrize("block", [block for block in blocks("console") if "ipal " in block])
def test_the_commands_of_the_readme_run(block, ipal, tmp_path):
    """One block after the other in a folder of its own, as one types it."""
    write_graph(tmp_path / "my-graph.npz")
    shutil.copytree(PROJECT / "experiments", tmp_path / "experiments")
    for line in commands(block):
        assert line.startswith("ipal "), line
        done = ipal(*shlex.split(line)[1:], check=True)
        assert done.stdout or done.stderr


def test_the_python_of_the_readme_runs_and_learns(tmp_path):
    code = "\n".join(blocks("python"))  # one after the other: later blocks use what earlier ones made
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    accuracies = [float(value) for value in re.findall(r"\] (\d\.\d+)", done.stdout)]
    assert len(accuracies) == 4
    assert min(accuracies) > 0.8
    assert (tmp_path / "digits.safetensors").exists()
    assert "[0 1 2 3 4 5 6 8 9]" in done.stdout, "merged, and 7 forgotten"


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
