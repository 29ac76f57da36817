"""Panels of symmetric matrices against numbers worked by hand."""

import pytest
import torch
from torch import Tensor

from ipal.closed_form import sums as lower_half
from ipal.closed_form.sums import add_products, mirrored, numbers, panels, square


def doubles(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels of two columns."""
    monkeypatch.setattr(lower_half, "PANEL", 2)


@pytest.mark.usefixtures("narrow")
def test_panels_by_hand() -> None:
    # Five columns: two of five rows, two of three, one of one.
    assert numbers(5) == 2 * 5 + 2 * 3 + 1
    assert [numbers(width) for width in (1, 2, 3)] == [1, 4, 2 * 3 + 1]
    half = torch.arange(17)
    found = list(panels(half, 5))
    assert [begin for begin, _ in found] == [0, 2, 4]
    assert [panel.tolist() for _, panel in found] == [
        [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]],
        [[10, 11], [12, 13], [14, 15]],
        [[16]],
    ]
    found[2][1][0, 0] = 99
    assert half[16] == 99, "a view"


@pytest.mark.usefixtures("narrow")
def test_square_by_hand() -> None:
    # Diagonal blocks are whole; right of them there is nothing.
    whole = square(torch.arange(17), 5)
    assert whole.tolist() == [
        [0, 1, 0, 0, 0],
        [2, 3, 0, 0, 0],
        [4, 5, 10, 11, 0],
        [6, 7, 12, 13, 0],
        [8, 9, 14, 15, 16],
    ]
    assert square(torch.arange(17), 5, 2).tolist() == [[0, 0, 0], [4, 10, 0], [8, 14, 16]]
    assert square(torch.arange(17), 5, 3).tolist() == [[0, 0], [6, 13]]


@pytest.mark.parametrize("panel", [1, 2, 3, 5, 8, 256])
@pytest.mark.parametrize("step", [1, 2, 3, 4, 7])
def test_square_of_any_panels_and_steps_is_part_of_the_products(
    panel: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower_half, "PANEL", panel)
    x = torch.arange(40, dtype=torch.float64).reshape(5, 8).sin()
    half = torch.zeros(numbers(8), dtype=torch.float64)
    add_products(half, x)
    torch.testing.assert_close(mirrored(square(half, 8, step)), (x.T @ x)[::step, ::step])


def test_products_are_added_by_hand() -> None:
    half = torch.zeros(4, dtype=torch.float64)
    add_products(half, doubles([1, 2], [3, 4]))
    assert mirrored(square(half, 2)).tolist() == [[10, 14], [14, 20]]
    add_products(half, doubles([1, 2]).float())  # in single precision
    assert mirrored(square(half, 2)).tolist() == [[11, 16], [16, 24]]
    assert half.dtype == torch.float64
