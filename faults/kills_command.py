"""The real command in a process of its own, killed at random moments; then it is repeated in a fork.

Even cases are `ipal run`, then `ipal resume`: the same bits as never killed. Odd ones are the other long commands: what
they write is whole, old or new, or not there; repeated, they leave the same.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from faults.children import PATIENCE, Child, Ended, command, must_succeed, start
from faults.core import Case, Failed, Part, Plan
from faults.runs import must_be_equal
from faults.workspace import (
    GRAPH,
    TRAIN,
    Contents,
    Long,
    contents,
    copied,
    furnish,
    must_be_done,
    must_be_whole,
    possible,
    varying,
)

METHODS = ("ipal", "ewc", "analytic", "er-gnn", "efc", "slda", "gem", "joint")
SOON = 0.05
"""Seconds after the first sign of writing, within which half of the kills come."""


@dataclass
class Outcome:
    """What a command leaves when nothing happens, and how long it takes."""

    before: Contents
    after: Contents
    free: set[str]
    seconds: float
    said: set[str] = field(default_factory=set)
    """On stdout; several where it says something else every time."""


@dataclass
class Prepared:
    workspace: Path
    startup: float
    """Seconds until Python has loaded everything."""
    runs: dict[str, tuple[Path, float]] = field(default_factory=dict)
    """By method: a run that was never killed, and the seconds it took."""
    others: list[tuple[Long, Outcome]] = field(default_factory=list)


def prepare(plan: Plan) -> Prepared:
    prepared = Prepared(plan.folder / "workspace", startup=time.process_time())  # it has loaded everything, and no more
    for number in plan.numbers:
        if number % 2 == 0 and (method := METHODS[number // 2 % len(METHODS)]) not in prepared.runs:
            folder = plan.folder / f"run-{method}"
            folder.mkdir()
            begin = time.perf_counter()
            must_succeed(command(_run(method), folder, seconds=PATIENCE), f"run {method}")
            prepared.runs[method] = next((folder / "runs").iterdir()), time.perf_counter() - begin
    if all(number % 2 == 0 for number in plan.numbers):
        return prepared
    furnish(prepared.workspace)
    known = possible()
    wanted = {number // 2 % len(known) for number in plan.numbers if number % 2}
    for place, one in enumerate(known):
        prepared.others.append((one, _outcome(one, prepared.workspace, plan.folder, place in wanted)))
    return prepared


def _outcome(one: Long, workspace: Path, folder: Path, wanted: bool) -> Outcome:
    before = contents(workspace)
    if not wanted:
        return Outcome(before, {}, set(), 0.0)
    found: list[tuple[Contents, Ended, float]] = []
    for turn in range(2):
        place = copied(workspace, folder / f"{one.name.replace(' ', '')}-{turn}" / "work")
        begin = time.perf_counter()
        ended = must_succeed(command(one.arguments, place, seconds=PATIENCE), one.name)
        found.append((contents(place), ended, time.perf_counter() - begin))
    (after, first, seconds), (again, second, _) = found
    said = {_without_paths(ended.out) for ended in (first, second)}
    return Outcome(before, after, varying(after, again), seconds, said)


def attempt(prepared: Prepared, case: Case) -> None:
    if case.number % 2 == 0:
        _attempt_run(prepared, case)
    else:
        _attempt_other(prepared, case)


def _attempt_run(prepared: Prepared, case: Case) -> None:
    method = METHODS[case.number // 2 % len(METHODS)]
    reference, seconds = prepared.runs[method]
    folder = case.folder / "work"
    folder.mkdir()
    _interrupt(start(_run(method), folder), folder, case, prepared.startup + seconds)
    resumable = (folder / "runs" / reference.name / "config.yaml").exists()
    arguments = ["resume", reference.name, "--checkpoint-every", "1"] if resumable else _run(method)
    if case.random.random() < 0.3:
        _interrupt(start(arguments, folder), folder, case, prepared.startup + seconds)
    must_succeed(command(arguments, folder, seconds=PATIENCE), f"{method}, resumed")
    try:
        must_be_equal(folder / "runs" / reference.name, reference)
    except Failed as failure:
        raise Failed(f"{method}: {failure}") from failure


def _attempt_other(prepared: Prepared, case: Case) -> None:
    one, outcome = prepared.others[case.number // 2 % len(prepared.others)]
    folder = copied(prepared.workspace, case.folder / "work")
    _interrupt(start(one.arguments, folder), folder, case, prepared.startup + outcome.seconds)
    try:
        found = must_be_whole(folder, outcome.before, outcome.after, outcome.free)
        if (folder / one.target).is_dir() and one.target.endswith(".graph"):  # a folder that appears as a whole
            must_be_done(folder, outcome.after, outcome.free)
        elif found != outcome.after or one.target == "nothing":  # what has forgotten already cannot forget again
            ended = must_succeed(command(one.arguments, folder, seconds=PATIENCE), "repeated")
            if len(outcome.said) == 1 and _without_paths(ended.out) not in outcome.said:
                raise Failed("repeated, it says something else")
        must_be_done(folder, outcome.after, outcome.free)
    except Failed as failure:
        raise Failed(f"{one.name}: {failure}") from failure


def _interrupt(child: Child, folder: Path, case: Case, seconds: float) -> None:
    """Kill it, at any moment or when it begins to write."""
    before = _names(folder)
    if case.random.random() < 0.5:
        lives = child.lives(case.random.uniform(0, seconds))
    else:
        delay = case.random.uniform(0, SOON)
        while (lives := child.lives(0.004)) and _names(folder) == before:
            if time.perf_counter() - child.begin > PATIENCE:
                break
        lives = lives and child.lives(delay)
    if lives:
        child.kill(group=True)
    ended = child.end(PATIENCE)
    if ended.code and not ended.was_killed:
        raise Failed(ended.in_short())


def _names(folder: Path) -> set[str]:
    return {os.path.join(place, name) for place, _, names in os.walk(folder) for name in names}


def _run(method: str) -> list[str]:
    own = ["--set", "analytic.width=16", "--set", "analytic.steps=1"] if method == "analytic" else []
    shared = TRAIN if method not in {"analytic", "slda", "ncm"} else []
    return ["run", "--dataset", GRAPH, "--method", method, *shared, *own, "--checkpoint-every", "1"]


def _without_paths(said: str) -> str:
    """Folders have other names every time, and tables other widths with them."""
    lines = (line for line in said.splitlines() if "/" not in line)
    return "\n".join(" ".join(line.replace("━", " ").replace("─", " ").split()) for line in lines)


PART = Part("kills-command", count=200, slice=1, seconds=400, prepare=prepare, attempt=attempt)
