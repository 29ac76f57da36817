"""Interrupted anywhere, a run goes on to the same numbers, bit for bit; the same seed gives the same bits."""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
import torch

from ipal.config import RunConfig, run_config
from ipal.errors import StoreError
from ipal.estimator.registry import METHODS
from ipal.evaluation.rows import Row
from ipal.methods.base import Trained
from ipal.runs import runner
from ipal.runs.run_folder import RunFolder, RunStore
from ipal.state.snapshot import Snapshot
from tests.processes import Started

TINY = "synthetic:nodes=240,classes=6,features=16,signal=1"


class Stop:
    """Watches a run, and interrupts it when so many of all its epochs, or of its tasks, are done."""

    def __init__(self, after: int | None = None, after_tasks: int | None = None) -> None:
        self.epochs, self.tasks, self.done = after, after_tasks, 0

    def started(self, tasks: int, epochs: int, done: int) -> None:
        self.done = done

    def learned(self, *_: object) -> None: ...

    def task(self, index: int, row: Row) -> None:
        if index + 1 == self.tasks:
            raise KeyboardInterrupt

    def epoch(self, task: int, terms: dict[str, float]) -> None:
        self.done += 1
        if self.done == self.epochs:
            raise KeyboardInterrupt


def tiny_config(method: str = "ipal", **changes: object) -> RunConfig:
    small = {"train": {"epochs": 7}, "encoder": {"hidden": 32, "width": 32}}
    # On so small a graph many columns only take longer.
    narrow = {"analytic": {"width": 64}} if method == "analytic" else {}
    return run_config({"dataset": TINY, "method": method, **small, **narrow, **changes})


def run(config: RunConfig, runs: Path, observer: Stop | None = None) -> RunFolder:
    resolved = runner.resolve(config)
    folder = RunStore(runs).folder_for(resolved.config)
    runner.run(resolved, folder, observer or Stop(), checkpoint_every=3)
    return folder


def _content(folder: RunFolder, name: str) -> bytes | None:
    path = folder.path / name
    return path.read_bytes() if path.exists() else None


def assert_same_run(a: RunFolder, b: RunFolder) -> None:
    """Everything but the clock is the same, bit for bit."""
    clock = {"timing", "peak_memory_bytes"}
    left, right = ({k: v for k, v in f.result().items() if k not in clock} for f in (a, b))
    assert left == right
    for name in ("history.csv", "confusion.json"):
        assert _content(a, name) == _content(b, name)
    states = [Snapshot.load(folder.model) for folder in (a, b)]
    assert states[0].facts == states[1].facts
    assert states[0].tensors.keys() == states[1].tensors.keys()
    for name, tensor in states[0].tensors.items():
        assert torch.equal(tensor, states[1].tensors[name]), name


# 7 epochs a task, checkpoints after 3 and 6: before any checkpoint, at one, between two, at the end of a task,
# right after it, in the last epoch of all. Methods that train nothing have no epochs: after each task.
EPOCHS_DONE = [1, 3, 5, 7, 8, 10, 14, 21]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunFolder]:
    """A method's run without interruption, made once."""
    return cache(lambda method: run(tiny_config(method), tmp_path_factory.mktemp("whole")))


@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_any_method_interrupted_everywhere_resumes_to_the_same_bits(method, whole_run, tmp_path):
    """One run, interrupted at every point: each time it goes on from what the last interruption left."""
    trained = issubclass(METHODS[method], Trained)
    points = [{"after": epochs} for epochs in EPOCHS_DONE] if trained else [{"after_tasks": n} for n in (1, 2, 3)]
    for point in points:
        with pytest.raises(KeyboardInterrupt):
            run(tiny_config(method), tmp_path, Stop(**point))
    resumed = run(tiny_config(method), tmp_path)
    assert (resumed.path / "log.txt").read_text().count("resumed") == (6 if trained else 3)
    assert_same_run(whole_run(method), resumed)


@pytest.mark.parametrize(
    "stream", [{"name": "online", "batch": 16}, {"name": "online", "batch": 16, "sigma": 2}], ids=str
)
def test_a_stream_of_batches_interrupted_everywhere_resumes_to_the_same_bits(stream, tmp_path):
    """Nine batches of seven epochs: interrupted within batches, between them, and after a task."""
    config = tiny_config(protocol={"stream": {**stream, "batch": 16}})
    whole = run(config, tmp_path / "whole")
    for point in ({"after": 3}, {"after": 7}, {"after": 12}, {"after": 14}, {"after_tasks": 1}, {"after": 50}):
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "broken", Stop(**point))
    resumed = run(config, tmp_path / "broken")
    assert (resumed.path / "log.txt").read_text().count("resumed") >= 4
    assert len(resumed.result()["along"]["batch"]) >= 9
    assert_same_run(whole, resumed)


