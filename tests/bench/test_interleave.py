"""Runs that take turns in one process compute what each would compute alone; on a GPU steps are recorded and repeat."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ipal.bench import interleave
from ipal.bench.interleave import Run, run_interleaved
from ipal.config import RunConfig, run_config
from ipal.data.datasets import Dataset, load
from ipal.engine.executors import recorded
from ipal.errors import DataError
from ipal.estimator.registry import METHODS
from ipal.methods.base import Trained
from ipal.runs import runner
from ipal.runs.environment import PeakMemory
from ipal.runs.resolved import Resolver
from ipal.runs.run_folder import RunStore
from ipal.runs.runner import Silent
from tests.support import Command

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]
TRAINED = [method.name for method in METHODS.values() if issubclass(method, Trained)]
NAME = "synthetic:nodes=240,classes=6,features=12"


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load(NAME)


def config_of(**tree: Any) -> RunConfig:
    return run_config({"dataset": NAME, "train": {"epochs": 4}, **tree})


def planned(data: Dataset, folder: Path, **tree: Any) -> Run:
    resolved = runner.resolve(config_of(**tree), dataset=data)
    return resolved, RunStore(folder).folder_for(resolved.config)


def alone(data: Dataset, folder: Path, **tree: Any) -> Any:
    return runner.run(*planned(data, folder, **tree), Silent())["accuracy_matrix"]


@pytest.mark.parametrize("device", DEVICES)
def test_runs_that_take_turns_give_what_each_gives_alone(
    device: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interleave, "LANES", 3)
    monkeypatch.setattr(interleave, "TURN", 2)
    batch = {"nodes": 10, "fanouts": [2, 2]}
    wanted = [
        {"method": "ipal", "seed": 0},
        {"method": "ipal", "seed": 1, "ipal": {"gamma": 0.9}},
        {"method": "ewc", "seed": 0},
        {"method": "ipal", "seed": 0, "encoder": {"layers": 2}, "protocol": {"batch": batch}},
        {"method": "ncm"},
        {"method": "joint", "seed": 2},
        {"method": "bare", "protocol": {"batch": batch}},
    ]
    runs = [planned(data, tmp_path / "together", device=device, **tree) for tree in wanted]
    assert sorted(run_interleaved(runs)) == [(index, None) for index in range(len(runs))]
    for (_, folder), tree in zip(runs, wanted, strict=True):
        assert folder.result()["accuracy_matrix"] == alone(data, tmp_path / "alone", device=device, **tree), tree


def test_a_run_that_fails_takes_no_other_with_it(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = METHODS["pcl"]

    def fails(*_: object) -> None:
        raise DataError("broken")

    monkeypatch.setattr(broken, "loss", fails)
    monkeypatch.setattr(interleave, "LANES", 2)
    methods = ["pcl", "bare", "pcl", "ncm"]
    ended = dict(run_interleaved([planned(data, tmp_path, method=name, seed=i) for i, name in enumerate(methods)]))
    assert [ended[index] for index in range(4)] == ["broken", None, "broken", None]


def test_runs_on_one_graph_share_its_tasks(data: Dataset) -> None:
    resolver = Resolver()
    one, other = (resolver.resolve(config_of(method=name), data).stream for name in ("ipal", "ewc"))
    assert one is other
    elsewhere = resolver.resolve(config_of(seed=1), data).stream
    assert elsewhere is not one
    assert elsewhere.task(1).graph is one.task(1).graph  # all nodes of a task, whichever are for training


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("method", TRAINED)
def test_recorded_steps_are_the_steps_themselves(
    method: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [alone(data, tmp_path / f"{turn}", method=method, device="cuda") for turn in range(2)]
    monkeypatch.setattr(recorded, "can_record", lambda device: False)
    found.append(alone(data, tmp_path / "step by step", method=method, device="cuda"))
    assert found[0] == found[1] == found[2]


def test_runs_that_take_turns_report_the_peak_of_all(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, peaks = METHODS["bare"].loss, [0]

    def greedy(*arguments: Any) -> Any:
        if len(peaks) == 1:  # the first step of all: other runs are yet to begin
            peaks.append(10**9)
        return whole(*arguments)

    class Peak(PeakMemory):
        def __init__(self) -> None:
            peaks[-1] = 0

        def bytes(self) -> int:
            return peaks[-1]

    monkeypatch.setattr(METHODS["bare"], "loss", greedy)
    monkeypatch.setattr(interleave, "LANES", 2)
    monkeypatch.setattr(interleave, "PeakMemory", Peak)
    monkeypatch.setattr(runner, "PeakMemory", Peak)
    runs = [planned(data, tmp_path, method="bare", seed=seed) for seed in range(3)]
    assert len(list(run_interleaved(runs))) == 3
    results = [folder.result() for _, folder in runs]
    assert [result["timing"]["runs_taking_turns"] for result in results] == [2, 2, 2]
    assert [result["peak_memory_bytes"] for result in results] == [10**9] * 3


def test_a_shared_peak_is_shown_as_such(data: Dataset, tmp_path: Path, command: Command) -> None:
    *both, lone = (planned(data, tmp_path / "runs", method="ncm", seed=seed) for seed in range(3))
    assert len(list(run_interleaved(both))) == 2
    assert "(of 2 runs that took turns in one process)" in command("show", both[0][1].path.name).out
    assert len(list(run_interleaved([lone]))) == 1
    assert "took turns" not in command("show", lone[1].path.name).out
