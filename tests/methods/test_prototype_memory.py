"""The Gaussians that are remembered, and what is drawn, against numbers worked by hand and against NumPy."""

import numpy as np
import pytest
import torch
from scipy.stats import beta
from torch import Tensor

from ipal.methods.ipal_online import followed
from ipal.methods.shared.prototypes import PrototypeMemory, pooled_mean, weighted_mean, weighted_variance
from ipal.nn.truncated_beta import TruncatedBeta

CPU = torch.device("cpu")

# Three nodes; class 0 has the first two, the second three times as important, class 1 has the last.
NODES = torch.tensor([[0.0, 0.0], [4.0, 2.0], [10.0, 1.0]])
IMPORTANCE = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]])


def test_weighted_mean_by_hand() -> None:
    # 0.25 (0, 0) + 0.75 (4, 2); the plain mean would be (2, 1).
    assert weighted_mean(NODES, IMPORTANCE).tolist() == [[3.0, 1.5], [10.0, 1.0]]


def test_weighted_variance_by_hand() -> None:
    mu = torch.tensor([[3.0, 1.5], [10.0, 1.0]])
    # 0.25 * 3^2 + 0.75 * 1^2 = 3 and 0.25 * 1.5^2 + 0.75 * 0.5^2 = 0.75: around the weighted mean, each dimension
    # by itself. Around the plain mean it would be 4 and 1; a class of one node has none.
    assert weighted_variance(NODES, mu, IMPORTANCE).tolist() == [[3.0, 0.75], [0.0, 0.0]]


def test_pooled_mean_by_hand() -> None:
    mu, m = torch.tensor([[1.0, 3.0], [9.0, 9.0], [5.0, 0.0], [7.0, 7.0]]), torch.tensor([[5.0, 7.0]] * 4)
    # 3 nodes and 1: (3 * 1 + 5) / 4 and (3 * 3 + 7) / 4. A new class is its nodes, one without any stays, as does one
    # of which nothing is known at all.
    n, n_new = torch.tensor([3, 0, 2, 0]), torch.tensor([1, 4, 0, 0])
    assert pooled_mean(mu, n, m, n_new).tolist() == [[2.0, 4.0], [5.0, 7.0], [5.0, 0.0], [7.0, 7.0]]


def test_followed_by_hand() -> None:
    slow, theta = torch.tensor([4.0, -2.0]), torch.tensor([8.0, 2.0])
    assert followed(slow, theta, 0.75).tolist() == [5.0, -1.0]  # 0.75 * 4 + 0.25 * 8 and 0.75 * -2 + 0.25 * 2
    assert followed(slow, theta, 0.0).tolist() == theta.tolist()


def gaussian(f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and number of one class's nodes, all equally important."""
    return f.mean(dim=0, keepdim=True), f.var(dim=0, correction=0, keepdim=True), torch.tensor([len(f)])


def two_classes() -> PrototypeMemory:
    return PrototypeMemory.empty(2, CPU).learned(
        torch.tensor([0, 1]),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        torch.tensor([[0.1, 0.2], [0.3, 0.4]]),
        torch.tensor([5, 7]),
    )


def test_a_class_learned_in_two_halves_is_the_class_learned_whole_by_hand() -> None:
    # Values 0, 2 and then 6: mean 1, variance 1, and 6, 0. Whole: mean 8/3, variance (0 + 4 + 36) / 3 - (8/3)^2.
    first, second = torch.tensor([[0.0], [2.0]]), torch.tensor([[6.0]])
    row = torch.tensor([0])
    memory = PrototypeMemory.empty(1, CPU).learned(row, *gaussian(first)).learned(row, *gaussian(second))
    assert len(memory.mean) == 1
    assert memory.mean.item() == pytest.approx(8 / 3)
    assert memory.variance.item() == pytest.approx(40 / 3 - (8 / 3) ** 2)
    assert memory.count.tolist() == [3]


def test_learning_an_old_and_a_new_class_at_once_leaves_the_others_alone() -> None:
    before = two_classes()
    after = before.learned(
        torch.tensor([1, 2]),
        torch.tensor([[3.0, 4.0], [9.0, 9.0]]),
        torch.tensor([[0.3, 0.4], [0.5, 0.5]]),
        torch.tensor([1, 2]),
    )
    # Class 1 comes again with the very same Gaussian: only its count grows. Class 2 is new, class 0 not there.
    torch.testing.assert_close(after.mean, torch.tensor([[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]]))
    torch.testing.assert_close(after.variance, torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.5]]))
    assert after.count.tolist() == [5, 8, 2]


def test_a_sample_is_the_mean_and_so_many_deviations_by_hand() -> None:
    memory, classes = two_classes(), torch.tensor([1, 0])
    noise = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(7))
    deviation = torch.tensor([[0.3, 0.4], [0.1, 0.2]]).sqrt()
    expected = torch.tensor([[3.0, 4.0], [1.0, 2.0]])[:, None] + deviation[:, None] * noise
    torch.testing.assert_close(memory.of(classes).draw(3, torch.Generator().manual_seed(7)), expected.reshape(6, 2))


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
