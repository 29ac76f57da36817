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
from ipal.closed_form import left_out
from ipal.closed_form.left_out import (
    FIRST_RIDGE,
    FIRST_SCALE,
    MOST_ROWS,
    RIDGES,
    SCALES,
    LeftOut,
    interpolated,
    left_out_scores,
    log_losses,
    spaced,
)
from ipal.closed_form.lower_half import mirrored
from ipal.closed_form.rows import Rows
from ipal.closed_form.sums import Kind, Normal, Sums
from ipal.errors import NonFiniteError
from tests.closed_form.analytic_support import POOLED_AND_PER_CLASS, case, memory, solved

quick = settings(deadline=None, max_examples=25)
CPU = torch.device("cpu")


def doubles(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def sums_of(kind: Kind, x: Tensor, labels: Tensor) -> tuple[Sums, Rows]:
    rows = Rows(x, labels, torch.Tensor.double)
    return Sums.empty(kind, x.shape[1], CPU).grown(int(labels.max()) + 1).changed(1, rows), rows


# ------------------------------------------------------------------ scores


def test_left_out_scores_by_hand() -> None:
    # One column. Class 0 has the rows 1 and 3, class 1 has 2 and 4: means 2 and 3, C / N = 1 / 2, k = 0.
    # A = (1 + 9 + 4 + 16) / 2 = 15. Without the row 1: A' = 14.5, means 3 and 3; with a ridge of 0.5: 1 * 3 / 15.
    normal = Normal(doubles([15]), doubles([2, 3]), torch.tensor([2, 2]), torch.full((2,), 0.5), torch.zeros(2))
    found = left_out_scores(doubles([1]), torch.tensor([0]), normal, [0.5, 1.5])
    torch.testing.assert_close(found[:, 0], doubles([3 / 15, 3 / 15], [3 / 16, 3 / 16]))
    # Without the row 4: A' = 15 - 8 = 7, means 2 and 2.
    found = left_out_scores(doubles([4]), torch.tensor([1]), normal, [1.0])
    torch.testing.assert_close(found[0], doubles([8 / 8, 8 / 8]))
    # With k = -1/2 for class 0, whose mean goes from 2 to 3: A' = 14.5 - (9 - 4) / 2 = 12.
    normal = replace(normal, mean_weight=doubles(-0.5, 0).flatten())
    found = left_out_scores(doubles([1]), torch.tensor([0]), normal, [3.0])
    torch.testing.assert_close(found[0], doubles([3 / 15, 3 / 15]))


@pytest.mark.parametrize("kind", ["pooled", "per-class"])
@quick
@given(seed=st.integers(0, 10**6), rows=st.integers(8, 20), width=st.integers(1, 8), power=st.floats(-3, 1))
def test_leaving_a_row_out_is_building_the_matrices_without_it(
    kind: Kind, seed: int, rows: int, width: int, power: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, dtype=torch.float64, generator=generator)
    labels = torch.cat([torch.arange(6) % 3, torch.randint(0, 3, (rows - 6,), generator=generator)])  # two of each
    ridge, count = 10**power, torch.bincount(labels)
    sums, given_rows = sums_of(kind, x, labels)
    x = torch.cat([piece for piece, _ in given_rows.pieces(torch.arange(rows))])  # on their grid
    normal = sums.normal()
    found = left_out_scores(x, labels, normal, [ridge, 2 * ridge])[0]
    for i in range(rows):
        others = torch.arange(rows) != i
        means = torch.stack([x[others & (labels == c)].mean(dim=0) for c in range(3)])
        # Weights stay as they are with the row.
        f = 3 / rows * torch.ones(3).double() if kind == "pooled" else 1 / count.double()
        k = 1 - f * count
        gram = (x[others].T * f[labels[others]]) @ x[others] + (means.T * k) @ means
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
    """Of each class 1, but 0 at one ridge and scale."""
    loss = torch.ones(len(least), len(RIDGES), len(SCALES), dtype=torch.float64)
    for c, (ridge, scale) in enumerate(least):
        loss[c, ridge, scale] = 0
    return loss


def test_the_best_ridge_and_scale_by_hand() -> None:
    # All else is equal: the vertex lies in the middle.
    ridge, scale = LeftOut(losses_at((3, 5)), torch.tensor([1])).best(RIDGES)
    assert (ridge, scale) == (RIDGES[3], pytest.approx(SCALES[5]))
    # Every class counts the same, whatever its number of rows. By rows it would be 1 / 102 and 40 / 102.
    loss = losses_at((3, 5), (4, 6)) * doubles([[100]], [[2]]).view(2, 1, 1)
    loss[0, 4, 6], loss[1, 3, 5] = 40, 1
    assert LeftOut(loss, torch.tensor([100, 2])).best(RIDGES)[0] == RIDGES[4]  # (0.4 + 0) / 2, not (0 + 0.5) / 2


def test_until_a_row_was_left_out_ridge_and_scale_are_the_first() -> None:
    none = LeftOut.empty(len(RIDGES), CPU).grown(3)
    assert none.best(RIDGES) == (FIRST_RIDGE, FIRST_SCALE)
    assert none.best([0.7]) == (0.7, FIRST_SCALE)
    assert FIRST_RIDGE in RIDGES
    assert FIRST_SCALE in SCALES
    assert tuple(sorted(RIDGES)) == RIDGES


def test_classes_that_were_not_judged_have_no_say() -> None:
    found = LeftOut(losses_at((3, 5), (9, 9)), torch.tensor([4, 0]))
    assert found.best(RIDGES)[0] == RIDGES[3]


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


def test_no_more_rows_than_the_most_are_left_out() -> None:
    labels = torch.arange(3 * MOST_ROWS)
    found = spaced(labels, torch.full((3 * MOST_ROWS,), 2))
    assert len(found) == MOST_ROWS
    assert len(spaced(labels % 2, torch.tensor([10**4, 10**4]))) == MOST_ROWS


# ------------------------------------------------------------------ sums of losses


@pytest.mark.parametrize("kind", ["pooled", "per-class"])
def test_losses_are_those_of_the_rows_that_were_left_out(kind: Kind) -> None:
    x, labels = torch.rand(9, 4, dtype=torch.float64), torch.arange(9) % 2
    sums, rows = sums_of(kind, x, labels)
    found = LeftOut.empty(2, CPU).plus(sums, rows, [0.1, 1.0])
    x = torch.cat([piece for piece, _ in rows.pieces(torch.arange(9))])
    scores = left_out_scores(x, labels, sums.normal(), [0.1, 1.0])
    assert found.count.tolist() == [5, 4]
    for c in (0, 1):
        for number in (0, 1):
            expected = log_losses(scores[number], labels, SCALES)[:, labels == c].sum(dim=1)
            torch.testing.assert_close(found.loss[c, number], expected)
    again = found.plus(sums, rows.chosen(torch.tensor([0])), [0.1, 1.0])
    assert again.count.tolist() == [6, 4]
    assert torch.equal(again.loss[1], found.loss[1])


def test_wide_rows_are_left_out_of_the_narrower_model_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_out, "COLUMNS", 2)
    x, labels = torch.rand(9, 5, dtype=torch.float64), torch.arange(9) % 2
    sums, rows = sums_of("pooled", x, labels)
    found = LeftOut.empty(1, CPU).plus(sums, rows, [0.1])
    x = torch.cat([piece for piece, _ in rows.pieces(torch.arange(9))])
    # Every second column, and rows about as long as before.
    narrow = math.sqrt(2) * x[:, ::2]
    whole = sums.normal()
    normal = replace(whole, gram=2 * mirrored(whole.gram)[::2, ::2], mean=math.sqrt(2) * whole.mean[::2])
    losses = log_losses(left_out_scores(narrow, labels, normal, [0.1])[0], labels, SCALES)
    torch.testing.assert_close(found.loss.sum(dim=(0, 1)), losses.sum(dim=1))


