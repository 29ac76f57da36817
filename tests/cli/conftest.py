"""A run that is finished, and models of the closed form that are saved."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipal import Analytic
from ipal.data.datasets import Dataset
from tests.cli.merge_and_forget_support import model, saved, those, view
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


@pytest.fixture
def taught(command: Command, tiny: Dataset) -> Callable[..., Analytic]:
    """A model that learned the whole tiny graph, as m.safetensors."""
    return lambda **more: saved(model().partial_fit(view(tiny, **more)), "m.safetensors")


@pytest.fixture
def pair(command: Command, tiny: Dataset) -> Callable[..., None]:
    """a.safetensors with classes 0 to 2, b.safetensors with 3 to 5; b may have other settings."""

    def make(changes: dict[str, Any] | None = None) -> None:
        saved(model().partial_fit(view(tiny, those(tiny, 0, 1, 2))), "a.safetensors")
        saved(model(**(changes or {})).partial_fit(view(tiny, those(tiny, 3, 4, 5))), "b.safetensors")

    return make
