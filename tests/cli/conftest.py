"""A run that is finished."""

from pathlib import Path

import pytest

from tests.cli.support import SMALL
from tests.support import Command


@pytest.fixture
def finished(command: Command) -> Path:
    """The folder of a finished run, under runs/."""
    folder = Path(command("run", *SMALL, "--json").json["run"])
    return folder.resolve()
