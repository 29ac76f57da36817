"""Numbers over seeds, worked by hand."""

import math

import numpy as np
import pytest

from ipal.report import paper
from ipal.report.statistics import marks, paired_differences, paired_interval, scale_from, spread
from ipal.report.styles import mark_for, spread_out


def test_spread_by_hand():
    # mean 4; squares of the deviations 4 + 0 + 4 = 8, over n - 1 = 2
    assert spread([2.0, 4.0, 6.0]) == (4.0, 2.0)
    assert spread([7.0]) == (7.0, None)
    assert spread([]) is None


def test_paired_interval_by_hand():
    # Differences at seeds 0 to 4: 1 to 5. Mean 3, variance 10 / 4; Student's t of 4 degrees at 0.975 is 2.776445.
    found = paired_interval(
        {seed: 11.0 * (seed + 1) for seed in range(5)}, {seed: 10.0 * (seed + 1) for seed in range(5)}
    )
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert found == pytest.approx((3.0, 3.0 - half, 3.0 + half), abs=1e-5)


def test_only_equal_seeds_make_a_pair():
    # Seed 5 has no partner; differences at 1, 2 and 3: 1, 2 and 3, t of 2 degrees 4.302653.
    values, others = {5: 99.0, 3: 33.0, 2: 22.0, 1: 11.0}, {1: 10.0, 2: 20.0, 3: 30.0, 4: 0.0}
    assert paired_differences(values, others) == [1.0, 2.0, 3.0]
    half = 4.302653 / math.sqrt(3)
    assert paired_interval(values, others, fewest=3) == pytest.approx((2.0, 2.0 - half, 2.0 + half), abs=1e-4)
    # With ten comparisons each interval is one of 99.5 %: t(2) at 0.9975 is 14.089.
    ten = paired_interval(values, others, comparisons=10, fewest=3)
    assert ten is not None
    assert ten.high - ten.difference == pytest.approx(14.089 / math.sqrt(3), rel=1e-4)
    assert paired_interval({0: 1.0, 1: 1.0, 2: 2.0}, {3: 2.0}) is None


def test_too_few_seeds_bear_no_interval():
    # Two differences of 1 and 3 would give 2 ± 12.7, and with ten comparisons 2 ± 127: points of a percentage.
    values = dict(enumerate([1.0, 3.0, 2.0, 4.0, 5.0]))
    for seeds in range(1, 5):
        assert paired_interval(values, dict.fromkeys(range(seeds), 0.0)) is None
    assert paired_interval(values, dict.fromkeys(range(5), 0.0)) is not None


def test_a_scale_of_colours_begins_below_the_lowest_value():
    assert scale_from([93.0, 100.0]) == 90
    assert scale_from([100.0]) == 90
    assert scale_from([37.5, 99.0]) == 30
    assert scale_from([]) == 0


def test_the_closed_form_shares_its_colour_with_no_other_method():
    names = [*paper.METHODS, "analytic", "mine", "yours"]
    colours = [mark_for(name, names).colour for name in names]
    for name in ("ipal", "analytic"):
        assert colours.count(mark_for(name, names).colour) == 1


def test_what_prints_the_same_ranks_the_same():
    assert marks([3.0, 5.001, None, 5.0, 4.0]) == ["", "best", "", "best", "second"]
    assert marks([None, 1.0]) == ["", "best"]
    assert marks([]) == []


def test_labels_are_spread_out_by_hand():
    # 1.0 and 1.2 want to be 1 apart: they part evenly around 1.1. 5 stays; 9.9 is held at the upper bound.
    assert spread_out([5.0, 1.2, 1.0, 9.9], 1.0, 0.0, 9.0) == pytest.approx([5.0, 1.6, 0.6, 9.0])
    crowd = spread_out([3.0] * 8, 0.5, 0.0, 10.0)
    assert np.min(np.diff(sorted(crowd))) == pytest.approx(0.5)
    assert spread_out([], 1.0, 0.0, 1.0) == []
