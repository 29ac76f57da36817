"""The head that grows, and how large the weights of a network are."""

import math

import pytest
import torch
from torch import Tensor

from ipal.nn.head import Head
from ipal.nn.network import root_mean_square


def head(*blocks: int, width: int = 2, temperature: float | None = None) -> Head:
    made, generator = Head(width, temperature), torch.Generator().manual_seed(0)
    for number in blocks:
        made.grow(number, generator)
    return made


def fill(parameters: list[Tensor], values: list[object]) -> None:
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(torch.tensor(value))


def test_a_linear_head_by_hand() -> None:
    made = head(2, 1)
    fill(list(made.weights), [[[1.0, 2.0], [0.0, -1.0]], [[3.0, 3.0]]])
    fill(list(made.biases), [[0.5, 0.0], [-1.0]])
    # (1, 2) . (2, 1) + 0.5, (0, -1) . (2, 1), (3, 3) . (2, 1) - 1: the classes of both blocks, in order.
    assert made(torch.tensor([[2.0, 1.0]])).tolist() == [[4.5, -1.0, 8.0]]
    assert made.num_classes == 3
    assert made.weight.tolist() == [[1.0, 2.0], [0.0, -1.0], [3.0, 3.0]]


def test_a_cosine_head_by_hand() -> None:
    made = head(1, 2, temperature=0.1)
    fill(list(made.weights), [[[5.0, 0.0]], [[0.0, 0.1], [-3.0, 4.0]]])
    # Lengths do not matter: cosines of (3, 4) with the rows are 0.6, 0.8 and (-9 + 16) / 25; divided by 0.1.
    torch.testing.assert_close(made(torch.tensor([[3.0, 4.0]])), torch.tensor([[6.0, 8.0, 2.8]]))
    assert len(made.biases) == 0


def test_a_cosine_head_gives_a_row_of_zeros_no_direction_and_no_nan() -> None:
    made = head(2, temperature=0.1)
    f = torch.zeros(1, 2, requires_grad=True)
    made(f).sum().backward()
    assert f.grad.isfinite().all()
    assert made(f).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("temperature", [None, 0.1])
def test_growing_leaves_old_rows_and_old_outputs_as_they_were(temperature: float | None) -> None:
    made = head(2, width=4, temperature=temperature)
    f = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    before, parameters = made(f).detach(), list(made.parameters())
    new = made.grow(3, torch.Generator().manual_seed(2))
    torch.testing.assert_close(made(f)[:, :2], before)
    assert {id(p) for p in made.parameters()} == {id(p) for p in parameters + new}
    assert made.num_classes == 5


def test_new_rows_are_drawn_as_torch_draws_a_linear_layer() -> None:
    weight, bias = head(width=100).grow(50, torch.Generator().manual_seed(0))
    bound = 1 / math.sqrt(100)
    for drawn in (weight, bias):
        assert drawn.abs().max() <= bound
        assert drawn.abs().max() > 0.9 * bound
    first, again = (head(width=4).grow(2, torch.Generator().manual_seed(5))[0] for _ in range(2))
    assert torch.equal(first, again)


def test_root_mean_square_by_hand() -> None:
    # Squares 9 + 16 + 0 + 0 of four weights, and 1 + 1 of two; the vector is no matrix, and does not count.
    square, wide = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([[1.0, -1.0]])
    assert root_mean_square([square, torch.ones(7)]) == 2.5
    assert root_mean_square([square, wide, torch.ones(7)]) == pytest.approx((27 / 6) ** 0.5)
    assert root_mean_square([torch.zeros(2, 2)]) == 1, "a rate stays as it is where all weights are zero"
