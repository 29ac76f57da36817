"""One run, whole and broken off: made once, read many times."""

import shutil
from contextlib import suppress
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
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """The same run of three tasks twice: finished, and interrupted in its second task."""
    resolved = runner.resolve(run_config(SMALL))
    folders = {}
    for name, stop in (("finished", None), ("unfinished", 5)):
        folders[name] = RunStore(tmp_path_factory.mktemp(name)).folder_for(resolved.config)
        with suppress(KeyboardInterrupt):
            runner.run(resolved, folders[name], Watcher(stop), checkpoint_every=1)
    assert folders["finished"].is_finished
    assert folders["unfinished"].status == "resumable"
    return folders


@pytest.fixture
def finished(made: dict[str, RunFolder]) -> RunFolder:
    return made["finished"]


@pytest.fixture
def unfinished(made: dict[str, RunFolder]) -> RunFolder:
    return made["unfinished"]


@pytest.fixture
def own(finished: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of the finished run, to be changed."""
    return RunFolder(Path(shutil.copytree(finished.path, tmp_path / "runs" / finished.path.name)))
