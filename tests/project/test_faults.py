"""A small slice of every part of the fault bench, and that the bench itself sees what fails. In processes of their own:
what is forked must come from a process without threads. The server's slice is in test_benchmarks.py.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from faults.core import Failed
from faults.runs import must_be_equal
from faults.workspace import GRAPH, TRAIN
from ipal.state.snapshot import Snapshot
from tests.conftest import PROJECT
from tests.support import Command


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=PROJECT, timeout=600, check=False
    )


def test_a_slice_of_the_fault_bench_finds_nothing(tmp_path: Path) -> None:
    parts = ("kills-forked", "disks", "inputs", "commands", "kills-command", "kills-bench")
    done = run(tmp_path, "-m", "faults", *parts, "--quick", "--jobs", "1", "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    for part in parts:
        assert re.search(rf"^{part} +([\d,]+ +0 +\d+ s +\d+ MB|skipped: \w.*)$", done.stdout, flags=re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


BAD = """
import os, signal, sys, time
from pathlib import Path
from faults import core
from faults.core import Failed, Part, Plan, run_part

core.WARM = ()  # the cases need nothing of it

def attempt(prepared, case):
    if case.number == 1: raise Failed("as it should")
    if case.number == 2: raise KeyError("raw")
    if case.number == 3: os.kill(os.getpid(), signal.SIGKILL)
    if case.number == 4: time.sleep(60)
    if case.number == 5: bytearray(3 * 2**30)
    assert case.random.random() == prepared[case.number]

import random
numbers = {n: random.Random(f"bad 7 {n}").random() for n in range(9)}
part = Part("bad", 9, 9, 3.0, lambda plan: numbers, attempt, is_limited=True)
row = run_part(part, Plan(Path(sys.argv[1]), 7, range(9), 2))
print(row.line())
print(*row.failures(), sep="\\n")
"""


def test_what_fails_hangs_dies_or_takes_memory_is_seen_and_can_be_repeated(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", BAD, str(tmp_path))
    assert done.returncode == 0, done.stderr
    table, *lines = done.stdout.splitlines()
    assert re.match(r"bad +9 +5 ", table)
    found = dict(zip(lines[::2], (line.strip() for line in lines[1::2]), strict=True))
    reasons = ["as it should", "KeyError: 'raw'", "its process died (SIGKILL)", "took more than 3 s", "MemoryError"]
    for number, reason in enumerate(reasons, start=1):
        assert found[f"python -m faults bad --seed 7 --case {number}"].startswith(reason)


def test_runs_that_differ_in_a_bit_are_not_taken_for_equal(command: Command, tmp_path: Path) -> None:
    run = tmp_path / command("run", "--dataset", GRAPH, *TRAIN, "--json").json["run"]

    def refused(change: Callable[[Path], None]) -> str | None:
        other = tmp_path / "other"
        shutil.copytree(run, other)
        change(other)
        try:
            must_be_equal(other, run)
        except Failed as failure:
            return str(failure)
        finally:
            shutil.rmtree(other)
        return None

    def model(other: Path) -> None:
        saved = Snapshot.load(other / "model.safetensors")
        name = next(name for name, one in saved.tensors.items() if one.is_floating_point() and one.numel())
        saved.tensors[name].reshape(-1)[0] += 1e-6
        Snapshot(saved.tensors, saved.facts).save(other / "model.safetensors")

    def result(other: Path) -> None:
        content = json.loads((other / "result.json").read_text())
        content["accuracy_matrix"][0][0] += 1e-9
        (other / "result.json").write_text(json.dumps(content))

    def timing(other: Path) -> None:
        content = json.loads((other / "result.json").read_text())
        content["timing"]["total_seconds"] = 99
        (other / "result.json").write_text(json.dumps(content))

    assert str(refused(model)).startswith("another model: tensor ")
    assert refused(result) == "another result: accuracy_matrix"
    assert refused(timing) is None
    assert refused(lambda other: (other / ".x").touch()) == "left behind: .x"
