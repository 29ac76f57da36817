"""The Dockerfile: everything that it names is there, and it holds no address of an index."""

import re
import shlex
from pathlib import Path

from ipal.cli.serve import serve

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = [line for line in TEXT.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]


def test_what_is_copied_is_there_and_sent() -> None:
    sent = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"]
    named = [
        name
        for line in INSTRUCTIONS
        if line.startswith("COPY") and "--from" not in line
        for name in shlex.split(line)[1:-1]
    ]
    assert sorted(named) == sorted(sent)
    assert all((ROOT / name).exists() for name in named)


def test_it_runs_a_command_with_options_that_there_are() -> None:
    words = re.findall(r'"([^"]+)"', next(line for line in INSTRUCTIONS if line.startswith("ENTRYPOINT")))
    words += re.findall(r'"([^"]+)"', next(line for line in INSTRUCTIONS if line.startswith("CMD")))
    assert words[:2] == ["ipal", "serve"]
    options = {word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
    assert options == {"host", "port", "watch"}
    assert options <= set(serve.__annotations__)
    assert "[serve]" in TEXT
    assert "serve = [" in (ROOT / "pyproject.toml").read_text()


def test_every_version_is_pinned() -> None:
    images = [line.split()[1] for line in INSTRUCTIONS if line.startswith("FROM")]
    assert images == ["python:${PYTHON}"] * 2
    assert re.search(r"^ARG PYTHON=3\.\d+\.\d+-slim-\w+$", TEXT, re.MULTILINE)
    installs = [line for line in INSTRUCTIONS if "pip install" in line]
    assert all("constraints.txt" in line for line in installs)
    assert not re.search(r"[<>~]=", " ".join(installs))
    assert len(re.findall(r"^torch==[\d.]+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)) == 1


def test_it_runs_as_nobody_in_particular_and_is_looked_after() -> None:
    kinds = [line.split()[0] for line in INSTRUCTIONS]
    assert kinds.index("USER") < kinds.index("ENTRYPOINT")
    assert "USER root" not in TEXT
    assert "HEALTHCHECK" in kinds
    assert "/health" in TEXT


def test_indexes_are_given_by_whoever_builds() -> None:
    assert re.findall(r"https?://[\w.]+", TEXT) == ["http://127.0.0.1"]
    assert 'ARG TORCH_INDEX=""' in TEXT
    assert 'ARG PIP_INDEX=""' in TEXT
    assert not re.search(r"IPAL_TOKEN=|TOKEN=\w", TEXT)
