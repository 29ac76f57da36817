"""A run that is finished."""

import shutil
from pathlib import Path

import pytest

from tests.cli.support import SMALL
from tests.support import Command


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test that asks for a finished run leaves a copy for the others."""
    return tmp_path_factory.mktemp("finished")


@pytest.fixture
def finished(command: Command, made_once: Path, tmp_path: Path) -> Path:
    """The folder of a finished run, under runs/."""
    if not any(made_once.iterdir()):
        made = Path(command("run", *SMALL, "--json").json["run"])
        shutil.copytree(made, made_once / made.name)
    runs = Path(shutil.copytree(made_once, tmp_path / "runs", dirs_exist_ok=True))
    return next(runs.iterdir()).resolve()
