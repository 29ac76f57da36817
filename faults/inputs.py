"""Damaged graphs, graph folders, models, checkpoints, run folders, experiment files, options and requests, each through
its real reader: it is taken, or refused with a sentence; in 20 seconds and 2 GB.

Half of the damage knows what it damages: values in JSON and YAML, headers of arrays, tensors with the right checksum.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from faults.bases import Bases, make_bases
from faults.core import Case, Failed, Part, Plan
from faults.kinds import KINDS


@dataclass(frozen=True)
class Prepared:
    bases: Bases
    order: list[Callable[[Bases, Case], None]]
    """Kinds, as often as they are tried."""


def prepare(plan: Plan) -> Prepared:
    order = [kind for kind, weight in KINDS.items() for _ in range(weight)]
    return Prepared(make_bases(plan.folder / "bases"), order)


def attempt(prepared: Prepared, case: Case) -> None:
    from ipal.errors import IpalError

    kind = prepared.order[case.number % len(prepared.order)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            kind(prepared.bases, case)
        except IpalError as error:
            _must_be_a_sentence(str(error))
        except Failed as failure:
            raise Failed(f"{kind.__name__}: {failure}") from failure
        except MemoryError as error:
            raise Failed(f"{kind.__name__}: asked for more than 2 GB") from error


def _must_be_a_sentence(text: str) -> None:
    if len(text) > 2000:
        raise Failed(f"a message of {len(text)} characters")
    if not text.strip() or len(text.splitlines()) > 3:
        raise Failed(f"no sentence: {text[:200]!r}")


PART = Part("inputs", count=100_000, slice=100, seconds=20, prepare=prepare, attempt=attempt, is_limited=True)
