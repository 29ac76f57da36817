"""Leaving a row out, in closed form: against numbers worked by hand, and against fitting again without the row."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ipal import Analytic
from ipal.backend.checks import MisfitError
from ipal.closed_form import ridge as left_out
from ipal.closed_form.ridge import (
    FIRST_RIDGE,
    FIRST_SCALE,
    RIDGES,
    SCALES,
    LeftOut,
    Products,
    factorise,
    interpolated,
    left_out_scores,
    log_losses,
    products_by_factor,
    products_by_ridge,
    spaced,
)
from ipal.closed_form.sums import Normal, Rows, Sums, mirrored
from ipal.errors import NonFiniteError
from tests.closed_form.analytic_support import case, memory, solved

quick = settings(deadline=None, max_examples=25)
CPU = torch.device("cpu")


def doubles(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def sums_of(x: Tensor, labels: Tensor) -> tuple[Sums, Rows]:
    rows = Rows(x, labels, torch.Tensor.double, torch.arange(len(x)))
    return Sums.empty(x.shape[1], CPU).grown(int(labels.max()) + 1).changed(1, rows), rows


# ------------------------------------------------------------------ scores


def by_both_ways(x: Tensor, labels: Tensor, normal: Normal, ridge: float) -> Tensor:
    """Scores by an eigendecomposition, and by a triangle: the same."""
    (by_ridge,) = products_by_ridge(x, normal, [ridge])
    by_factor = products_by_factor(x, normal, factorise(normal.gram, ridge))
    for one, other in zip(by_ridge, by_factor, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)
    found, same = (left_out_scores(products, labels, normal) for products in (by_ridge, by_factor))
    torch.testing.assert_close(found, same, rtol=1e-7, atol=1e-9)
    return found


def test_products_by_hand() -> None:
    # A + I = (3 1; 1 2), of inverse (2 -1; -1 3) / 5. The row (1, 0), the means (1, 1) and (0, 2) as columns.
    normal = Normal(doubles([2, 99], [1, 1]), doubles([1, 0], [1, 2]), torch.ones(2), 1.0, torch.zeros(2))
    expected = Products(doubles(2 / 5), doubles([1 / 5, -2 / 5]), doubles([3 / 5, 4 / 5], [4 / 5, 12 / 5]))
    (by_ridge,) = products_by_ridge(doubles([1, 0]), normal, [1.0])
    by_factor = products_by_factor(doubles([1, 0]), normal, factorise(normal.gram, 1.0))
    for found in (by_ridge, by_factor):
        for part, other in zip(found, expected, strict=True):
            torch.testing.assert_close(part, other)


def test_left_out_scores_by_hand() -> None:
    # One column. Class 0 has the rows 1 and 3, class 1 has 2 and 4: means 2 and 3, C / N = 1 / 2, k = 0.
    # A = (1 + 9 + 4 + 16) / 2 = 15. Without the row 1: A' = 14.5, means 3 and 3; with a ridge of 0.5: 1 * 3 / 15.
    normal = Normal(doubles([15]), doubles([2, 3]), torch.tensor([2, 2]), 0.5, torch.zeros(2))
    for ridge, expected in ((0.5, 3 / 15), (1.5, 3 / 16)):
        found = by_both_ways(doubles([1]), torch.tensor([0]), normal, ridge)
        torch.testing.assert_close(found, doubles([expected, expected]))
    # Without the row 4: A' = 15 - 8 = 7, means 2 and 2.
    found = by_both_ways(doubles([4]), torch.tensor([1]), normal, 1.0)
    torch.testing.assert_close(found, doubles([8 / 8, 8 / 8]))
    # With k = -1/2 for class 0, whose mean goes from 2 to 3: A' = 14.5 - (9 - 4) / 2 = 12.
    normal = replace(normal, mean_weight=doubles(-0.5, 0).flatten())
    found = by_both_ways(doubles([1]), torch.tensor([0]), normal, 3.0)
    torch.testing.assert_close(found, doubles([3 / 15, 3 / 15]))


@quick
@given(seed=st.integers(0, 10**6), rows=st.integers(8, 20), width=st.integers(1, 8), power=st.floats(-3, 1))
def test_leaving_a_row_out_is_building_the_matrices_without_it(seed: int, rows: int, width: int, power: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, dtype=torch.float64, generator=generator)
    labels = torch.cat([torch.arange(6) % 3, torch.randint(0, 3, (rows - 6,), generator=generator)])  # two of each
    ridge, count = 10**power, torch.bincount(labels)
    sums, given_rows = sums_of(x, labels)
    x = torch.cat([piece for piece, _ in given_rows.pieces(torch.arange(rows))])  # on their grid
    normal = sums.normal()
    found = by_both_ways(x, labels, normal, ridge)
    for i in range(rows):
        others = torch.arange(rows) != i
        means = torch.stack([x[others & (labels == c)].mean(dim=0) for c in range(3)])
        # Weights stay as they are with the row.
        f = 3 / rows
        k = 1 - f * count.double()
        gram = f * x[others].T @ x[others] + (means.T * k) @ means
        expected = x[i] @ torch.linalg.solve(gram + ridge * torch.eye(width).double(), means.T)
        torch.testing.assert_close(found[i], expected, rtol=1e-7, atol=1e-9)


def test_log_losses_by_hand() -> None:
    # Scores differ by ln 3, doubled by ln 9: right with 3/4 and 9/10, wrong with 1/4 and 1/10.
    scores = doubles([math.log(3), 0], [math.log(3), 0])
    found = log_losses(scores, torch.tensor([0, 1]), [1.0, 2.0])
    torch.testing.assert_close(found, -doubles([3 / 4, 1 / 4], [9 / 10, 1 / 10]).log())


# ------------------------------------------------------------------ the least loss


def test_the_vertex_of_a_parabola_by_hand() -> None:
    # A parabola by the logarithm of scales, which are half a power of two apart: its vertex is found between them.
    for vertex in (0.9, 1.0, 1.2):
        losses = [(math.log2(scale) - vertex) ** 2 for scale in SCALES]
        least = min(range(len(SCALES)), key=losses.__getitem__)
        assert interpolated(losses, least) == pytest.approx(2**vertex)
    # At either end, and where losses do not bend, it is the scale itself.
    rising = list(range(len(SCALES)))
    assert interpolated(rising, 0) == SCALES[0]
    assert interpolated(rising[::-1], len(SCALES) - 1) == SCALES[-1]
    assert interpolated([1.0] * len(SCALES), 4) == SCALES[4]


def losses_at(*least: tuple[int, int]) -> Tensor:
    """Of each row 1, but 0 at one ridge and scale."""
    loss = torch.ones(len(least), len(RIDGES), len(SCALES), dtype=torch.float64)
    for row, (ridge, scale) in enumerate(least):
        loss[row, ridge, scale] = 0
    return loss


def kept(loss: Tensor, *rows: tuple[int, int, int]) -> LeftOut:
    """Losses with their (task, class, number of nodes)."""
    task, place, count = torch.tensor(rows, dtype=torch.int64).reshape(-1, 3).T
    return LeftOut(task, place, loss, count)


def test_the_best_ridge_and_scale_by_hand() -> None:
    # All else is equal: the vertex lies in the middle.
    ridge, scale = kept(losses_at((3, 5)), (0, 0, 1)).best(RIDGES)
    assert (ridge, scale) == (RIDGES[3], pytest.approx(SCALES[5]))
    # Every class counts the same, whatever its number of rows. By rows it would be 1 / 102 and 40 / 102.
    loss = losses_at((3, 5), (4, 6)) * doubles([[100]], [[2]]).view(2, 1, 1)
    loss[0, 4, 6], loss[1, 3, 5] = 40, 1
    assert kept(loss, (0, 0, 100), (0, 1, 2)).best(RIDGES)[0] == RIDGES[4]  # (0.4 + 0) / 2, not (0 + 0.5) / 2
    # And whatever its number of tasks: class 0 in two parts, of 90 and 10 rows, is class 0 in one.
    parts = torch.cat([0.9 * loss[:1], 0.1 * loss[:1], loss[1:]])
    assert kept(parts, (0, 0, 90), (1, 0, 10), (1, 1, 2)).best(RIDGES) == kept(loss, (0, 0, 100), (0, 1, 2)).best(
        RIDGES
    )


def test_of_ridges_that_are_about_as_good_the_smallest_is_taken() -> None:
    # 1 % more than the least is as good.
    for more, ridge in ((1.009, RIDGES[2]), (1.011, RIDGES[7])):
        loss = torch.full((1, len(RIDGES), len(SCALES)), 9.0, dtype=torch.float64)
        loss[0, 7, 5], loss[0, 2, 5] = 1, more
        assert kept(loss, (0, 0, 1)).best(RIDGES)[0] == ridge


def test_until_a_row_was_left_out_ridge_and_scale_are_the_first() -> None:
    none = LeftOut.empty(len(RIDGES), CPU)
    assert none.best(RIDGES) == (FIRST_RIDGE, FIRST_SCALE)
    assert none.best([0.7]) == (0.7, FIRST_SCALE)
    assert FIRST_RIDGE in RIDGES
    assert FIRST_SCALE in SCALES
    assert tuple(sorted(RIDGES)) == RIDGES


# ------------------------------------------------------------------ which rows


def test_spaced_rows_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "MOST_ROWS", 4)
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 2, 0])
    # Two of each class: of five every third, of three every second. The only row of class 2 cannot be left out.
    assert spaced(labels, torch.tensor([5, 3, 1])).tolist() == [0, 6, 1, 5]
    # One in this batch, but not the only one.
    assert spaced(labels, torch.tensor([5, 3, 9])).tolist() == [0, 1, 7]
    assert spaced(labels[:0], torch.tensor([5])).tolist() == []
    assert spaced(torch.tensor([2]), torch.tensor([5, 3, 1])).tolist() == []


# ------------------------------------------------------------------ sums of losses


def columns(found: LeftOut) -> tuple[list[int], list[int], list[int]]:
    """Tasks, classes and numbers of nodes."""
    return found.task.tolist(), found.place.tolist(), found.count.tolist()


def test_losses_are_those_of_the_rows_that_were_left_out() -> None:
    x, labels = torch.rand(9, 4, dtype=torch.float64), torch.arange(9) % 2
    sums, rows = sums_of(x, labels)
    found = LeftOut.empty(2, CPU).plus(sums, rows, 0, [0.1, 1.0])
    x = torch.cat([piece for piece, _ in rows.pieces(torch.arange(9))])
    scores = [left_out_scores(one, labels, sums.normal()) for one in products_by_ridge(x, sums.normal(), [0.1, 1.0])]
    assert columns(found) == ([0, 0], [0, 1], [5, 4])
    for c in (0, 1):
        for number in (0, 1):
            expected = log_losses(scores[number], labels, SCALES)[:, labels == c].sum(dim=1)
            torch.testing.assert_close(found.loss[c, number], expected)
    # Another task has rows of its own, only of the classes that it brought.
    again = found.plus(sums, replace(rows, labels=labels[:1], nodes=torch.tensor([0])), 1, [0.1, 1.0])
    assert columns(again) == ([0, 0, 1], [0, 1, 0], [5, 4, 1])
    assert torch.equal(again.loss[:2], found.loss)
    # A task of which no row can be left out has none.
    alone, only = sums_of(x[:1], labels[:1])
    assert LeftOut.empty(2, CPU).plus(alone, only, 0, [0.1, 1.0]).task.tolist() == []


def test_wide_rows_are_left_out_of_the_narrower_model_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipal.closed_form.sums.COLUMNS", 2)
    x, labels = torch.rand(9, 5, dtype=torch.float64), torch.arange(9) % 2
    sums, rows = sums_of(x, labels)
    found = LeftOut.empty(1, CPU).plus(sums, rows, 0, [0.1])
    x = torch.cat([piece for piece, _ in rows.pieces(torch.arange(9))])
    # Every second column, and rows about as long as before.
    narrow = math.sqrt(2) * x[:, ::2]
    whole = sums.normal()
    normal = replace(whole, gram=2 * mirrored(whole.gram)[::2, ::2], mean=math.sqrt(2) * whole.mean[::2])
    losses = log_losses(by_both_ways(narrow, labels, normal, 0.1), labels, SCALES)
    torch.testing.assert_close(found.loss.sum(dim=(0, 1)), losses.sum(dim=1))


# Class 0 and 1 in task 0, class 1 and 2 in task 1.
TWO_TASKS = ((0, 0, 3), (0, 1, 4), (1, 1, 5), (1, 2, 6))


@pytest.mark.parametrize(
    ("name", "values", "word"),
    [
        ("task", [0, 0, 1, 2], "left_out.task"),  # there were two
        ("place", [0, 1, 1, 3], "left_out.place"),  # there are three
        ("count", [3, 4, 5, 0], "left_out.count"),
        ("count", [3, 4, 5], "differ"),
    ],
)
def test_losses_that_no_model_has_are_refused(name: str, values: list[int], word: str) -> None:
    one = kept(losses_at((0, 0), (1, 1), (2, 2), (3, 3)), *TWO_TASKS)
    one.check(classes=3, tasks=2)
    with pytest.raises(MisfitError, match=word):
        replace(one, **{name: torch.tensor(values)}).check(classes=3, tasks=2)


def test_scores_that_are_no_numbers_are_refused() -> None:
    x, labels = torch.rand(9, 4, dtype=torch.float64), torch.arange(9) % 2
    sums, rows = sums_of(x, labels)
    broken = replace(rows, expand=lambda some: some.double() * math.nan)
    with pytest.raises(NonFiniteError, match="leave-one-out scores"):
        LeftOut.empty(1, CPU).plus(sums, broken, 0, [0.1])


# ------------------------------------------------------------------ a model


def test_a_model_uses_the_ridge_and_the_scale_of_the_least_loss() -> None:
    one = case(60, ridge=None)
    found = one.model(one.nodes)
    losses = []
    for ridge in RIDGES:
        fixed = Analytic(**{**one.options, "ridge": ridge}).partial_fit(one.data(one.nodes))
        found_out = memory(fixed).left_out
        losses.append(float((found_out.loss / found_out.count[:, None, None]).mean(dim=0).min()))
    assert solved(found).ridge == RIDGES[int(np.argmin(losses))]
    fixed = Analytic(**{**one.options, "ridge": solved(found).ridge}).partial_fit(one.data(one.nodes))
    assert torch.equal(solved(fixed).weights, solved(found).weights)
    assert solved(fixed).scale == solved(found).scale
