"""Whether what is computed is still made of numbers: NaN or infinite values stop a run before anything is made of them.

Nothing here is done at every step: loss terms are looked at when they are read, all else once a task, before a
checkpoint, and where labels are made of scores.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from ipal.errors import NonFiniteError


class StepTerms(NamedTuple):
    """The loss terms of a step, which a GPU may have yet to compute."""

    names: tuple[str, ...]
    values: Tensor
    """(terms,); (terms, runs) where several runs took the step as one."""
    run: int | None = None
    """Whose they are of several."""

    @classmethod
    def of(cls, terms: Mapping[str, Tensor]) -> "StepTerms":
        return cls(tuple(terms), torch.stack(list(terms.values())))


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors that hold NaN or infinite values, with one wait for a device.

    The least and the largest value say it all (NaN is both), and need no second tensor as large as the first.
    """
    named = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel()}
    finite: dict[str, bool] = {}
    for device in {tensor.device for tensor in named.values()}:
        here = [name for name, tensor in named.items() if tensor.device == device]
        extremes = torch.stack([part for name in here for part in torch.aminmax(named[name])])
        finite |= zip(here, extremes.view(-1, 2).isfinite().all(dim=1).tolist(), strict=True)
    return [name for name in named if not finite[name]]


def check_terms(values: Iterable[Mapping[str, float]], first: int, epochs: int) -> None:
    """Refuse loss terms that are no finite numbers; the earliest is named. `first` is their first epoch, from 0 on."""
    for epoch, terms in enumerate(values, start=first + 1):
        for name, value in terms.items():
            if not math.isfinite(value):
                kind = "NaN" if math.isnan(value) else "infinite"
                raise NonFiniteError(f"the loss term '{name}' is {kind}", f"epoch {epoch} of {epochs}")


def read_terms(steps: Sequence[StepTerms]) -> list[dict[str, float]]:
    """Loss terms of several steps as numbers; a GPU is waited for once where all are of one kind."""
    found: list[dict[str, float]] = []
    for (names, run, _), some in groupby(steps, lambda step: (step.names, step.run, step.values.shape)):
        values = torch.stack([step.values for step in some])
        found += [dict(zip(names, row, strict=True)) for row in (values if run is None else values[..., run]).tolist()]
    return found


def check_tensors(tensors: Mapping[str, Tensor], meaning: Mapping[str, str], place: str = "") -> None:
    """Refuse a state that is not finite; `meaning` describes what each group of its tensors is."""
    for name in not_finite(tensors):
        raise NonFiniteError(f"{name} ({meaning[name.split('.')[0]]}) holds NaN or infinite values", place)


def check_scores(scores: Tensor) -> None:
    """Refuse scores of nodes (rows) of which no class can be the highest."""
    if not_finite({"scores": scores}):
        node = int((~scores.isfinite()).any(dim=1).nonzero()[0])
        raise NonFiniteError(f"the scores of node {node} cannot be computed")