def test_a_finished_run_leaves_no_checkpoint_and_no_scraps(whole_run):
    assert sorted(path.name for path in whole_run("ipal").path.iterdir()) == [
        ".lock",
        "config.yaml",
        "confusion.json",
        "environment.json",
        "history.csv",
        "log.txt",
        "model.safetensors",
        "result.json",
    ]


# Large enough to be caught in the middle: three tasks of 60 epochs, a second or two.
LONG = ["--dataset", "synthetic:nodes=3000,classes=6,features=64"]
LONG += ["--set", "train.epochs=60", "--checkpoint-every", "5"]


def start(tmp_path: Path, runs: str, *more: str) -> Started:
    return Started(tmp_path, "run", *LONG, "--runs", runs, *more)


def wait_for_second_task(folder: Path, process: Started) -> RunFolder:
    """Until a checkpoint shows that the second task has begun."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        for path in folder.glob("*/checkpoint.safetensors"):
            facts = Snapshot.load(path).facts["progress"]
            if facts["task"] == 1 and facts["epoch"] >= 5:
                return RunFolder(path.parent)
        time.sleep(0.01)
    raise AssertionError(f"the run was not caught in its second task: {process.poll()}")


def test_killed_in_the_middle_of_training_it_resumes_to_the_same_bits(command, tmp_path):
    process = start(tmp_path, "killed")
    folder = wait_for_second_task(tmp_path / "killed", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not folder.is_finished
    assert RunStore(tmp_path / "killed").all()[0].status == "resumable"
    resumed = command("resume", folder.path.name, "--runs", "killed", "--json")
    whole = command("run", *LONG, "--runs", "whole", "--json")
    assert resumed.json["accuracy_matrix"] == whole.json["accuracy_matrix"]
    assert_same_run(RunFolder(next((tmp_path / "whole").iterdir())), folder)


def test_ctrl_c_says_how_to_go_on_and_a_second_process_is_kept_out(command, tmp_path):
    process = start(tmp_path, "runs")
    folder = wait_for_second_task(tmp_path / "runs", process)
    process.send_signal(signal.SIGSTOP)  # held, so that it cannot end before the other one looks
    other = command("resume", folder.path.name)
    process.send_signal(signal.SIGCONT)
    with suppress(ProcessLookupError):  # it has ended
        while process.poll() is None:  # many are as quiet as one
            process.send_signal(signal.SIGINT)
    assert other.code == 2
    assert "another process" in other.err
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.count(f"or: ipal resume {Path('runs') / folder.path.name}") == 1
    assert "Traceback" not in said
    assert "KeyboardInterrupt" not in said
    assert "is not finished" in command("show", folder.path.name).err


def test_the_same_seed_gives_the_same_bits_also_when_runs_share_the_machine(tmp_path):
    processes = [start(tmp_path, f"runs{index}", "--threads", "2", "--set", "train.epochs=20") for index in range(2)]
    for process in processes:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    one, other = (RunFolder(next((tmp_path / f"runs{index}").iterdir())) for index in range(2))
    assert_same_run(one, other)


def test_a_run_that_somebody_else_finished_meanwhile_is_shown(whole_run):
    folder = whole_run("ipal")
    written = (folder.path / "result.json").stat().st_mtime_ns
    run(tiny_config(), folder.path.parent, Stop(after=1))  # would raise if it trained again
    assert (folder.path / "result.json").stat().st_mtime_ns == written


def test_another_seed_gives_other_numbers(whole_run, tmp_path):
    a, b = whole_run("ipal"), run(tiny_config(seed=1), tmp_path)
    assert (a.path / "history.csv").read_bytes() != (b.path / "history.csv").read_bytes()


def test_a_graph_that_changed_since_is_not_resumed(tmp_path):
    resolved = runner.resolve(tiny_config())
    changed = resolved.config.model_copy(update={"dataset": TINY + ",seed=9"})
    with pytest.raises(StoreError, match="has changed"):
        runner.resolve(changed)


def test_a_run_too_short_for_a_checkpoint_knows_its_peak_memory(tmp_path: Path) -> None:
    resolved = runner.resolve(tiny_config(train={"epochs": 1}))
    folder = RunStore(tmp_path).folder_for(resolved.config)
    assert runner.run(resolved, folder, Stop(), checkpoint_every=1000)["peak_memory_bytes"] > 10**7
