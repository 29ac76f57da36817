"""What fits into memory is chosen; what does not is answered with what would."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ipal.closed_form.method import Analytic
from ipal.config import Sampling, run_config
from ipal.data import datasets
from ipal.errors import CapacityError
from ipal.methods.ipal import IPAL
from ipal.methods.ncm import NCM
from ipal.methods.slda import SLDA
from ipal.runs import memory_plan
from ipal.runs.resolved import Resolved, resolve
from ipal.system.memory_budget import Budget
from tests.processes import Started

GRAPH = "synthetic:nodes=40000,classes=6,features=100,degree=150"


@pytest.fixture(scope="module")
def large() -> datasets.Dataset:
    return datasets.load(GRAPH)


def resolved(large: datasets.Dataset, **tree: Any) -> Resolved:
    return resolve(run_config({"dataset": GRAPH, **tree}), dataset=large)


@pytest.mark.parametrize(
    ("text", "bytes"), [("8GB", 8 * 2**30), ("0.5g", 2**29), ("512MiB", 2**29), ("3 TB", 3 * 2**40), ("1000", 1000)]
)
def test_sizes_are_read_as_people_write_them(text: str, bytes: int) -> None:
    assert memory_plan.parse_bytes(text) == bytes


@pytest.mark.parametrize("text", ["", "much", "-1GB", "0", "GB", "nanGB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(CapacityError, match="8GB"):
        memory_plan.parse_bytes(text)


def test_the_fastest_way_that_fits_is_taken(large: datasets.Dataset) -> None:
    narrow = {"kind": "gcn", "layers": 2, "hidden": 16, "width": 16}
    config = resolved(large, protocol={"train_graph": "seen", "test_graph": "seen"}, encoder=narrow)
    full, sampled = memory_plan.ways(config)
    assert full.bytes > sampled.bytes
    for way in (full, sampled):
        found = memory_plan.fitted(config, way.bytes)
        assert found.config.protocol.batch == ("full" if way is full else Sampling())
        assert found.budget == Budget(0 if way is sampled else None)
    # What the limit leaves is for arrays that could lie in files, and for what could be made in pieces.
    assert memory_plan.ways(config, sampled.bytes + 1000)[-1].budget == Budget(1000)
    with pytest.raises(CapacityError, match="at least"):
        memory_plan.fitted(config, sampled.bytes - 1)


@pytest.mark.parametrize(
    "tree",
    [
        {"encoder": {"layers": 2}, "protocol": {"batch": {"nodes": 50, "fanouts": [3, 3]}}},
        {"method": "analytic"},
    ],
    ids=["batches that were asked for", "no batches"],
)
def test_what_has_one_way_stays_as_it_is(large: datasets.Dataset, tree: dict[str, Any]) -> None:
    config = resolved(large, **tree)
    assert len(memory_plan.ways(config)) == 1
    assert memory_plan.fitted(config, 2**40).config == config.config


@pytest.mark.parametrize("method", ["ewc", "twp"])
def test_what_looks_at_whole_tasks_says_so_beforehand(large: datasets.Dataset, method: str) -> None:
    small = {"batch": {"nodes": 50, "fanouts": [3, 3]}}
    config = resolved(large, method=method, protocol=small)
    plain = resolved(large, method="bare", protocol=small)
    least, enough = (memory_plan.ways(one)[-1].bytes for one in (plain, config))
    _, together = memory_plan.task_extents(large.graph, config.stream)
    assert enough - memory_plan.BASE > together.operators
    assert memory_plan.fitted(plain, least).bytes == least
    with pytest.raises(CapacityError, match="at least"):
        memory_plan.fitted(config, least)


def test_all_tasks_kept_as_one_are_counted(large: datasets.Dataset) -> None:
    config = resolved(large, method="joint")
    plain = resolved(large, method="bare")
    _, together = memory_plan.task_extents(large.graph, config.stream)
    for joint, bare in zip(memory_plan.ways(config), memory_plan.ways(plain), strict=True):
        assert joint.bytes - bare.bytes >= 4 * (together.copy - together.dense)


def test_what_methods_without_training_take_by_hand() -> None:
    # 100 nodes of 10 features are predicted, of 3 classes; a piece of their matrix takes 50 bytes.
    sizes = (10, 3, 100, 50)
    scores = 12 * 100 * 3
    assert NCM().working_memory(*sizes) == scores + 50
    assert SLDA().working_memory(*sizes) == scores + 50 + 24 * 10**2
    # The closed form: a quarter of the rows of two restarts, and 5 matrices of 4096 columns.
    sums = 5 * 8 * 4096**2
    assert Analytic().working_memory(*sizes) == 2000 + sums
    # Beyond 1024 features, a half of what one of two restarts has, they are projected to all columns.
    for features, columns in ((1024, 2048), (1025, 4096), (5000, 4096)):
        assert Analytic().working_memory(features, 3, 100, 50) == 100 * columns + sums
    for method in (NCM, SLDA, Analytic):
        assert type(method().working_memory(*sizes)) is int, "whole bytes"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 3.00 GiB for an array"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried to …"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: not enough memory: you tried to …"),
    ],
    ids=["numpy", "cuda", "linux", "windows"],
)
def test_missing_memory_is_known_by_its_errors(error: Exception) -> None:
    assert memory_plan.is_out_of_memory(error)


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch, command: Any) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(IPAL, "loss", fails)
    with pytest.raises(RuntimeError, match="something else"):
        command("run", "--dataset", "digits")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_memory_that_really_runs_out(tmp_path: Path) -> None:
    plain = {"NO_COLOR": "1", "COLUMNS": "200"}
    words = ("run", "--dataset", "digits", "--preset", "paper", "--set", "encoder.hidden=120000")
    words += ("--set", "protocol.calibration=0")  # a copy would be refused before memory runs out
    process = Started(tmp_path, *words, memory=500 * 2**20, environment=plain)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2, said
    assert "Out of memory on cpu: set --memory-limit" in said
    assert "Traceback" not in said


def test_a_limit_is_kept_to_and_said(command: Any) -> None:
    told = command("run", "--dataset", "digits", "--set", "train.epochs=1", "--memory-limit", "100GB", "--json")
    assert told.code == 0
    assert "Within 100GB: full graphs" in told.err
    assert told.json["protocol"]["batch"] == "full"
    assert command("run", "--dataset", "digits", "--memory-limit", "1KB").code == 2
