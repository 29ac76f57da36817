"""Margins between probabilities, and distances to class means, against numbers worked by hand."""

import math

import pytest
import torch

from ipal.methods.base import relative_distance
from ipal.nn.margins import LEAST, MOST_MARGIN, log_probabilities, margins


def test_margins_by_hand() -> None:
    logs = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]).double().log()
    found = margins(logs)
    assert found[0].tolist() == pytest.approx([math.log(5 / 3), math.log(3 / 5), math.log(2 / 5)])
    assert found[1].tolist() == pytest.approx([math.log(1 / 3), math.log(1 / 3), math.log(3)])
    # Raised to a power, probabilities have that many times the margins.
    torch.testing.assert_close(margins((3 * logs).log_softmax(dim=1)), 3 * found)
    # A constant in all logarithms of a node is nothing.
    torch.testing.assert_close(margins(logs + torch.tensor([[7.0], [-3.0]])), found)


def test_margins_of_equal_and_of_single_classes_are_nothing() -> None:
    assert margins(torch.tensor([[0.5, 0.5]]).log()).tolist() == [[0, 0]]
    assert margins(torch.tensor([[0.4, 0.4, 0.2]]).log())[0, :2].tolist() == [0, 0]
    assert margins(torch.zeros(3, 1)).tolist() == [[0], [0], [0]]


def test_margins_are_finite_where_a_probability_is_zero() -> None:
    found = margins(log_probabilities(torch.tensor([[1.0, 0.0]])))
    assert found.tolist() == [[MOST_MARGIN, -MOST_MARGIN]]
    # The smallest probability of single precision that is not denormal is about e^-87.
    assert float(log_probabilities(torch.tensor([0.0]))) == pytest.approx(-126 * math.log(2))
    assert log_probabilities(torch.tensor([0.5])).dtype == torch.float64


def test_relative_distance_by_hand() -> None:
    # Cosines with two classes, and with their middle: (1 - 0.6) / (1 - 0.2), and on the class itself nothing.
    found = relative_distance(torch.tensor([[0.6, -0.5, 0.2], [0.3, 1.0, 0.5], [0.0, 0.0, 0.0]]))
    assert found.tolist() == pytest.approx([0.5, 0, 1])


def test_relative_distance_on_the_middle_is_finite() -> None:
    assert relative_distance(torch.tensor([[0.5, 1.0]])).tolist() == pytest.approx([0.5 / LEAST])
