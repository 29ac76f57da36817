"""Numbers over seeds: mean and spread, paired differences, ranks. Pure functions."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit


class Spread(NamedTuple):
    mean: float
    deviation: float | None
    """Sample standard deviation; None with one value."""


class Interval(NamedTuple):
    difference: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and sample standard deviation (divisor n - 1)."""
    if not values:
        return None
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


FEWEST = 5
"""Seeds that an interval needs: with fewer it is too wide to say anything."""


def scale_from(values: Iterable[float | None]) -> float:
    """Where a scale of colours up to 100 % begins: at a round number below the lowest value, and not above 90."""
    lowest = min((value for value in values if value is not None), default=0.0)
    return min(90.0, 10.0 * math.floor(lowest / 10))


def paired_interval(
    values: Mapping[int, float], reference: Mapping[int, float], comparisons: int = 1
) -> Interval | None:
    r"""Mean difference over the seeds both have, with its 95 % interval; None with fewer than `FEWEST` such seeds.

    .. math:: \bar d \pm t_{n-1,\,1 - 0.025 / m} \, \frac{s_d}{\sqrt n}, \qquad d_s = v_s - r_s

    Source: Student's paired t interval; with m comparisons at once wider by Bonferroni's correction (Dunn 1961), so
    that all of them hold together. Pairs share split, initial weights and draws; what is left is the method.
    """
    differences = [values[seed] - reference[seed] for seed in sorted(values.keys() & reference.keys())]
    summary = spread(differences)
    if len(differences) < FEWEST or summary is None or summary.deviation is None:
        return None
    level = 1 - 0.025 / max(1, comparisons)
    half = float(stdtrit(len(differences) - 1, level)) * summary.deviation / math.sqrt(len(differences))
    return Interval(summary.mean, summary.mean - half, summary.mean + half)


def marks(values: Sequence[float | None]) -> list[str]:
    """`best`, `second` or nothing for each value; None is not ranked. Values that print the same rank the same."""
    rounded = [None if value is None else round(value, 2) for value in values]
    top = sorted({value for value in rounded if value is not None}, reverse=True)[:2]
    names = dict(zip(top, ("best", "second"), strict=False))
    return ["" if value is None else names.get(value, "") for value in rounded]


def listed(seeds: Sequence[int]) -> str:
    """`0 to 4`, or `0, 3`."""
    in_a_row = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if in_a_row else ", ".join(map(str, seeds))


def how_many(seeds: Iterable[int]) -> str:
    """`5 seeds`, or `one seed`."""
    count = len(set(seeds))
    return f"{count} seeds" if count > 1 else "one seed"
