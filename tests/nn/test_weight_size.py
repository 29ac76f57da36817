"""How large weights are."""

import pytest
import torch

from ipal.nn.network import root_mean_square


def test_root_mean_square_by_hand() -> None:
    # Squares 9 + 16 + 0 + 0 of four weights, and 1 + 1 of two; the vector is no matrix, and does not count.
    square, wide = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([[1.0, -1.0]])
    assert root_mean_square([square, torch.ones(7)]) == 2.5
    assert root_mean_square([square, wide, torch.ones(7)]) == pytest.approx((27 / 6) ** 0.5)
    assert root_mean_square([torch.zeros(2, 2)]) == 1, "a rate stays as it is where all weights are zero"
