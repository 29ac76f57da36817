"""Draws from a truncated Beta distribution against SciPy's."""

import numpy as np
import pytest
import torch
from scipy.stats import beta

from ipal.nn.truncated_beta import TruncatedBeta

CPU = torch.device("cpu")
A, B, UPPER = 9.0, 21.0, 0.4


@pytest.fixture(scope="module")
def mixing() -> TruncatedBeta:
    """The paper's lambda: Beta(9, 21) on [0, 0.4]."""
    return TruncatedBeta(A, B, UPPER, CPU)


def test_quantiles_are_those_of_the_truncated_distribution(
    mixing: TruncatedBeta, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In place of uniform numbers a fine grid of them, from 0 to just below 1, finer than the table and, at the lower
    # end, where the quantile is steepest, as fine as torch's uniform numbers are.
    grid = np.concatenate([np.arange(2**17) / 2**17, np.arange(1, 2**10) / 2**24])
    uniform = torch.from_numpy(grid.astype(np.float32))
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: uniform)
    drawn = mixing.draw((len(grid),), torch.Generator()).numpy()
    exact = beta.ppf(grid * beta.cdf(UPPER, A, B), A, B)
    error = np.abs(drawn - exact)
    assert error.max() < 1e-4, f"off by {error.max():.2g} at quantile {grid[error.argmax()]:.2g}"


def test_no_draw_leaves_the_allowed_range(mixing: TruncatedBeta, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = mixing.draw((300, 300), torch.Generator().manual_seed(0))
    assert drawn.shape == (300, 300)
    assert drawn.min() >= 0
    assert drawn.max() <= UPPER
    # Nor of the smallest and the largest uniform number.
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.tensor([0.0, 1 - 2**-24]))
    drawn = mixing.draw((2,), torch.Generator())
    assert drawn.tolist() == [0, pytest.approx(UPPER, abs=1e-6)]
    assert (drawn <= UPPER).all()
