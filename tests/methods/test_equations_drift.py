"""Equations of DPCR and AdaGauss, by hand: how class statistics follow an encoder."""

import math

import pytest
import torch

from ipal.errors import DataError
from ipal.methods.adagauss import anti_collapse, projected_distillation
from ipal.methods.base import TaskContext
from ipal.methods.dpcr import reconstructed_classifier
from ipal.methods.shared.adapter import adapted, fitted_adapter
from ipal.methods.shared.gaussians import ClassGaussians, log_density, whitening
from ipal.methods.shared.projections import class_projection, drifted_moments, dual_projection, linear_map
from tests.methods.equations_support import close

# ---------------------------------------------------------------------- DPCR


def test_linear_map_by_hand() -> None:
    # X^T X = diag(4, 1), whose mean diagonal is 2.5; Y - X = diag(2, -1); so X^T (Y - X) = diag(4, -1).
    x, y = torch.diag(torch.tensor([2.0, 1.0])), torch.diag(torch.tensor([4.0, 0.0]))
    close(linear_map(x, y, 0.4), [[1 + 4 / 5, 0], [0, 1 - 1 / 2]])


def test_linear_map_leaves_directions_that_no_row_has() -> None:
    close(linear_map(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]]), 1e-9), [[0, 0], [0, 1]])


def test_class_projection_by_hand() -> None:
    G = torch.diag(torch.tensor([1.0, 6.0, 3.0]))
    close(class_projection(G, 0.5), torch.diag(torch.tensor([0.0, 1.0, 0.0])))
    close(class_projection(G, 0.7), torch.diag(torch.tensor([0.0, 1.0, 1.0])))
    close(class_projection(G, 1.0), torch.eye(3))


def test_dual_projection_by_hand() -> None:
    # (1, 1) is first projected on the first direction, then mapped: (1, 0) P = (2, 3).
    P, Pi = torch.tensor([[2.0, 3.0], [5.0, 7.0]]), torch.diag(torch.tensor([1.0, 0.0]))
    close(torch.ones(1, 2) @ dual_projection(P, Pi), [[2, 3]])


def test_drifted_moments_by_hand() -> None:
    W = torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    mean, covariance = drifted_moments(torch.tensor([3.0, 5.0]), torch.tensor([[1.0, 0.5], [0.5, 4.0]]), W)
    close(mean, [5, 6])
    close(covariance, [[4, 1], [1, 4]])


def test_reconstructed_classifier_by_hand() -> None:
    # The mean diagonal is 3: (G + 1.5 I)^-1 H has the columns (7 / 3.5, 11 / 5.5) = (2, 2) and (0, 3 / 5.5).
    G, H = torch.diag(torch.tensor([2.0, 4.0])), torch.tensor([[7.0, 0.0], [11.0, 3.0]])
    close(reconstructed_classifier(G, H, 0.5), [[1 / math.sqrt(2), 0], [1 / math.sqrt(2), 1]])


def test_a_ridge_too_small_is_an_error() -> None:
    with pytest.raises(DataError, match=r"dpcr\.ridge=1e-30: set a larger one"):
        reconstructed_classifier(torch.ones(3, 3), torch.eye(3), 1e-30)


# ---------------------------------------------------------------------- AdaGauss


def test_projected_distillation_by_hand() -> None:
    f, before = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    A = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # f A swaps the columns
    close(projected_distillation(f, before, A), ((4 + 1) + (1 + 1)) / 2)


def test_anti_collapse_by_hand() -> None:
    # Covariance diag(4, 0.25) and a thousandth of 2.125 on the diagonal; the first root is above the bound of 1.
    z = torch.tensor([[2.0, 0.5], [-2.0, 0.5], [2.0, -0.5], [-2.0, -0.5]])
    close(anti_collapse(z, 1.0), -(1 + math.sqrt(0.25 + 0.002125)) / 2)


def test_adapted_by_hand() -> None:
    psi = [torch.tensor([[1.0, -1.0]]), torch.tensor([0.0, 1.0]), torch.tensor([[2.0], [10.0]]), torch.tensor([0.5])]
    close(adapted(torch.tensor([[3.0], [0.0]]), psi), [[3 + 6 + 0.5], [0 + 10 + 0.5]])


def test_fitted_adapter_by_hand() -> None:
    """Without a step it is the identity; of a shift of all nodes it learns the shift."""
    before = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    shifted = before + torch.tensor([0.3, -0.2])
    none = fitted_adapter(before, shifted, 0, torch.Generator().manual_seed(1))
    close(adapted(before, none), before)
    psi = fitted_adapter(before, shifted, 3000, torch.Generator().manual_seed(1))
    torch.testing.assert_close(adapted(before, psi), shifted, rtol=0, atol=0.02)


def test_whitening_by_hand() -> None:
    # Mean variance of both classes 4; half of it and half of each covariance: diag(3, 3) and diag(5, 5).
    covariance = torch.stack([2 * torch.eye(2), 6 * torch.eye(2)])
    A, offsets = whitening(covariance, 0.5)
    close(A @ A.mT, torch.stack([torch.eye(2) / 3, torch.eye(2) / 5]))
    close(offsets, [-math.log(3), -math.log(5)])


def test_log_density_by_hand() -> None:
    A = torch.stack([torch.eye(2), 2 * torch.eye(2)])
    found = log_density(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]]), A, torch.tensor([0.0, 3.0]))
    close(found, [[-0.5 * 5, 3 - 0.5 * 4]])


def test_log_density_is_that_of_scipy() -> None:
    from scipy.stats import multivariate_normal

    random = torch.Generator().manual_seed(0)
    root = torch.randn(3, 4, 4, generator=random, dtype=torch.float64)
    covariance, mu = root @ root.mT, torch.randn(3, 4, generator=random, dtype=torch.float64)
    f = torch.randn(5, 4, generator=random, dtype=torch.float64)
    found = log_density(f, mu, *whitening(covariance, 1e-12)) - 2 * math.log(2 * math.pi)
    expected = [
        [multivariate_normal(m.numpy(), c.numpy()).logpdf(row.numpy()) for m, c in zip(mu, covariance, strict=True)]
        for row in f
    ]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_gaussians_of_samples_are_those_that_were_drawn_from() -> None:
    random = torch.Generator().manual_seed(0)
    f = torch.randn(50, 3, generator=random) @ torch.tensor([[2.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]) + 5
    labels, none = torch.zeros(50, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    only = TaskContext(None, labels, torch.tensor([0]), none, None, None)  # type: ignore[arg-type]
    known = ClassGaussians.empty(3, torch.device("cpu")).learned(only, f)
    again = known.mapped(lambda x: x + 1, 100_000, random)
    torch.testing.assert_close(again.mean, known.mean + 1, rtol=0, atol=0.03)
    torch.testing.assert_close(again.covariance, known.covariance, rtol=0.03, atol=0.03)
