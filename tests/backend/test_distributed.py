"""Runs in several processes, started for real by torchrun: the same numbers as in one, and an end when one dies."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock

from ipal.backend.distributed import LOST, Team, joined
from ipal.backend.runtime import usable_device
from ipal.cli import team
from ipal.errors import ConfigError, TeamError
from ipal.nn.encoders import ENCODERS
from tests.processes import Started
from tests.support import Command

PROJECT = Path(__file__).parents[2]
EPOCHS = 4
ARGUMENTS = ["--dataset", "digits", "--set", f"train.epochs={EPOCHS}", "--checkpoint-every", "1", "--json"]


def start(folder: Path, *arguments: object, module: str = "ipal") -> "subprocess.Popen[str]":
    environment = {
        **os.environ,
        "IPAL_DATA": str(folder / "no-data"),
        "IPAL_TEAM_TIMEOUT": "60",
        "PYTHONPATH": os.pathsep.join((str(PROJECT), str(PROJECT / "src"))),
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [*torchrun, "-m", module, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
    )


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """What two processes found together: `found.json`, and the runs that they made. Made once for all who test."""
    if worker_id == "master":
        folder = tmp_path_factory.mktemp("undisturbed")
    else:
        folder = tmp_path_factory.getbasetemp().parent / "undisturbed"
        folder.mkdir(exist_ok=True)
    with FileLock(folder / ".lock"):
        if not (folder / "found.json").exists():
            config = json.dumps({"dataset": "digits", "train": {"epochs": EPOCHS}})
            process = start(folder, folder / "found.json", config, folder / "runs", module="tests.backend.worker")
            _, err = process.communicate(timeout=300)
            assert process.returncode == 0, err
    return folder


@pytest.fixture
def found(undisturbed: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((undisturbed / "found.json").read_text())
    assert content["processes"] == 2
    return content


def matrix(result: dict[str, Any]) -> Any:
    return np.array(result["accuracy_matrix"], dtype=float)


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("features", ["dense", "sparse"])
def test_embeddings_and_their_derivatives_are_those_of_one_process(
    found: dict[str, Any], features: str, kind: str
) -> None:
    # In this order: embeddings, gradients, gradients of gradients, what a generator draws afterwards.
    apart = found["derivatives"][f"{features} {kind}"]
    assert max(apart) < 1e-5
    assert apart[-1] == 0


def test_every_method_learns_the_same_as_in_one_process(found: dict[str, Any]) -> None:
    for title, outcome in found["methods"].items():
        assert outcome["same tensors"], title
        assert outcome["apart"] < 1e-3, title
        assert outcome["said"] > 0.995, title


def test_all_processes_hold_the_same_bits(found: dict[str, Any]) -> None:
    assert all(outcome["alike"] for outcome in found["methods"].values())
    assert found["sampled"]["alike"]


def test_weights_of_the_closed_form_are_those_of_one_process(found: dict[str, Any]) -> None:
    weights = [found["methods"][title]["weights apart"] for title in ("analytic", "analytic, per class")]
    assert max(weights) < 1e-9


def test_sampled_batches_are_shared_and_repeatable(found: dict[str, Any]) -> None:
    assert found["sampled"]["repeatable"]
    assert found["sampled"]["right"] > 0.9


def test_one_process_tells_what_went_wrong(found: dict[str, Any]) -> None:
    assert found["first to tell"] == 1


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    patience = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < patience
        time.sleep(0.01)


def process_of(rank: int, torchrun: int) -> int:
    """The number of one of the processes that torchrun has started."""
    children = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()
    return next(int(pid) for pid in children if f"RANK={rank}\0" in Path(f"/proc/{pid}/environ").read_text())


def in_two_processes(folder: Path, *arguments: object) -> str:
    """The command as torchrun starts it, without torchrun: sooner, as torch is loaded already. What the first says."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    shared |= {"TORCHELASTIC_RUN_ID": "none", "IPAL_TEAM_TIMEOUT": "60", "NO_COLOR": "1"}
    both = [
        Started(folder, *arguments, environment={**shared, "RANK": rank, "LOCAL_RANK": rank}) for rank in ("0", "1")
    ]
    (out, err), (nothing, _) = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], err
    assert nothing == ""
    return out


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes as Linux shows them")
def test_a_process_that_dies_ends_the_run_which_resumes_to_the_same_numbers(
    undisturbed: Path, tmp_path: Path, command: Command
) -> None:
    process = start(tmp_path, "run", *ARGUMENTS)
    checkpoints = (tmp_path / "runs").glob
    wait_for(lambda: any(checkpoints("*/checkpoint.safetensors")), process)
    os.kill(process_of(1, process.pid), signal.SIGKILL)
    killed = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - killed < 30
    assert process.returncode == 1
    assert out == ""
    assert err.count(f"Error: {LOST}") == 1
    assert err.count("Traceback") == 1  # torchrun's own
    assert not any(checkpoints("*/result.json"))

    result = json.loads(in_two_processes(tmp_path, "run", *ARGUMENTS))
    folder = Path(tmp_path / result["run"])
    assert "resumed at task" in (folder / "log.txt").read_text()
    assert json.loads((folder / "environment.json").read_text())["processes"] == 2
    (before,) = (undisturbed / "runs").iterdir()
    assert before.name == folder.name
    assert result["accuracy_matrix"] == json.loads((before / "result.json").read_text())["accuracy_matrix"]
    alone = command("run", *ARGUMENTS, "--runs", "alone").json
    assert Path(alone["run"]).name == folder.name
    np.testing.assert_allclose(matrix(result), matrix(alone), atol=0.5)


