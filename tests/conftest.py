"""What all tests share: tiny graphs, a way to run the command, and where the real data lie."""

import gc
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock

from tests.support import Command, Ipal, Outcome, install_package

# The process that hands out tests to others reads this file before it starts them, and needs nothing else: torch and
# what loads it are imported where they are used.
if TYPE_CHECKING:
    from ipal.data.datasets import Dataset
    from ipal.data.streams import TaskStream
    from tests.snippets import Visitor

PROJECT = Path(__file__).parents[1]
os.environ["SOURCE_DATE_EPOCH"] = "1700000000"  # a model names the time of every change: equal ones stay equal


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no process is left alone with one of them at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(("tests/project/", "tests/bench/test_ray")))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tests run side by side: each gets one core, and the same numbers every time."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _one_thread_elsewhere() -> "Iterator[None]":
    """The same for the pools of others: two that spin on one core take several times as long."""
    import sklearn.base  # noqa: F401  # brings an OpenMP of its own
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session", autouse=True)
def _loaded_for_good() -> None:
    """What is loaded by now stays to the end: the collector need not go through a million objects every few tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny() -> "Dataset":
    """Six classes, 240 nodes, easy to tell apart; splits as 2+2+2."""
    from ipal.data.datasets import load

    return load("synthetic:nodes=240,classes=6,features=16,signal=3,seed=1")


@pytest.fixture
def tiny_stream(tiny: "Dataset") -> "TaskStream":
    from ipal.config import ProtocolConfig
    from ipal.data.streams import TaskStream, default_split

    return TaskStream(tiny.graph, tiny.y, default_split(tiny.num_classes), ProtocolConfig(), seed=0)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The data root with real graphs; without it a test is skipped, and says so."""
    candidates = [Path(os.environ["IPAL_DATA"])] if os.environ.get("IPAL_DATA") else []
    candidates.append(PROJECT.parent / "shared" / "data")
    for root in candidates:
        if (root / "pyg" / "CS" / "raw" / "ms_academic_cs.npz").exists():
            return root
    pytest.skip("real graphs are not here: name their folder with IPAL_DATA")


@pytest.fixture
def ipal(tmp_path: Path) -> Ipal:
    """Run the command in an empty folder, as a user would, with an empty data root and no colours."""

    def call(*arguments: object, data: Path | None = None, check: bool = False) -> "subprocess.CompletedProcess[str]":
        environment = {
            **os.environ,
            "IPAL_DATA": str(data or tmp_path / "no-data"),
            "NO_COLOR": "1",
            "COLUMNS": "120",
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [sys.executable, "-m", "ipal", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=300,
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done

    return call


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The same without starting Python anew: much faster, and a traceback fails the test."""
    from ipal.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPAL_DATA", str(tmp_path / "no-data"))
    monkeypatch.delenv("IPAL_RUNS", raising=False)

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["ipal", *map(str, arguments)])
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many nodes every `score` of a snippet asked about; it fails where a learner had learned from one of them."""
    from ipal.estimator.learner import Learner
    from tests.support import rows_of

    learned: dict[Learner, set[bytes]] = {}
    counts: list[int] = []
    partial_fit, score = Learner.partial_fit, Learner.score

    def learn(learner: Learner, data: Any) -> Learner:
        learned.setdefault(learner, set()).update(rows_of(data, getattr(data, "train_mask", None)))
        return partial_fit(learner, data)

    def ask(learner: Learner, data: Any, mask: Any = None) -> float:
        if Path(sys._getframe(1).f_code.co_filename).is_relative_to(PROJECT / "src"):
            return score(learner, data, mask)  # no snippet: the package itself
        rows = rows_of(data, getattr(data, "test_mask", None) if mask is None else mask)
        assert not learned.get(learner, set()).intersection(rows), "accuracy on nodes that were learned from"
        counts.append(len(rows))
        return score(learner, data, mask)

    monkeypatch.setattr(Learner, "partial_fit", learn)
    monkeypatch.setattr(Learner, "score", ask)
    return counts


@pytest.fixture
def visitor(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Iterator[Visitor]":
    """Somebody who does what a page of the documentation says (see snippets.py), with nothing left behind."""
    from ipal.bench.suite import ENGINES
    from tests.snippets import Visitor, in_this_process

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(ENGINES, "local", in_this_process)
    for variable in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):  # a bench sets them for its processes
        monkeypatch.setenv(variable, "1" if "NUM" in variable else "PASSIVE")
    modules = set(sys.modules)

    def pip_install() -> None:
        project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
        install_package(tmp_path, monkeypatch, {}, project["entry-points"], project["name"])

    visitor = Visitor(tmp_path, command, pip_install)
    yield visitor
    visitor.leave()
    for name in set(sys.modules) - modules:  # files of this page
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def short_tsne(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the steps, where nothing depends on how well the picture in a page is drawn: it takes seconds."""
    import sklearn.manifold

    monkeypatch.setattr(sklearn.manifold, "TSNE", partial(sklearn.manifold.TSNE, max_iter=250))


@pytest.fixture
def hurry(short_tsne: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of whether commands can be typed, not of what is learned: few epochs, whatever the settings say."""
    from ipal.config import TrainConfig
    from ipal.estimator.settings import LearnerConfig

    made = LearnerConfig.__init__

    def few_epochs(config: LearnerConfig, *values: Any, **named: Any) -> None:
        train = named.get("train", TrainConfig())
        made(config, *values, **named | {"train": train.model_copy(update={"epochs": min(3, train.epochs)})})

    monkeypatch.setattr(LearnerConfig, "__init__", few_epochs)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built strictly and without a network, once for all processes of a test session."""
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    shared = tmp_path_factory.getbasetemp() if alone else tmp_path_factory.getbasetemp().parent
    target, nowhere = shared / "site", "http://127.0.0.1:9"
    with FileLock(shared / "site.lock"):
        if not target.exists():
            built = subprocess.run(
                [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target) + ".part"],
                capture_output=True,
                text=True,
                cwd=PROJECT,
                env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "http_proxy": nowhere, "https_proxy": nowhere},
                timeout=300,
            )
            assert built.returncode == 0, built.stdout + built.stderr
            Path(str(target) + ".part").rename(target)
    return target
