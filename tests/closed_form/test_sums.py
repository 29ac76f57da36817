"""Sums of the closed form against numbers worked by hand: what they are, and what comes and goes."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ipal.closed_form.sums import (
    Rows,
    Sums,
    add_products,
    balanced_weights,
    exact_parts,
    grid,
    mirrored,
    numbers,
    panels,
    rounded,
    square,
)
from tests.closed_form.analytic_support import few

CPU = torch.device("cpu")


def doubles(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def rows(inputs: Tensor, *labels: int) -> Rows:
    return Rows(inputs, torch.tensor(labels), lambda x: x.double(), torch.arange(len(labels)))


# Class 0 is (1, 0) and (0, 1), class 1 is (1, 1) alone.
ANTS, BEE = doubles([1, 0], [0, 1]), doubles([1, 1])
THREE = rows(torch.cat([ANTS, BEE]), 0, 0, 1)


def none(width: int = 2, classes: int = 2) -> Sums:
    return Sums.empty(width, CPU).grown(classes)


def learned() -> Sums:
    return none().changed(1, THREE)


def some_of(every: Rows, part: Tensor) -> Rows:
    return dataclasses.replace(every, labels=every.labels[part], nodes=part)


def assert_same(a: Sums, b: Sums) -> None:
    """To the bit: sums are whole numbers of a unit."""
    for name, tensor in a.tensors().items():
        assert torch.equal(tensor, b.tensors()[name]), name


# ------------------------------------------------------------------ what they are


def test_balanced_weights_by_hand() -> None:
    # Two classes of 1 and 3 rows: f = 2 / 4, k = 1 - 1 / 2 and 1 - 3 / 2.
    f, k = balanced_weights(torch.tensor([1, 3]))
    assert (f, k.tolist()) == (0.5, [0.5, -0.5])
    # A class without a row counts nothing and is not counted.
    f, k = balanced_weights(torch.tensor([1, 0, 3]))
    assert (f, k.tolist()) == (0.5, [0.5, 0, -0.5])


def test_normal_equations_by_hand() -> None:
    # 2/3 of (2 1; 1 2), less 1/3 of the ants' mean, and 1/3 of the bee's: 4/3 - 1/12 + 1/3 and 2/3 + 1/4.
    normal = learned().normal()
    torch.testing.assert_close(mirrored(normal.gram), doubles([19 / 12, 11 / 12], [11 / 12, 19 / 12]))
    assert normal.row_weight == pytest.approx(2 / 3)
    torch.testing.assert_close(normal.mean_weight, doubles(-1 / 3, 1 / 3).flatten())
    torch.testing.assert_close(normal.mean, doubles([0.5, 1], [0.5, 1]))
    assert normal.count.tolist() == [2, 1]


def test_normal_equations_of_every_second_column_by_hand() -> None:
    x = on_grid(9, 5, 100)
    sums = none(5).changed(1, Rows(x, torch.arange(9) % 2, torch.Tensor.double, torch.arange(9)))
    whole, some = sums.normal(), sums.normal(2)
    # Columns 0, 2 and 4, each made longer by the root of 2.
    torch.testing.assert_close(mirrored(some.gram), 2 * mirrored(whole.gram)[::2, ::2])
    torch.testing.assert_close(some.mean, math.sqrt(2) * whole.mean[::2])


def test_what_is_kept_by_hand() -> None:
    # Two columns are one panel, whole: (2 1; 1 2) of all three rows.
    assert learned().gram.tolist() == [2, 1, 1, 2]
    assert learned().products.tolist() == [[2, 1], [1, 2]]
    assert learned().count.tolist() == [2, 1]
    assert learned().total.tolist() == [[1, 1], [1, 1]]
    assert learned().mean.tolist() == [[0.5, 0.5], [1, 1]]


# ------------------------------------------------------------------ rows come and go


def test_adding_changes_no_sums_that_were_there() -> None:
    before = learned()
    kept = {name: tensor.clone() for name, tensor in before.tensors().items()}
    before.grown(3).changed(-1, rows(BEE, 1))
    before.merged(before, torch.tensor([0, 1]), 2)
    before.merged(before, torch.tensor([2, 3]), 4)
    before.united(torch.tensor([0, 0]), 1)
    assert all(torch.equal(kept[name], tensor) for name, tensor in before.tensors().items())


@few
@given(seed=st.integers(0, 10**6), size=st.sampled_from([0.1, 1.0, 1e4]))
def test_rows_taken_away_leave_the_bits_from_before_they_came(seed: int, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, labels = torch.randn(50, 7, generator=generator).double(), torch.randint(0, 3, (50,), generator=generator)
    everything = Rows(
        x, labels, lambda some: size * some, torch.arange(50)
    )  # by the bound in single or in double precision
    first, later = (some_of(everything, part) for part in torch.arange(50).split([20, 30]))
    before = none(7, 3).changed(1, first)
    after = before.changed(1, later)
    assert not torch.equal(after.total, before.total)
    found = after.changed(-1, later)
    assert torch.equal(found.count, before.count)
    assert torch.equal(found.total, before.total)
    assert torch.equal(found.gram, before.gram)
    gone = found.changed(-1, first)
    assert not any(part.any() for part in (gone.count, gone.total, gone.gram)), "no rounding is left"


@few
@given(seed=st.integers(0, 10**6), width=st.sampled_from([3, 8, 30]))
def test_rows_in_any_order_and_parts_have_the_same_bits(seed: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.nn.functional.normalize(torch.randn(40, width, generator=generator)).double()
    labels = torch.randint(0, 3, (40,), generator=generator)
    everything = Rows(x, labels, torch.Tensor.double, torch.arange(40))
    whole = none(width, 3).changed(1, everything)
    order = torch.randperm(40, generator=generator)
    parts, sums = order.split([1, 14, 25]), none(width, 3)
    for part in parts:
        sums = sums.changed(1, some_of(everything, part))
    assert_same(sums, whole)
    first, rest = (none(width, 3).changed(1, some_of(everything, part)) for part in order.split([15, 25]))
    assert_same(first.merged(rest, torch.arange(3), 3), whole)
    assert_same(whole.changed(-1, some_of(everything, parts[2])), first)


# ------------------------------------------------------------------ classes come and go


def test_merged_by_hand() -> None:
    # One has an ant (1, 0) and a bee (0, 1), the other a bee (1, 1).
    one, other = none().changed(1, rows(ANTS, 0, 1)), none(2, 1).changed(1, rows(BEE, 0))
    both = one.merged(other, torch.tensor([1]), 2)
    assert both.count.tolist() == [1, 2]
    assert both.total.tolist() == [[1, 0], [1, 2]]
    assert both.gram.tolist() == [2, 1, 1, 2]
    # Or a third class.
    ants = none(2, 1).changed(1, rows(ANTS, 0, 0))
    assert_same(ants.merged(other, torch.tensor([1]), 2), learned())


def test_united_by_hand() -> None:
    # Both are insects: three rows of sum (2, 2), and of products (2 1; 1 2).
    found = learned().united(torch.tensor([0, 0]), 1)
    assert (found.count.tolist(), found.total.tolist()) == ([3], [[2, 2]])
    assert found.gram.tolist() == [2, 1, 1, 2]
    turned = learned().united(torch.tensor([1, 0]), 2)
    assert_same(turned.united(torch.tensor([1, 0]), 2), learned())


# ------------------------------------------------------------------ as tensors


def test_sums_go_through_tensors_and_back() -> None:
    kept = none().changed(1, rows(doubles([0.6, 0.8], [1, 1]), 0, 1))
    again = Sums.empty(2, CPU).of_tensors(kept.tensors())
    assert_same(again, kept)
    assert again.gram.dtype == torch.float64
    assert torch.equal(again.gram, kept.gram)


def test_sums_of_products_are_saved_as_whole_numbers_of_32_bits_where_these_are_enough() -> None:
    kept = none().changed(1, rows(doubles([0.6, 0.8], [1, 1]), 0, 1))
    saved = kept.tensors()["gram"]
    # Steps of 2^-7: 77 and 102, and 128 twice.
    assert saved.dtype == torch.int32
    assert saved.tolist() == [77**2 + 128**2, 77 * 102 + 128**2, 77 * 102 + 128**2, 102**2 + 128**2]
    for factor in (2.0**20, -(2.0**20)):  # too large, on either side
        other = dataclasses.replace(kept, gram=kept.gram * factor)
        assert other.tensors()["gram"].dtype == torch.int64
        again = kept.of_tensors(other.tensors())
        assert torch.equal(again.gram, other.gram)


# ------------------------------------------------------------------ rows on a grid


def test_rows_are_rounded_to_a_grid_of_a_power_of_two() -> None:
    # Width 4: entries are about 1/2, of which six bits are kept: steps of 2^-7.
    assert grid(4) == 2.0**-7
    assert grid(1024) == 2.0**-11
    found = rounded(doubles([0.3, -0.3, 1, 0]))
    torch.testing.assert_close(found * 128, doubles([38, -38, 128, 0]), rtol=0, atol=0)


def on_grid(rows: int, width: int, most: int, seed: int = 0) -> torch.Tensor:
    """Whole numbers of up to `most` steps of the grid."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, (rows, width), generator=generator).double() * grid(width)


