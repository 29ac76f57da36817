"""The divergence of two Gaussians: Eq. 16 of the paper."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipal.errors import DataError
from scripts.drift import class_drift, fitted_gaussian, gaussian_kl


def gaussian(random: np.random.Generator, width: int) -> tuple[np.ndarray, np.ndarray]:
    root = random.normal(size=(width, width + 2))
    return random.normal(size=width), root @ root.T + 0.1 * np.eye(width)


def test_gaussian_kl_by_hand() -> None:
    # One dimension, N(1, 4) before and N(3, 2) after: log(2/4) + (4/2 - 1) + 2²/2 = -0.693 + 1 + 2, halved.
    found = gaussian_kl(np.array([1.0]), np.array([[4.0]]), np.array([3.0]), np.array([[2.0]]))
    assert found == pytest.approx(((-math.log(2) + 3) / 2, -math.log(2), 1.0, 2.0))
    # Two dimensions, diag(1, 4) to diag(2, 2), mean moved by (2, 0): log(4/4) + (1/2 + 4/2 - 2) + 4/2, halved.
    found = gaussian_kl(np.zeros(2), np.diag([1.0, 4.0]), np.array([2.0, 0.0]), np.diag([2.0, 2.0]))
    assert found == pytest.approx((1.25, 0.0, 0.5, 2.0))


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_gaussian_kl_is_zero_for_equals_and_never_negative(seed: int, width: int) -> None:
    random = np.random.default_rng(seed)
    before, after = gaussian(random, width), gaussian(random, width)
    assert gaussian_kl(*before, *before) == pytest.approx((0, 0, 0, 0), abs=1e-9)
    assert gaussian_kl(*before, *after).kl > 0


def test_fitted_gaussian_divides_by_the_number_of_nodes() -> None:
    mu, S = fitted_gaussian(np.array([[0.0, 1.0], [2.0, 1.0]]), ridge=0.5)
    assert mu == pytest.approx([1, 1])
    assert pytest.approx(np.array([[1.5, 0], [0, 0.5]])) == S


def test_drift_of_a_class_that_only_moves() -> None:
    f = np.random.default_rng(0).normal(size=(300, 4))
    moved = class_drift(f, f + np.array([2.0, 0, 0, 0]))
    assert moved is not None
    assert moved["squared_shift"] == pytest.approx(4)
    assert moved["relative_shift"] == pytest.approx(4 / f.var(axis=0).mean())
    assert (moved["log_det"], moved["trace"]) == pytest.approx((0, 0), abs=1e-9)
    assert moved["kl"] == pytest.approx(moved["mean_shift"] / 2)
    assert moved["kl"] > moved["kl_ridge_0.01"] > moved["kl_ridge_0.1"]


def test_drift_has_no_scale_but_in_the_plain_distance() -> None:
    random = np.random.default_rng(1)
    before, after = random.normal(size=(2, 50, 4))
    small, large = class_drift(before, after), class_drift(10 * before, 10 * after)
    assert small is not None
    assert large is not None
    assert large.pop("squared_shift") == pytest.approx(100 * small.pop("squared_shift"))
    assert large == pytest.approx(small)


def test_a_class_without_spread_has_no_drift_to_measure() -> None:
    assert class_drift(np.ones((1, 3)), np.zeros((1, 3))) is None


def test_a_class_that_grew_beyond_all_measure_is_answered_with_a_sentence() -> None:
    random = np.random.default_rng(0)
    before, after = random.normal(size=(4, 6)), 1e20 * random.normal(size=(4, 6))
    with pytest.raises(DataError, match=r"train\.lr_next"):
        class_drift(before, after)
