"""Numbers over seeds, worked by hand."""

import math

import pytest

from ipal.report import paper
from ipal.report.figures import look_of
from ipal.report.statistics import marks, paired_interval, scale_from, spread


def test_spread_by_hand():
    # mean 4; squares of the deviations 4 + 0 + 4 = 8, over n - 1 = 2
    assert spread([2.0, 4.0, 6.0]) == (4.0, 2.0)
    assert spread([7.0]) == (7.0, None)
    assert spread([]) is None


def test_paired_interval_by_hand():
    # Seeds 6 and 7 have no partner; differences at 1 to 5: 1 to 5, t of 4 degrees 2.776445.
    values, others = {seed: 11.0 * seed for seed in range(1, 7)}, {seed: 10.0 * seed for seed in (1, 2, 3, 4, 5, 7)}
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert paired_interval(values, others) == pytest.approx((3.0, 3.0 - half, 3.0 + half), abs=1e-4)
    # With ten comparisons each interval is one of 99.5 %: t(4) at 0.9975 is 5.5976.
    ten = paired_interval(values, others, comparisons=10)
    assert ten is not None
    assert ten.high - ten.difference == pytest.approx(5.5976 * math.sqrt(2.5 / 5), rel=1e-4)


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
    colours = [look_of(name, names)["color"] for name in names]
    for name in ("ipal", "analytic"):
        assert colours.count(look_of(name, names)["color"]) == 1


def test_what_prints_the_same_ranks_the_same():
    assert marks([3.0, 5.001, None, 5.0, 4.0]) == ["", "best", "", "best", "second"]
    assert marks([None, 1.0]) == ["", "best"]
    assert marks([]) == []
