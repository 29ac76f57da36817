"""One run of three tasks: made once, read many times."""

import shutil
from pathlib import Path

import pytest

from ipal.config import run_config
from ipal.runs import runner
from ipal.runs.run_folder import RunFolder, RunStore
from tests.support import Watcher

SMALL = {
    "dataset": "synthetic:nodes=240,classes=6,features=16,signal=1",
    "train": {"epochs": 3},
    "encoder": {"hidden": 8, "width": 8},
}


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    resolved = runner.resolve(run_config(SMALL))
    folder = RunStore(tmp_path_factory.mktemp("runs")).folder_for(resolved.config)
    runner.run(resolved, folder, Watcher())
    return folder


@pytest.fixture
def own(finished: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of the finished run, to be changed."""
    return RunFolder(Path(shutil.copytree(finished.path, tmp_path / "runs" / finished.path.name)))
