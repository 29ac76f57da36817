"""The closed form's algebra against numbers worked by hand, and against fitting again without a row."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ipal.learners.analytic.rehearsal import balanced_mean
from ipal.learners.analytic.selection import LeftOut, choose_ridge, least
from torch import Tensor

from ipal.errors import DataError, NonFiniteError
from ipal.learners.analytic import ridge, selection

quick = settings(deadline=None, max_examples=25)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def doubles(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# Two rows (1, 0) of class 0 and (1, 1) of class 1, both of weight 1: G and Q are read off.
ROWS, TARGETS = doubles([1, 0], [1, 1]), doubles([1, 0], [0, 1])
GRAM, CROSS = doubles([2, 1], [1, 1]), doubles([1, 1], [0, 1])


def test_factorise_by_hand() -> None:
    # The mean of the diagonal is 1.5; two thirds of it is 1, so G + I = (3 1; 1 2) = L L^T.
    factor = ridge.factorise(GRAM, 2 / 3)
    root = math.sqrt(3)
    torch.testing.assert_close(factor.lower, doubles([root, 0], [1 / root, math.sqrt(5 / 3)]))
    assert factor.ridge == 2 / 3
    # L z = (3, 1): z = (sqrt 3, 0).
    torch.testing.assert_close(factor.half(doubles([3], [1])), doubles([root], [0]), atol=1e-15, rtol=0)
    torch.testing.assert_close(factor.solve(doubles([3], [1])), doubles([1], [0]), atol=1e-15, rtol=0)


def test_factorise_reads_the_lower_half_only_and_changes_nothing() -> None:
    half = doubles([2, 99], [1, 1])
    before = half.clone()
    torch.testing.assert_close(ridge.factorise(half, 0.1).lower, ridge.factorise(GRAM, 0.1).lower)
    assert torch.equal(half, before)


@pytest.mark.parametrize("asked", [0.0, 1e-14])
def test_a_ridge_too_small_for_the_sums_is_raised_with_a_warning(asked) -> None:
    rows = normal(5, 20)  # of rank 5
    with pytest.warns(ridge.IllConditioned, match=f"ridge of {asked:g} is too small"):
        factor = ridge.factorise(rows.T @ rows, asked)
    assert 0 < factor.ridge < 1e-5
    assert torch.isfinite(ridge.ridge_weights(factor, rows.T @ normal(5, 3, seed=1))).all()


def test_no_ridge_is_no_problem_where_the_sums_have_full_rank() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        factor = ridge.factorise(GRAM, 0.0)
    # Two rows, two unknowns: both targets are met.
    torch.testing.assert_close(ROWS @ ridge.ridge_weights(factor, CROSS), TARGETS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nodes_without_any_feature_give_weights_of_zero(dtype) -> None:
    factor = ridge.factorise(torch.zeros(3, 3, dtype=dtype), 0.1)
    assert torch.equal(ridge.ridge_weights(factor, torch.zeros(3, 2, dtype=dtype)), torch.zeros(3, 2, dtype=dtype))


def test_ridge_weights_by_hand() -> None:
    # (3 1; 1 2)^-1 = (2 -1; -1 3) / 5.
    weights = ridge.ridge_weights(ridge.factorise(GRAM, 2 / 3), CROSS)
    torch.testing.assert_close(weights, doubles([2 / 5, 1 / 5], [-1 / 5, 2 / 5]))


def test_leverage_by_hand() -> None:
    # Row (1, 0): 2/5. Row (1, 1): (2 - 1 - 1 + 3) / 5 = 3/5; with a weight of a half, 3/10.
    half = ridge.factorise(GRAM, 2 / 3).half(ROWS.T)
    torch.testing.assert_close(ridge.leverage(half, half, doubles(1, 0.5)[:, None].squeeze()), doubles(0.4, 0.3))
    # Across views: (1, 0) read at (0, 1) is -1/5, (1, 1) read at (1, 0) is 1/5.
    other = ridge.factorise(GRAM, 2 / 3).half(doubles([0, 1], [1, 0]).T)
    torch.testing.assert_close(ridge.leverage(half, other, torch.ones(2)), doubles(-0.2, 0.2))


def test_left_out_residual_by_hand() -> None:
    # Row (1, 0) is predicted (2/5, 1/5): off by (3/5, -1/5), and 1 - h is 3/5. So the others miss it by (1, -1/3).
    # Indeed: row (1, 1) alone has weights (1/3, 1/3) for class 1, none for class 0.
    predicted = ROWS @ ridge.ridge_weights(ridge.factorise(GRAM, 2 / 3), CROSS)
    residual = ridge.left_out_residual(TARGETS, predicted, doubles(0.4, 0.6).reshape(-1))
    torch.testing.assert_close(residual[0], doubles(1, -1 / 3))
    # Row (1, 1) is predicted (1/5, 3/5); row (1, 0) alone gives (1/2, 0).
    torch.testing.assert_close(residual[1], doubles(-1 / 2, 1))


def test_left_out_prediction_by_hand() -> None:
    # Row (1, 1) alone has the weights (1/3, 1/3) for class 1. At (0, 1), another view of row (1, 0): (0, 1/3).
    weights = ridge.ridge_weights(ridge.factorise(GRAM, 2 / 3), CROSS)
    psi = doubles([0, 1])
    got = ridge.left_out_prediction(psi @ weights, doubles(-0.2).reshape(-1), doubles([1, -1 / 3]))
    torch.testing.assert_close(got, doubles([0, 1 / 3]), atol=1e-15, rtol=0)


@quick
@given(seed=st.integers(0, 10**6), rows=st.integers(3, 12), width=st.integers(1, 8), power=st.floats(-3, 1))
def test_leaving_a_row_out_is_fitting_again_without_it(seed: int, rows: int, width: int, power: float) -> None:
    phi, psi = normal(rows, width, seed=seed), normal(rows, width, seed=seed + 1)
    targets = torch.nn.functional.one_hot(torch.arange(rows) % 3, 3).double()
    weights = torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.1
    gram, cross = phi.T @ (weights[:, None] * phi), phi.T @ (weights[:, None] * targets)
    factor = ridge.factorise(gram, 10**power)
    shift = 10**power * gram.diagonal().mean() * torch.eye(width, dtype=torch.float64)
    w, half, half_psi = ridge.ridge_weights(factor, cross), factor.half(phi.T), factor.half(psi.T)
    residual = ridge.left_out_residual(targets, phi @ w, ridge.leverage(half, half, weights))
    elsewhere = ridge.left_out_prediction(psi @ w, ridge.leverage(half, half_psi, weights), residual)
    for i in range(rows):
        others = torch.arange(rows) != i
        kept, weighted = phi[others], weights[others, None] * phi[others]
        again = torch.linalg.solve(kept.T @ weighted + shift, weighted.T @ targets[others])
        torch.testing.assert_close(residual[i], targets[i] - phi[i] @ again, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(elsewhere[i], psi[i] @ again, rtol=1e-6, atol=1e-9)
    itself = ridge.left_out_prediction(phi @ w, ridge.leverage(half, half, weights), residual)
    torch.testing.assert_close(itself, targets - residual, rtol=1e-6, atol=1e-9)


def test_log_loss_by_hand() -> None:
    # Scores differ by ln 3, doubled ln 9: the first node is right with 9/10, the second with 1/10, of weights 3 and 1.
    scores = doubles([math.log(3), 0], [math.log(3), 0])
    expected = (3 * -math.log(0.9) + -math.log(0.1)) / 4
    assert ridge.log_loss(scores, torch.tensor([0, 1]), torch.tensor([3.0, 1.0]), 2.0) == pytest.approx(expected)


def test_best_scale_by_hand() -> None:
    # Scores (1, 0), right three times of four: best where exp(s) / (exp(s) + 1) = 3/4, at s = ln 3.
    scores, labels = doubles(*[[1, 0]] * 4), torch.tensor([0, 0, 0, 1])
    assert ridge.best_scale(scores, labels, torch.ones(4)) == pytest.approx(math.log(3), rel=2e-3)
    # The same from two nodes, of which one counts three times.
    assert ridge.best_scale(scores[:2], labels[2:], torch.tensor([3.0, 1.0])) == pytest.approx(math.log(3), rel=2e-3)


@pytest.mark.parametrize("temperature", [0.02, 0.3, 4.0])
def test_best_scale_finds_the_temperature_that_labels_were_drawn_with(temperature) -> None:
    scores = normal(20000, 4) * temperature
    chances = (scores / temperature).softmax(dim=1)
    labels = torch.multinomial(chances, 1, generator=torch.Generator().manual_seed(1)).flatten()
    assert ridge.best_scale(scores, labels, torch.ones(20000)) == pytest.approx(1 / temperature, rel=0.05)


# ---------------------------------------------------------------------- what cannot be solved


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-30])
def test_sums_of_next_to_nothing_are_solved_without_denormal_numbers(dtype, scale) -> None:
    rows = scale * normal(4, 3).to(dtype)
    numbers = torch.finfo(dtype)
    lower = ridge.factorise(rows.T @ rows * scale, 1e-3).lower
    assert float(lower.diagonal().min()) > numbers.tiny / numbers.eps


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("place", [(1, 0), (1, 1)])
def test_sums_that_are_not_finite_are_refused(wrong, place) -> None:
    gram = GRAM.clone()
    gram[place] = wrong
    with pytest.raises(NonFiniteError, match="NaN, infinite"):
        ridge.factorise(gram, 0.1)


def test_what_lies_above_the_diagonal_may_be_anything() -> None:
    gram = doubles([2, math.nan], [1, 1])
    torch.testing.assert_close(ridge.factorise(gram, 2 / 3).lower, ridge.factorise(GRAM, 2 / 3).lower)


@pytest.mark.parametrize("gram", [doubles([-1, 0], [0, -1]) * 1e9, doubles([1, 1e9], [1e9, 1])])
def test_what_is_no_sum_of_products_is_refused(gram) -> None:
    with pytest.raises(DataError, match="no sums over nodes"):
        ridge.factorise(gram, 0.1)


@pytest.mark.parametrize(("asked", "depth", "found"), [(1.0, 5, 10.0), (1.05, 10.2, None)])
def test_the_largest_ridge_tried_is_ten_times_the_width_by_hand(asked, depth, found) -> None:
    # A matrix of one number, -depth, whose ridge is measured in ones: it takes a larger one to be positive.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ridge.IllConditioned)
        if found is None:
            with pytest.raises(DataError, match="no sums over nodes"):
                ridge.factorise(doubles([-depth]), asked)
        else:
            assert ridge.factorise(doubles([-depth]), asked).ridge == found


def test_a_condition_of_ten_to_the_twelve_is_too_much_by_hand() -> None:
    with pytest.warns(ridge.IllConditioned):
        assert ridge.factorise(torch.diag(doubles(1e12, 1).flatten()), 0.0).ridge == 1e-10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ridge.factorise(torch.diag(doubles(0.999e12, 1).flatten()), 0.0).ridge == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_left_out_error_is_the_mean_over_classes_by_hand(dtype) -> None:
    # G = 5 of the rows 1, 1 and 2 with weights 1/2, 1/2 and 1; with a ridge of 1/5, G + 1 = 6. Q = (1, 2).
    # Class 0: predicted (1, 2) / 6, own pull 1/12, missed (5, -2) / 6 * 12/11 = (10, -4) / 11.
    # Class 1: predicted (2, 4) / 6, own pull 4/6, missed (-1, 1) / 3 * 3 = (-1, 1).
    # Scores (1, 4) / 11 and (1, 0): both for the other class, so that the least scale, 0.1, is best.
    judges = LeftOut(doubles([1], [1], [2]).to(dtype), torch.tensor([0, 0, 1]), doubles(0.5, 0.5, 1))
    factor = ridge.factorise(doubles([5]), 0.2)
    by_hand = (math.log1p(math.exp(0.1 * 3 / 11)) + math.log1p(math.exp(0.1))) / 2
    assert judges.error(factor, doubles([1, 2])) == pytest.approx(by_hand, rel=1e-3)


def test_pivots_that_differ_beyond_all_numbers_are_ill_conditioned() -> None:
    with pytest.warns(ridge.IllConditioned):
        assert ridge.factorise(torch.diag(doubles(1e300, 1e-300).flatten()), 0.0).ridge > 0


def test_scores_that_are_no_numbers_have_no_best_scale() -> None:
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        ridge.best_scale(torch.full((3, 2), math.nan), torch.tensor([0, 1, 0]), torch.ones(3))


def test_the_least_error_is_a_number() -> None:
    assert least({"a": math.nan, "b": 2.0, "c": 1.0, "d": math.inf}) == "c"
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        least({"a": math.nan, "b": math.inf})


def test_a_ridge_is_not_chosen_by_rows_that_are_no_numbers() -> None:
    judges = LeftOut(doubles([math.nan, 0], [1, 1]), torch.tensor([0, 1]), doubles(1, 1).flatten())
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        choose_ridge(GRAM, CROSS, judges)


@pytest.mark.parametrize("rows", [ROWS, doubles([1, 2, 0], [0, 1, 1])], ids=["tall", "wide: the dual form"])
def test_a_spectrum_solves_as_a_factor_does_for_every_ridge(rows) -> None:
    gram, targets = rows.T @ rows, doubles(*([[1.0, 0.0]] * len(rows)))
    others = doubles([1, -1, 2], [0, 3, 1])[:, : rows.shape[1]]
    spectrum, turned, of_others = ridge.Spectrum.of_rows(rows, others)
    assert ridge.Spectrum.of_rows(rows)[2].shape == turned.shape
    for relative in (0.01, 1.0, 32.0):
        factor, diagonal = ridge.factorise(gram, relative), spectrum.at(relative)
        w = ridge.ridge_weights(diagonal, turned.T @ targets)
        for seen, mine in ((rows, turned), (others, of_others)):
            torch.testing.assert_close(mine @ w, seen @ ridge.ridge_weights(factor, rows.T @ targets))
        half, other = factor.half(rows.T), diagonal.half(turned.T)
        weights = torch.ones(len(rows), dtype=torch.float64)
        torch.testing.assert_close(ridge.leverage(other, other, weights), ridge.leverage(half, half, weights))


def test_wide_rows_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(NonFiniteError, match="NaN, infinite"):
        ridge.Spectrum.of_rows(doubles([1, math.nan, 0], [0, 1, 1]))


def test_wide_rows_without_any_feature_have_no_direction() -> None:
    spectrum, turned, others = ridge.Spectrum.of_rows(torch.zeros(2, 3), torch.ones(2, 3))
    assert turned.shape == others.shape == (2, 0)
    assert float(spectrum.size) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_ridge_is_measured_in_ones_up_to_the_smallest_numbers_by_hand(dtype) -> None:
    smallest = torch.finfo(dtype).tiny / torch.finfo(dtype).eps
    for diagonal, size in ((0.0, 1.0), (smallest, 1.0), (2 * smallest, 2 * smallest), (3.0, 3.0)):
        assert float(ridge.mean_diagonal(diagonal * torch.eye(2, dtype=dtype))) == size


def test_a_ridge_of_wide_sums_is_chosen_by_their_corner(monkeypatch) -> None:
    monkeypatch.setattr(selection, "CORNER", 2)
    rows, labels = normal(12, 5), torch.arange(12) % 2
    cross = rows.T @ torch.nn.functional.one_hot(labels).double()
    judges = [LeftOut(rows[:, :width], labels, torch.full((12,), 1 / 6)) for width in (5, 2)]
    whole, corner = (
        choose_ridge(rows.T @ rows, cross, judges[0]),
        choose_ridge(rows.T[:2] @ rows[:, :2], cross[:2], judges[1]),
    )
    assert whole == corner


def test_balanced_mean_by_hand() -> None:
    # Class 0: 1 and 3, mean 2, variance 2; class 1: 5 alone. SE: sqrt(2 / 2) / 2.
    mean, deviation = balanced_mean(torch.tensor([1.0, 5.0, 3.0]), torch.tensor([0, 1, 0]))
    assert (mean, deviation) == (3.5, 0.5)
