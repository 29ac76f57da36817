"""`ipal bench` with several runs, killed with all its processes or only its workers, then repeated: the same bits."""

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.children import PATIENCE, Child, Ended, fork, must_succeed, perform
from faults.core import Case, Failed, Part, Plan
from faults.runs import must_be_equal
from faults.workspace import GRAPH

FILE = f"""
kind: study
seeds: 2
all: {{dataset: "{GRAPH}", train.epochs: 3, encoder.hidden: 8, encoder.width: 8}}
entries:
  ipal:
    grid: {{ipal.gamma: [0.3, 0.7]}}
  ewc:
  er-gnn:
  slda:
"""
BENCH = ["bench", "study.yaml", "--jobs", "2"]
SOON = 2.0
"""Seconds after the first run has begun, within which most kills come."""


@dataclass(frozen=True)
class Prepared:
    reference: Path
    seconds: float


def prepare(plan: Plan) -> Prepared:
    folder = _furnished(plan.folder / "reference")
    begin = time.perf_counter()
    must_succeed(_in_one_process(folder), "bench")
    return Prepared(folder / "runs", time.perf_counter() - begin)


def attempt(prepared: Prepared, case: Case) -> None:
    folder = _furnished(case.folder / "work")
    for _ in range(case.random.randint(1, 2)):
        child = fork(perform(BENCH), folder, group=True)
        _wait(child, folder, case, prepared.seconds)
        only_workers = case.random.random() < 0.5
        if only_workers:
            for worker in _workers(child.pid):
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
        else:
            child.kill(group=True)
        ended = child.end(3 * PATIENCE)
        # Without its workers a bench starts others, or says which runs did not come to their end.
        if ended.code not in ({0, 1} if only_workers else {0, -signal.SIGKILL}) or "Traceback" in ended.err:
            raise Failed(ended.in_short())
    must_succeed(_in_one_process(folder), "repeated")
    for run in _runs(prepared.reference):
        try:
            must_be_equal(folder / "runs" / run, prepared.reference / run)
        except Failed as failure:
            raise Failed(f"{run}: {failure}") from failure
    if extra := _runs(folder / "runs") - _runs(prepared.reference):
        raise Failed(f"runs that nobody asked for: {', '.join(extra)}")
    if _manifest(folder / "runs") != _manifest(prepared.reference):
        raise Failed("another manifest")


def _in_one_process(folder: Path) -> Ended:
    """The bench where nothing is killed: without processes of its own, which would load Python and torch anew."""

    def act() -> None:
        from ipal.bench.suite import ENGINES
        from tests.snippets import in_this_process

        ENGINES["local"] = in_this_process  # of this fork alone
        perform(BENCH)()

    return fork(act, folder).end(3 * PATIENCE)


def _wait(child: Child, folder: Path, case: Case, seconds: float) -> None:
    """Until the moment of the kill."""
    if case.random.random() < 0.3:
        child.lives(case.random.uniform(0, seconds))
        return
    while child.lives(0.02) and not _runs(folder / "runs"):
        if time.perf_counter() - child.begin > 3 * PATIENCE:
            raise Failed("no run has begun")
    child.lives(case.random.uniform(0, SOON))


def _workers(parent: int) -> list[int]:
    """Processes that a process has started, and those that they have."""
    with suppress(OSError):
        tasks = Path(f"/proc/{parent}/task").iterdir()
        found = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
        return [other for pid in found for other in (pid, *_workers(pid))]
    return []


def _furnished(folder: Path) -> Path:
    folder.mkdir()
    (folder / "study.yaml").write_text(FILE)
    return folder


def _runs(store: Path) -> set[str]:
    return {path.parent.name for path in store.glob("*/config.yaml")}


def _manifest(store: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((store / "benches" / "study.json").read_text())
    return content


PART = Part("kills-bench", count=100, slice=1, seconds=1200, prepare=prepare, attempt=attempt)
