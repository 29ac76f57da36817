"""What scores of unseen nodes are like by the sums alone: by hand, and against nodes that were not learned."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ipal.closed_form import method
from ipal.closed_form.method import LEAST_SPREAD, MOST_LEVERAGE, mean_leverage, usual_scores
from ipal.closed_form.ridge import factorise, ridge_weights
from ipal.closed_form.sums import Normal, Rows, Sums
from tests.closed_form.analytic_support import case, memory, solved

CPU = torch.device("cpu")


def doubles(*rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# Class 0 is at (1, -1) and (1, 1), class 1 at (-2, 0) twice: means (1, 0) and (-2, 0), and by class
# A = (1 0; 0 1) + (4 0; 0 0), of which (5 0; 0 0) are the means'.
NORMAL = Normal(doubles([5, 99], [0, 1]), doubles([1, -2], [0, 0]), torch.tensor([2, 2]), 0.5, torch.zeros(2))


def test_usual_scores_by_hand() -> None:
    # B = A - M M^T = (0 0; 0 1): of w_0 = (1, 3) the root of 9 is left, of w_1 = (0, -1) 1. The upper half is not read.
    weights = doubles([1, 0], [3, -1])
    found = usual_scores(NORMAL, weights, leverage=0.0)
    # Scores of (1, 0) and of (-2, 0).
    torch.testing.assert_close(found.mean, doubles([1, 0], [-2, 0]))
    torch.testing.assert_close(found.spread, doubles(3, 1).flatten())
    # Training rows scatter less: with a leverage of 3/4, unseen ones four times as much.
    torch.testing.assert_close(usual_scores(NORMAL, weights, leverage=0.75).spread, doubles(12, 4).flatten())


def test_usual_scores_of_rows_that_do_not_scatter_have_the_least_spread() -> None:
    found = usual_scores(NORMAL, doubles([1, 1], [0, 0]), leverage=0.0)
    assert found.spread.tolist() == [LEAST_SPREAD] * 2


def test_mean_leverage_by_hand() -> None:
    # Eigenvalues 5 and 1 with a ridge of 1: 5/6 + 1/2, over four rows.
    assert mean_leverage(NORMAL, 1.0) == pytest.approx((5 / 6 + 1 / 2) / 4)
    # With hardly any ridge both columns are free: 2 / 4. With a large one none is.
    assert mean_leverage(NORMAL, 1e-9) == pytest.approx(0.5)
    assert mean_leverage(NORMAL, 1e9) == pytest.approx(0, abs=1e-6)


def test_mean_leverage_of_rows_known_by_heart_is_the_most() -> None:
    assert mean_leverage(replace(NORMAL, count=torch.tensor([1, 1])), 1e-9) == MOST_LEVERAGE


def test_usual_scores_of_a_model_are_about_those_of_nodes_it_has_not_seen() -> None:
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(3, 20, dtype=torch.float64, generator=random)
    labels = torch.arange(300) % 3

    def drawn() -> Tensor:
        return centres[labels] + 0.8 * torch.randn(300, 20, dtype=torch.float64, generator=random)

    kept = (
        Sums.empty(20, CPU).grown(3).changed(1, Rows(drawn(), labels, torch.Tensor.double, torch.arange(len(labels))))
    )
    normal = kept.normal()
    weights = ridge_weights(factorise(normal.gram, 0.1), normal.mean)
    usual = usual_scores(normal, weights, mean_leverage(normal, 0.1))
    own = (drawn() @ weights).gather(1, labels[:, None])[:, 0]
    for c in range(3):
        assert float(own[labels == c].mean()) == pytest.approx(float(usual.mean[c, c]), abs=0.1)
        # All classes scatter in A, of which each is a third: B is three times the scatter of one.
        assert 0.7 < math.sqrt(3) * float(own[labels == c].std()) / float(usual.spread[c]) < 1.4


def test_margins_and_novelty_of_a_model_are_measured_by_usual_scores() -> None:
    one = case(62, width=64)
    learner = one.model(one.nodes)
    model, found = learner.model_, learner.model_.method.usual(memory(learner))
    assert found.mean.shape == (len(one.classes), len(one.classes))
    # The margin of a class mean, and the spread, in logarithms of probabilities.
    usual, scale = model.usual_margins(), solved(learner).scale
    for c, row in enumerate(found.mean.tolist()):
        rival = max(score for other, score in enumerate(row) if other != c)
        assert float(usual.margin[c]) == pytest.approx(scale * (row[c] - rival))
    torch.testing.assert_close(usual.spread, scale * found.spread)
    # Novelty: how far the highest score is below the mean of its class, in spreads.
    scores = found.mean.clone()
    scores[range(len(scores)), range(len(scores))] += 9  # each is its own best
    novelty = model.novelty(scores, model.checked(one.data(one.nodes)))
    np.testing.assert_allclose(novelty.numpy(), -9 / found.spread.numpy())


def test_the_leverage_of_a_wide_model_is_that_of_the_narrower_one_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one = case(63, width=64)
    learner = one.model(one.nodes)
    seen = []
    monkeypatch.setattr("ipal.closed_form.sums.COLUMNS", 16)
    monkeypatch.setattr(method, "mean_leverage", lambda normal, ridge: seen.append(len(normal.gram)) or 0.0)
    learner.model_.method.usual(memory(learner))
    assert seen == [16]