def test_losses_are_merged_and_chosen_by_hand() -> None:
    one, other = LeftOut(losses_at((0, 0), (1, 1)), torch.tensor([3, 4])), LeftOut(losses_at((2, 2)), torch.tensor([5]))
    both = one.merged(other, torch.tensor([1]), 3)
    assert both.count.tolist() == [3, 9, 0]
    assert torch.equal(both.loss[1], one.loss[1] + other.loss[0])
    assert not both.loss[2].any()
    some = both.of_classes([1, 0])
    assert some.count.tolist() == [9, 3]
    assert torch.equal(some.loss[1], one.loss[0])


def test_scores_that_are_no_numbers_are_refused() -> None:
    x, labels = torch.rand(9, 4, dtype=torch.float64), torch.arange(9) % 2
    sums, rows = sums_of("pooled", x, labels)
    broken = replace(rows, expand=lambda some: some.double() * math.nan)
    with pytest.raises(NonFiniteError, match="leave-one-out scores"):
        LeftOut.empty(1, CPU).plus(sums, broken, [0.1])


# ------------------------------------------------------------------ a model


@POOLED_AND_PER_CLASS
def test_a_model_uses_the_ridge_and_the_scale_of_the_least_loss(sums) -> None:
    one = case(60, ridge=None)
    found = one.model(sums, one.nodes)
    losses = []
    for ridge in RIDGES:
        fixed = Analytic(sums=sums, **{**one.options, "ridge": ridge}).partial_fit(one.data(one.nodes))
        kept = memory(fixed).left_out
        losses.append(float((kept.loss / kept.count[:, None, None]).mean(dim=0).min()))
    assert solved(found).ridge == RIDGES[int(np.argmin(losses))]
    fixed = Analytic(sums=sums, **{**one.options, "ridge": solved(found).ridge}).partial_fit(one.data(one.nodes))
    assert torch.equal(solved(fixed).weights, solved(found).weights)
    assert solved(fixed).scale == solved(found).scale


def test_labels_without_any_meaning_ask_for_a_large_ridge_and_a_small_scale() -> None:
    one = case(61, ridge=None, width=64)
    clear = solved(one.model("pooled", one.nodes))
    random = solved(replace(one, y=one.random.permutation(one.y)).model("pooled", one.nodes))
    assert random.ridge >= clear.ridge
    assert random.scale < clear.scale / 10
