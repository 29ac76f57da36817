"""A fitted learner, and run folders to damage: finished, and interrupted."""

import shutil
from pathlib import Path

import pytest

from ipal import IPAL, TrainConfig
from tests.bad_input.support import learn, some_data


@pytest.fixture(scope="session")
def fitted() -> IPAL:
    return IPAL(train=TrainConfig(epochs=1)).partial_fit(some_data())


@pytest.fixture
def saved(fitted: IPAL, tmp_path: Path) -> Path:
    fitted.save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn(tmp_path_factory.mktemp("finished")).path


@pytest.fixture(scope="session")
def interrupted_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn(tmp_path_factory.mktemp("interrupted"), stop_after=7).path


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_once, tmp_path / "runs" / finished_once.name))


@pytest.fixture
def interrupted(interrupted_once: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(interrupted_once, tmp_path / "runs" / interrupted_once.name))
    assert (folder / "checkpoint.safetensors").exists()
    assert not (folder / "result.json").exists()
    return folder
