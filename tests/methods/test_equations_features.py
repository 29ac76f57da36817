"""Equations of features and class means (POLO, EFC, SLDA, NCM): by hand, naive loops and finite differences."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ipal.errors import DataError, NonFiniteError
from ipal.methods.efc import drifted_means, feature_consolidation, feature_matrix
from ipal.methods.polo import corrected_prototypes, density_prototype, pseudo_features
from ipal.methods.slda import discriminant
from ipal.nn.compute import GraphCompute
from tests.methods.equations_support import HERE, close, graph
from tests.numbers import normal

# ------------------------------------------------------------------ POLO: prototypes, correction, augmentation


def test_density_prototype_by_hand() -> None:
    f = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    # Directions (1, 0) twice and (0, 1), at a distance of sqrt(2). Mean distances to the others: half of it for the
    # first two, all of it for the last. With z = exp(10 sqrt(2) / 2) the weights are 1, 1 and z, over 2 + z.
    z = math.exp(5 * math.sqrt(2))
    mu = (1 + 3) / (2 + z), 2 * z / (2 + z)
    first = ((1 - mu[0]) ** 2 + (3 - mu[0]) ** 2 + z * mu[0] ** 2) / (2 + z)
    second = (2 * mu[1] ** 2 + z * (2 - mu[1]) ** 2) / (2 + z)
    mean, radius = density_prototype(f)
    close(mean, mu)
    close(radius, math.sqrt((first + second) / 2))


def test_density_prototype_of_one_node_is_the_node() -> None:
    mean, radius = density_prototype(torch.tensor([[1.0, 2.0]]))
    assert mean.tolist() == [1.0, 2.0]
    assert radius.item() == 0.0


def test_density_prototype_of_nodes_in_one_direction_is_their_mean() -> None:
    # However many: no node is further from the others than another.
    along = torch.arange(1, 101, dtype=torch.float64)[:, None]
    mean, radius = density_prototype(along * torch.tensor([[0.6, 0.8]], dtype=torch.float64))
    close(mean, [50.5 * 0.6, 50.5 * 0.8])
    close(radius, math.sqrt((100**2 - 1) / 12 / 2))


def test_corrected_prototypes_by_hand() -> None:
    mu = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    f_before = torch.tensor([[1.0, 0.0], [0.0, 5.0]])
    f = f_before + torch.tensor([[1.0, 1.0], [-2.0, 0.0]])
    # Each prototype has the direction of one node, and a squared distance of 2 to the other's: weights 1 and exp(-20).
    near, far = 1 / (1 + math.exp(-20)), math.exp(-20) / (1 + math.exp(-20))
    delta = [[near - 2 * far, near], [far - 2 * near, far]]
    # Each is the only neighbour of the other, with all the weight there is, however far they are.
    expected = [
        [2 + 0.5 * (delta[0][0] + 0.1 * delta[1][0]), 0.5 * (delta[0][1] + 0.1 * delta[1][1])],
        [0.5 * (delta[1][0] + 0.1 * delta[0][0]), 3 + 0.5 * (delta[1][1] + 0.1 * delta[0][1])],
    ]
    close(corrected_prototypes(mu, f, f_before, 0.5), expected)


def test_corrected_prototypes_follow_ten_neighbours_by_nearness() -> None:
    mu, f_before, f = normal(14, 3).detach(), normal(20, 3, seed=1).detach(), normal(20, 3, seed=2).detach()
    unit_mu, unit_f = F.normalize(mu), F.normalize(f_before)
    delta = []
    for row in unit_mu:
        w = torch.exp(-10 * (unit_f - row).square().sum(dim=1))
        delta.append((w / w.sum()) @ (f - f_before))
    for c, row in enumerate(unit_mu):
        distance = (unit_mu - row).norm(dim=1)
        ten = [k for k in distance.argsort().tolist() if k != c][:10]
        W = torch.exp(-20 * distance[ten])
        neighbours = sum(share * delta[k] for share, k in zip(W / W.sum(), ten, strict=True))
        close(corrected_prototypes(mu, f, f_before, 1.0)[c], mu[c] + delta[c] + 0.1 * neighbours)


def test_corrected_prototypes_without_neighbours_follow_the_nodes_alone() -> None:
    mu, f_before = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    drift = torch.tensor([[1.0, 1.0], [3.0, 0.0]])
    close(corrected_prototypes(mu, f_before + drift, f_before, 1.0), [[4.0, 0.5]])


def test_pseudo_features_by_hand() -> None:
    mu, radius = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0.5, 1.0])
    f = torch.tensor([[3.0, 1.0], [-1.0, -1.0]])
    # Node 0 is the nearest to both prototypes, and nearest to prototype 0: confirmed for that one alone.
    # Class 0: e = 2 * 0.5 * (3, 4), d = (2, 1), cosine (6 + 4) / (5 sqrt(5)): towards the node, so it is shortened.
    # Class 1: e = 2 * 1 * (1, 0), d = (3, 0), cosine 1; but not confirmed, so it is not.
    noise = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    shorter = 1 - 2 / math.sqrt(5)
    close(pseudo_features(mu, radius, f, noise), [[1 + 3 * shorter, 4 * shorter], [2.0, 1.0]])
    # The other way it goes away from the node, and is left alone.
    close(pseudo_features(mu, radius, f, -noise), [[1 - 3.0, -4.0], [-2.0, 1.0]])


# ------------------------------------------------------------------ EFC: the metric of features


def test_feature_matrix_by_hand() -> None:
    W = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    p = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    # With two classes diag(p) - p p^T is p_0 p_1 (1 -1; -1 1): 3/16 and 4/16, in the mean 7/32.
    close(feature_matrix(W, p), [[7 / 32, -14 / 32], [-14 / 32, 28 / 32]])


def test_feature_consolidation_by_hand() -> None:
    f_before = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    f = f_before + torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    M = torch.tensor([[2.0, 0.5], [0.5, 3.0]])
    # 2 * 1 + 2 * 0.5 * 2 + 3 * 4 = 16 and 3; mean over nodes.
    close(feature_consolidation(f, f_before, M), (16 + 3) / 2)


def test_drifted_means_by_hand() -> None:
    mu, f_before = torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0], [9.0]])
    f = f_before + torch.tensor([[3.0], [-1.0]])
    # Squared distances in the metric E = 2: 2 and 162 from the first mean, 8 and 72 from the second. Scaled over all
    # four, the nearest is 1 and the furthest 0: (162 - d) / 160.
    s = [[1.0, 0.0], [154 / 160, 90 / 160]]
    w = [[math.exp(2 * x) / sum(math.exp(2 * y) for y in row) for x in row] for row in s]  # 1 / (2 * 0.5^2) = 2
    expected = [[0 + 3 * w[0][0] - w[0][1]], [3 + 3 * w[1][0] - w[1][1]]]
    close(drifted_means(mu, f, f_before, torch.tensor([[2.0]]), 0.5), expected)


def test_drifted_means_add_up_the_distances_of_all_dimensions_by_hand() -> None:
    mu, f_before = torch.tensor([[0.0, 1.0], [1.0, 3.0]]), torch.tensor([[1.0, 3.0], [2.0, 0.0], [0.0, 1.0]])
    f = f_before + torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    E = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    # Apart from the first mean by (1, 2), (2, -1) and nothing: 2 + 4 + 12 = 18, 8 - 4 + 3 = 7 and 0 in the metric.
    # From the second by nothing, (1, -3) and (-1, -2): 0, 2 - 6 + 27 = 23 and 2 + 4 + 12 = 18.
    s = [[5 / 23, 16 / 23, 1.0], [1.0, 0.0, 5 / 23]]
    w = [[math.exp(2 * x) / sum(math.exp(2 * y) for y in row) for x in row] for row in s]
    expected = [[x + v[0] + 2 * v[2], y + v[1] + 2 * v[2]] for (x, y), v in zip(mu.tolist(), w, strict=True)]
    close(drifted_means(mu, f, f_before, E, 0.5), expected)
    close(drifted_means(mu, f, f_before, 1e-3 * E, 0.5), expected)  # the unit of distances does not matter


def test_drifted_means_stay_where_nothing_drifts_and_where_all_is_equally_near() -> None:
    mu, f = normal(3, 4).detach(), normal(5, 4, seed=1).detach()
    E = torch.eye(4, dtype=torch.float64)
    assert torch.equal(drifted_means(mu, f, f, E, 0.2), mu)
    # A metric that sees nothing: every node weighs the same.
    torch.testing.assert_close(drifted_means(mu, f + 1, f, 0 * E, 0.2), mu + 1)


# ------------------------------------------------------------------ SLDA and NCM


def test_discriminant_by_hand() -> None:
    mean, covariance = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    # The mean variance is 2: half of each, diag(0.5 + 1, 1.5 + 1).
    weights, offsets = discriminant(mean, covariance, 0.5)
    close(weights, [[1 / 1.5, 0.0], [0.0, 2 / 2.5]])
    close(offsets, [-0.5 / 1.5, -0.5 * 4 / 2.5])


def test_discriminant_without_any_variance_is_finite() -> None:
    weights, offsets = discriminant(torch.ones(2, 3), torch.zeros(3, 3), 0.01)
    assert weights.isfinite().all()
    assert offsets.isfinite().all()


def test_propagated_rows_and_their_lengths_by_hand() -> None:
    # A path of three: degrees with loops 2, 3 and 2, so the ends keep 1/2, the middle 1/3, and edges carry 1 / sqrt(6).
    path, root = graph(np.array([[-6.0], [0.0], [0.0]], dtype=np.float32), [[0, 1], [1, 2]]), math.sqrt(6)
    compute = GraphCompute(HERE)
    # Of unit rows: the first is -1, the others stay zero.
    np.testing.assert_allclose(compute.propagated(path, 1, 0.0), [[-0.5], [-1 / root], [0]], rtol=1e-6)
    np.testing.assert_allclose(compute.lengths(path, 1, 0.0), [0.5, 1 / root, 1e-12], rtol=1e-6)
    assert compute.propagated(path, 1, 0.0) is compute.propagated(path, 1, 0.0)


def test_a_covariance_without_an_inverse_is_answered_with_a_sentence() -> None:
    mean, covariance = torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(DataError, match=r"slda\.shrinkage=0\.01"):
        discriminant(mean, covariance, 0.01)
    with pytest.raises(NonFiniteError, match="too large to be squared"):
        discriminant(mean, torch.full((2, 2), math.inf), 0.01)
