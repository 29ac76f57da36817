"""The solve of the closed form against numbers worked by hand, and what cannot be solved."""

import math

import pytest
import torch
from torch import Tensor

from ipal.closed_form import ridge
from ipal.errors import DataError, NonFiniteError
from ipal.nn.cholesky import mean_diagonal


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def doubles(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# Two rows (1, 0) of class 0 and (1, 1) of class 1: A and M are read off.
ROWS, TARGETS = doubles([1, 0], [1, 1]), doubles([1, 0], [0, 1])
GRAM, MEAN = doubles([2, 1], [1, 1]), doubles([1, 1], [0, 1])


def test_factorise_by_hand() -> None:
    # A + I = (3 1; 1 2) = L L^T.
    lower = ridge.factorise(GRAM, 1.0)
    root = math.sqrt(3)
    torch.testing.assert_close(lower, doubles([root, 0], [1 / root, math.sqrt(5 / 3)]))


@pytest.mark.parametrize("above", [99, math.nan])
def test_factorise_reads_the_lower_half_only_and_changes_nothing(above) -> None:
    half = doubles([2, above], [1, 1])
    before = half.clone()
    torch.testing.assert_close(ridge.factorise(half, 0.1), ridge.factorise(GRAM, 0.1))
    torch.testing.assert_close(half, before, rtol=0, atol=0, equal_nan=True)


def test_ridge_weights_by_hand() -> None:
    # (3 1; 1 2)^-1 = (2 -1; -1 3) / 5.
    weights = ridge.ridge_weights(ridge.factorise(GRAM, 1.0), MEAN)
    torch.testing.assert_close(weights, doubles([2 / 5, 1 / 5], [-1 / 5, 2 / 5]))


# ---------------------------------------------------------------------- what cannot be solved


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-30])
def test_sums_of_next_to_nothing_are_solved_without_denormal_numbers(dtype, scale) -> None:
    rows = scale * normal(4, 3).to(dtype)
    numbers = torch.finfo(dtype)
    lower = ridge.factorise(rows.T @ rows * scale, 1e-3)
    assert float(lower.diagonal().min()) > numbers.tiny / numbers.eps


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("place", [(1, 0), (1, 1)])
def test_sums_that_are_not_finite_are_refused(wrong, place) -> None:
    gram = GRAM.clone()
    gram[place] = wrong
    with pytest.raises(NonFiniteError, match="NaN, infinite"):
        ridge.factorise(gram, 0.1)


@pytest.mark.parametrize("gram", [doubles([-1, 0], [0, -1]) * 1e9, doubles([1, 1e9], [1e9, 1])])
def test_what_is_no_sum_of_products_is_refused(gram) -> None:
    with pytest.raises(DataError, match="no sums over nodes"):
        ridge.factorise(gram, 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_ridge_is_measured_in_ones_up_to_the_smallest_numbers_by_hand(dtype) -> None:
    smallest = torch.finfo(dtype).tiny / torch.finfo(dtype).eps
    for diagonal, size in ((0.0, 1.0), (smallest, 1.0), (2 * smallest, 2 * smallest), (3.0, 3.0)):
        assert float(mean_diagonal(diagonal * torch.eye(2, dtype=dtype))) == size