# ---------------------------------------------------------------------- without a start


class Others:
    """The store of a process group: how many reports there are."""

    reports = 0

    def add(self, key: str, amount: int) -> int:
        self.reports += amount
        return self.reports


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(("error", "code"), [(ConfigError("No."), 2), (TeamError("Gone."), 1)])
def test_an_error_is_said_once_and_ends_all(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["ipal", "run"])
    store = Others()
    for rank in (1, 0, 0):  # a second time by another thread
        assert team._outcome(failing(error), Team(rank, 2, store=store)) == code
    assert capsys.readouterr() == ("", f"Error: {error}\n")


def test_what_nobody_foresaw_is_told_by_those_who_saw_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["ipal", "run"])
    assert team._outcome(failing(ZeroDivisionError()), Team(1, 2)) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_other_commands_are_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ipal", "bench", "run"])
    assert team._outcome(failing(AssertionError()), Team(0, 2)) == 2
    assert "'ipal run' and 'ipal resume'" in capsys.readouterr().err


def test_only_torchrun_makes_a_team(monkeypatch: pytest.MonkeyPatch) -> None:
    # Schedulers set these two for purposes of their own.
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert not team.is_team()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert team.is_team()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not team.is_team()


@pytest.mark.parametrize(("total", "size"), [(10, 3), (2, 4), (0, 2), (9, 3), (5, 1)])
def test_shares_are_all_rows_in_order(total: int, size: int) -> None:
    shares = [Team(rank, size).share(total) for rank in range(size)]
    rows = np.arange(total)
    assert np.array_equal(np.concatenate([share.of(rows) for share in shares]), rows)
    assert all(share.most == shares[0].most >= len(share) for share in shares)


def test_a_wrong_timeout_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPAL_TEAM_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match="IPAL_TEAM_TIMEOUT is 'soon'"), joined():
        pass


def test_processes_take_gpus_of_their_own_and_none_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for size, name, local_rank, found in (
        (1, "cuda:1", 0, "cuda:1"),
        (1, "cuda", 0, "cuda:0"),
        (2, "cuda", 1, "cuda:1"),
        (2, "cpu", 1, "cpu"),
    ):
        assert usable_device(name, Team(local_rank, size, local_rank)) == torch.device(found)
    with pytest.raises(ConfigError, match="'cuda:0' is one GPU for all processes"):
        usable_device("cuda:0", Team(1, 2, 1))
    with pytest.raises(
        ConfigError, match=r"'cuda:2' is not there \(2 CUDA device\(s\) found\): start no more processes"
    ):
        usable_device("cuda", Team(2, 3, 2))
    with pytest.raises(ConfigError, match=r"'cuda:2' is not there \(2 CUDA device\(s\) found\): use --device cpu"):
        usable_device("cuda:2")
