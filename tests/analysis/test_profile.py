"""`ipal profile`: the parts of a run, of every method, from the library and from the command."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipal.analysis.profile import profile, summary
from ipal.bench.experiment_file import as_tree, read_preset
from ipal.config import override, run_config
from ipal.estimator.registry import METHODS
from ipal.runs.environment import PeakMemory
from ipal.runs.runner import Silent
from ipal.system.tracing import Account
from tests.support import Command, Watcher, complaint

GRAPH = "synthetic:nodes=240,classes=6,features=16,signal=3"
SMALL = ("profile", "--dataset", GRAPH, "--set", "train.epochs=3", "--threads", 1)
STEPS = {"preparation", "encoder", "loss", "backward", "optimiser", "evaluation"}
PARTS = {
    "analytic": {"propagation", "sums", "ridge", "evaluation"},
    "ncm": {"preparation", "sums", "evaluation"},
    "slda": {"preparation", "sums", "evaluation"},
}
QUICK = {"analytic": {"analytic": {"width": 64}}}


def profiled(**tree: Any) -> dict[str, Any]:
    return profile(run_config({"dataset": GRAPH, "threads": 1, **tree}), Silent(), checkpoint_every=5)


def shares(found: dict[str, Any]) -> dict[str, float]:
    """Seconds of every part with all that happens inside it."""
    seconds: dict[str, float] = {}
    for row in found["parts"]:
        seconds[row["part"][0]] = seconds.get(row["part"][0], 0.0) + row["own_seconds"]
    return seconds


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_profiled(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipal.analysis.profile.environment", lambda *_: {})  # looked up after the run, and slow
    tree: dict[str, Any] = QUICK.get(method, {}) if method in PARTS else {"train": {"epochs": 2}}
    for _ in range(3):  # others may take the processor between the two clocks, but not every time
        begin = time.perf_counter()
        found = profiled(method=method, **tree)
        whole = pytest.approx(time.perf_counter() - begin, rel=0.05, abs=0.05)
        if found["seconds"] == whole:
            break
    parts = shares(found)
    assert PARTS.get(method, STEPS) <= parts.keys()
    assert sum(parts.values()) == pytest.approx(found["seconds"], rel=1e-9)
    assert found["seconds"] == whole
    assert found["tasks"] == 3
    of_tasks = [sum(each) for each in zip(*(row["own_seconds_per_task"] for row in found["parts"]), strict=True)]
    assert of_tasks == pytest.approx(found["seconds_per_task"], rel=1e-9)


def test_mini_batches_show_the_wait_for_them() -> None:
    found = profiled(train={"epochs": 2}, encoder={"layers": 2}, protocol={"batch": {"nodes": 20, "fanouts": [3, 3]}})
    assert shares(found)["sampling"] > 0


def test_what_a_loss_calls_stands_beside_it_and_evaluation_includes_its_encoder() -> None:
    found = profiled(train={"epochs": 2})
    paths = {tuple(row["part"]) for row in found["parts"]}
    assert {("encoder",), ("loss",), ("evaluation", "encoder"), ("start", "reading the graph")} <= paths
    assert ("loss", "encoder") not in paths
    of_encoder = next(row for row in found["parts"] if row["part"] == ["encoder"])
    assert of_encoder["times"] == 3 * 2, "one a step, and no other pass of the encoder"


def test_operators_of_a_graph_are_a_part() -> None:
    found = profiled(**override(as_tree(read_preset("paper", "ipal")), {"dataset": GRAPH, "train": {"epochs": 2}}))
    made = [row for row in found["parts"] if row["part"][-1] == "operators"]
    assert sum(row["times"] for row in made) == 3, "one for each of the tasks' graphs, in training and in the tests"
    assert all(row["own_seconds"] > 0 for row in made)


def test_memory_is_that_of_the_part(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name:\tpython\nVmHWM:\t    5 kB\nVmRSS:\t    3 kB\n")
    (tmp_path / "clear_refs").touch()
    peak = PeakMemory(tmp_path)
    assert (tmp_path / "clear_refs").read_text() == "5", "what resets the peak; see proc(5)"
    assert peak.bytes() == 5 * 1024
    (tmp_path / "status").write_text("VmHWM:\t    7 kB\n")
    assert peak.bytes() == 7 * 1024, "read anew"
    peak.reset()
    assert (tmp_path / "clear_refs").read_text() == "55"


def test_without_a_peak_to_reset_it_is_that_of_the_process(tmp_path: Path) -> None:
    block = np.ones(50_000_000, dtype=np.uint8)
    assert PeakMemory(tmp_path).bytes() > block.nbytes


def test_nothing_of_the_run_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert profiled(method="ncm")["average_performance"] > 50
    with pytest.raises(KeyboardInterrupt):
        profile(run_config({"dataset": GRAPH, "train": {"epochs": 3}}), Watcher(0), checkpoint_every=1)
    assert list(tmp_path.iterdir()) == []


def test_without_tasks_between_there_is_still_a_whole() -> None:
    found = summary([{(): Account(10**9)}, {}])
    assert found["seconds"] == 1
    assert found["seconds_per_task"] == []


# ---------------------------------------------------------------------- the command


def test_the_command_shows_a_table_and_stores_nothing(command: Command, tmp_path: Path) -> None:
    done = command(*SMALL)
    assert done.code == 0, done.err
    for word in (*STEPS, "start", "reading the graph", "end", "all", "share", "memory", "task 3"):
        assert word in done.out
    assert "task 3 of 3 learned" in done.err
    assert list(tmp_path.iterdir()) == []
    many = command(
        "profile",
        "--dataset",
        "synthetic:nodes=200,classes=10,features=8",
        "--method",
        "ncm",
        "--split",
        "1,1,1,1,1,1,1,1,1,1",
    )
    assert [f"task {task}" in many.out for task in (1, 2, 6, 10)] == [True, False, True, True]


def test_the_same_options_make_the_same_run(command: Command) -> None:
    options = SMALL[1:]
    run = command("run", *options, "--json").json
    found = command("profile", *options, "--json").json
    assert found["name"] == Path(run["run"]).name
    assert found["average_performance"] == run["average_performance"]
    assert found["config"]["train"]["epochs"] == 3
    assert found["peak_bytes"]["host"] > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_every_part_has_its_time_and_memory() -> None:
    found = profiled(device="cuda", train={"epochs": 3})
    assert shares(found).keys() >= STEPS
    of_encoder = next(row for row in found["parts"] if row["part"] == ["encoder"])
    assert of_encoder["times"] == 3 * 3, "no step is a recording, which has no parts"
    assert of_encoder["peak_bytes"]["device"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("Say which graph",)),
        (("--dataset", GRAPH, "--set", "train.epoch=3"), ("'train.epochs'",)),
        (("--dataset", GRAPH, "--memory-limit", "1MB"), ("GiB",)),
    ],
)
def test_what_cannot_be_profiled_is_refused(
    command: Command, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    complaint(command("profile", *arguments), *words)
