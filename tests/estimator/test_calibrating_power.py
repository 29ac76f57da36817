"""The power that calibrates probabilities, against numbers worked by hand."""

import math

import numpy as np
import pytest
import torch

from ipal.estimator.open_world.calibration import LEVELS, POWERS, Asked, Calibration, shown


def row(task: int, asked: list[int], certain: float, right: float) -> Calibration:
    """A task whose nodes say `certain` for one of two classes, and are right so often."""
    odds = certain / (1 - certain)
    sure = [1 / (1 + odds**-power) for power in np.exp(POWERS)]
    parts = torch.zeros(1, LEVELS)
    return Calibration(
        torch.tensor([task]), torch.tensor([asked]), parts, parts, parts, torch.tensor([sure]), torch.tensor([right])
    )


def test_calibration_power_by_hand() -> None:
    # All say 0.9, and 3 of 4 are right: 9^s / (9^s + 1) = 3/4 where 9^s = 3.
    assert row(0, [5, 5], 0.9, 0.75).power(torch.tensor([10, 10])) == pytest.approx(0.5, rel=1e-2)
    # All say 0.6, and 9 of 10 are right: 1.5^s = 9.
    expected = math.log(9) / math.log(1.5)
    assert row(0, [5, 5], 0.6, 0.9).power(torch.tensor([10, 10])) == pytest.approx(expected, rel=1e-2)


def test_calibration_power_counts_tasks_by_the_known_nodes_they_stand_for() -> None:
    # 30 nodes of class 0 stand behind the first task, 10 of class 1 behind the second: right are 0.75 in the mean,
    # whatever the number of those that were asked.
    both = row(0, [5, 0], 0.9, 0.7).plus(row(1, [0, 500], 0.9, 0.9))
    assert both.power(torch.tensor([30, 10])) == pytest.approx(0.5, rel=1e-2)


def test_calibration_power_is_one_where_nothing_is_known() -> None:
    assert Calibration.empty(2).power(torch.tensor([3, 4])) == 1
    assert row(0, [5, 5], 0.9, 0.75).power(torch.tensor([0, 0])) == 1
    # No power makes nodes right always, or less often than by chance.
    for right in (1.0, 0.4):
        assert row(0, [5, 5], 0.9, right).power(torch.tensor([10, 10])) == 1


def test_calibration_power_of_nodes_that_were_asked() -> None:
    # Eight nodes say 0.9 for class 0; six are right, of which the two of class 1 stand for as many known nodes each.
    logs, labels = torch.tensor([[0.9, 0.1]] * 8).double().log(), torch.tensor([0] * 6 + [1] * 2)
    asked = Asked(labels, logs, torch.zeros(8), torch.zeros(8), torch.zeros(8))
    assert shown(asked, torch.tensor([60, 20]), 0).power(torch.tensor([60, 20])) == pytest.approx(0.5, rel=1e-2)
