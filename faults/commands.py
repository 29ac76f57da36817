"""Hostile invocations of the command: exit code 2, at most three lines, no traceback, 20 seconds, 2 GB."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from faults.children import Ended, fork, must_be_refused, perform, start
from faults.core import MOST_MEMORY, Case, Failed, Part, Plan, largest_memory

SECONDS = 20.0
REAL = 10
"""Every so-many-th is a process of its own; the others are forks, where everything is loaded already."""
SAFE = 3 * MOST_MEMORY
"""Address space beyond which a fork gets no more, so that the machine is not filled."""


@dataclass(frozen=True)
class Prepared:
    folder: Path
    invocations: list[list[str]]
    memory: int
    """Resident, before anything is done."""


def why_not() -> str | None:
    return None if find_spec("tests.hostile_commands") else "there is no tests/hostile_commands.py"


def prepare(plan: Plan) -> Prepared:
    from tests.hostile_commands import hostile_invocations

    folder = plan.folder / "work"
    folder.mkdir()
    invocations = hostile_invocations(plan.seed, max(plan.numbers) + 1, folder)
    return Prepared(folder, invocations, largest_memory())


def attempt(prepared: Prepared, case: Case) -> None:
    arguments = prepared.invocations[case.number]
    shown = " ".join(arguments)
    what = repr(shown if len(shown) < 200 else f"{shown[:150]}…{shown[-40:]}")
    is_real = case.number % REAL == 0 and not any("\0" in word for word in arguments)
    try:
        ended = _performed(arguments, prepared.folder, is_real)
    except Failed as failure:
        raise Failed(f"{what}: {failure}") from failure
    must_be_refused(ended, what)
    if ended.memory - prepared.memory * (not is_real) > MOST_MEMORY:
        raise Failed(f"{what}: took {ended.memory / 2**30:.1f} GB")


def _performed(arguments: list[str], folder: Path, is_real: bool) -> Ended:
    if is_real:
        return start(arguments, folder).end(3 * SECONDS)  # the start of Python on a busy machine is not meant
    return fork(perform(arguments), folder, more_memory=SAFE).end(SECONDS)


PART = Part("commands", count=500, slice=4, seconds=120, prepare=prepare, attempt=attempt, why_not=why_not)
