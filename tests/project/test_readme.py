"""What the README tells a newcomer to type, works; snippets.py says how."""

import re
import shlex
import subprocess

import pytest

from tests.conftest import PROJECT
from tests.snippets import Block, Visitor, blocks
from tests.support import Command

BLOCKS = blocks(PROJECT / "README.md")
TEXT = (PROJECT / "README.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "console"], ids=lambda block: block.place
)
def test_the_commands_of_the_readme_run(block: Block, visitor: Visitor) -> None:
    """Each block in a folder of its own: the README is no story that is read from the beginning."""
    visitor.follow(block)


def test_the_python_of_the_readme_runs_and_learns(
    visitor: Visitor, asked: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    for block in BLOCKS:
        if block.language == "python":
            visitor.follow(block)
    said = capsys.readouterr().out
    accuracies = [float(value) for value in re.findall(r"\] (\d\.\d+)", said)]
    assert len(accuracies) == len(asked) == 4, "each by `score`, on nodes that were not learned from"
    assert min(asked) > 200
    assert min(accuracies) > 0.8
    assert (visitor.folder / "digits.safetensors").exists()
    assert "bytes" in said  # the memory report


def test_the_readme_is_short() -> None:
    assert len(TEXT.split()) < 1000


def test_nothing_else_is_in_the_readme() -> None:
    assert {block.language for block in BLOCKS} == {"console", "python"}
    assert [block.title for block in BLOCKS if block.kind != "run"] == ["needs a checkout"]


def test_the_installation_for_a_cpu_comes_first() -> None:
    section = TEXT.partition("## Install")[2].partition("\n## ")[0]
    assert section.index("CPU") < section.index("pip install .") < section.index("make run")
    assert not re.search(r"index-url|https?://", section), "how to get a CPU build is PyTorch's to say"


@pytest.mark.usefixtures("short_tsne")
def test_make_run_does_what_the_readme_says(command: Command) -> None:
    assert {"make run", "make test"} <= {line.partition("#")[0].strip() for block in BLOCKS for line in block.commands}
    recipe = subprocess.run(["make", "-n", "run"], capture_output=True, text=True, cwd=PROJECT, timeout=60).stdout
    (line,) = [line for line in recipe.splitlines() if "bin/ipal" in line]
    said = command(*shlex.split(line)[1:])
    assert said.code == 0, said.err
    for words in ("Accuracy (%)", "AP", "AF", "time", "peak memory", "retained", "no node is stored", "folder"):
        assert words in said.out
    assert "task 4 of 4 learned, AP so far" in said.err  # as it goes
    performance = float(re.search(r"^AP\s+([\d.]+) %", said.out, flags=re.MULTILINE)[1])
    assert performance > 94


def test_ci_calls_make_test_and_nothing_else():
    lines = (PROJECT / ".ci" / "run").read_text().split("\n")
    assert [line for line in lines if "make" in line] == ["exec make test"]
