"""Numbers over seeds, worked by hand."""

import math

import numpy as np
import pytest

from ipal.report.statistics import marks, paired_interval, spread
from ipal.report.styles import spread_out


def test_spread_by_hand():
    # mean 4; squares of the deviations 4 + 0 + 4 = 8, over n - 1 = 2
    assert spread([2.0, 4.0, 6.0]) == (4.0, 2.0)
    assert spread([7.0]) == (7.0, None)
    assert spread([]) is None


def test_paired_interval_by_hand():
    # Differences at seeds 0, 1, 2: 1, 2, 3. Mean 2, deviation 1; Student's t of 2 degrees at 0.975 is 4.302653.
    found = paired_interval({0: 11.0, 1: 22.0, 2: 33.0}, {0: 10.0, 1: 20.0, 2: 30.0})
    half = 4.302653 / math.sqrt(3)
    assert found == pytest.approx((2.0, 2.0 - half, 2.0 + half), abs=1e-5)


def test_only_equal_seeds_make_a_pair():
    # Seed 5 has no partner; differences at 1 and 2: 2 and 4, deviation sqrt(2), t of 1 degree 12.7062.
    found = paired_interval({5: 99.0, 2: 24.0, 1: 12.0}, {1: 10.0, 2: 20.0, 3: 0.0})
    assert found == pytest.approx((3.0, 3.0 - 12.7062, 3.0 + 12.7062), abs=1e-4)
    assert paired_interval({0: 1.0}, {0: 2.0}) is None
    # With ten comparisons each interval is one of 99.5 %: t(1) at 0.9975 is 127.32; differences 1 and 3.
    ten = paired_interval({0: 1.0, 1: 3.0}, {0: 0.0, 1: 0.0}, comparisons=10)
    assert ten is not None
    assert ten.high - ten.difference == pytest.approx(127.32, rel=1e-4)
    assert paired_interval({0: 1.0, 1: 1.0}, {2: 2.0}) is None


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