@pytest.mark.parametrize(("rows", "most"), [(1, 4096), (700, 100), (700, 300), (700, 4096), (70, 2**20), (0, 1)])
def test_products_in_single_precision_are_those_in_double_to_the_bit(rows: int, most: int) -> None:
    x = on_grid(rows, 9, most)
    parts = list(exact_parts(x))
    assert torch.equal(torch.cat([part.double() for part in parts]), x)
    assert all(part.dtype == torch.float32 for part in parts) == (most <= 2048 or rows < 2)
    half = torch.zeros(numbers(9), dtype=torch.float64)
    for part in parts:
        add_products(half, part)
    # Whole numbers below 2^53 are exact in double precision, so this is the sum itself.
    assert torch.equal(mirrored(square(half, 9)), x.T @ x)


def test_exact_parts_by_hand() -> None:
    # 2^24 = 4096 * 4096: two rows of 2896 steps are just within it, of 2897 just beyond.
    for steps, dtype in ((2890, torch.float32), (2900, torch.float64)):
        (part,) = exact_parts(torch.full((2, 4), float(steps), dtype=torch.float64) * grid(4))
        assert part.dtype == dtype
    # Beyond it sums are wrong in single precision: 4097^2 is odd, and more than 2^24.
    odd = torch.tensor([[4097.0]])
    assert float(odd.T @ odd) != 4097.0**2


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_rows_that_are_no_numbers_stay_so(wrong: float) -> None:
    x = on_grid(130, 3, 5)
    x[100, 1] = wrong
    assert not torch.isfinite(torch.cat([part.double() for part in exact_parts(x)])).all()


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels of two columns."""
    monkeypatch.setattr("ipal.closed_form.sums.PANEL", 2)


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
    monkeypatch.setattr("ipal.closed_form.sums.PANEL", panel)
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
