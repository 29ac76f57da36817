"""What says whether Gaussians of classes are finite."""

import math
from types import SimpleNamespace

import pytest
import torch

from ipal.backend.finite import not_finite
from ipal.learners.gaussian_memory import finite_parts
from ipal.nn.prototypes import PrototypeMemory

FINE = torch.ones(2, 2)


def not_finite_in(mean: torch.Tensor, variance: torch.Tensor) -> list[str]:
    return not_finite(finite_parts(SimpleNamespace(memory_=PrototypeMemory(mean, variance, torch.tensor([3, 3])))))


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_is_found(wrong: float) -> None:
    bad = torch.tensor([[1.0, 1.0], [1.0, wrong]])
    assert not_finite_in(FINE, FINE) == []
    assert not_finite_in(bad, FINE) == ["prototypes.squared_lengths"]
    assert not_finite_in(FINE, bad) == ["prototypes.variance"]


def test_means_too_long_only_together_are_fine() -> None:
    assert not_finite_in(torch.full((2, 2), 1e19), FINE) == []  # a squared length of 2e38; float32 ends at 3.4e38


@pytest.mark.parametrize("length", [1e25, 1.5e19])  # the square of the second is a number, twice the square is none
def test_a_mean_too_long_to_be_squared_is_found(length: float) -> None:
    assert not_finite_in(torch.full((2, 2), length), FINE) == ["prototypes.squared_lengths"]
