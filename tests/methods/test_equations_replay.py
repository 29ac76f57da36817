"""Equations of methods that keep nodes (GEM, ER-GNN), against numbers worked by hand and naive loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ipal.methods.ergnn import replay_weights, strangers_nearby
from ipal.methods.gem import dual_solution, projected_gradient
from tests.methods.equations_support import close
from tests.numbers import quick

# ------------------------------------------------------------------ GEM: the nearest gradient that harms nobody


def dual(G: list[list[float]], g: list[float], margin: float = 0.0) -> list[float]:
    rows = np.array(G)
    return dual_solution(rows @ rows.T, rows @ np.array(g), margin).tolist()


def test_dual_solution_by_hand() -> None:
    # One memory: min 1/2 * 4 v^2 - 2 v, at 2 / 4; a margin above that is taken, one below changes nothing.
    assert dual([[2.0, 0.0]], [-1.0, 3.0]) == pytest.approx([0.5])
    assert dual([[2.0, 0.0]], [-1.0, 3.0], margin=0.2) == pytest.approx([0.5])
    assert dual([[2.0, 0.0]], [-1.0, 3.0], margin=1.0) == pytest.approx([1.0])
    # Two memories at a right angle: only the first objects.
    assert dual([[1.0, 0.0], [0.0, 1.0]], [-1.0, 2.0]) == pytest.approx([1.0, 0.0])
    # Both object. K = (1 1; 1 2), q = (-1, -4): without bounds v = -K^-1 q = (-2, 3), so the first is 0, and the second
    # 4 / 2: solving for all that object and cutting off at 0 afterwards would give (0, 3).
    assert dual([[1.0, 0.0], [1.0, 1.0]], [-1.0, -3.0]) == pytest.approx([0.0, 2.0])


def test_projected_gradient_by_hand() -> None:
    # As above: (-1, 3) + 0.5 (2, 0), and (-1, -3) + 2 (1, 1), which is at right angles to the second memory and goes
    # along with the first.
    one, two = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    close(projected_gradient(torch.tensor([-1.0, 3.0]), one, 0.0), [0.0, 3.0])
    close(projected_gradient(torch.tensor([-1.0, 3.0]), one, 1.0), [1.0, 3.0])
    close(projected_gradient(torch.tensor([-1.0, -3.0]), two, 0.0), [1.0, -1.0])


def test_projected_gradient_is_left_alone_where_nobody_objects() -> None:
    g = torch.tensor([1.0, -3.0])
    assert projected_gradient(g, torch.tensor([[2.0, 0.0], [0.0, -1.0]]), 0.5) is g
    assert projected_gradient(g, torch.zeros(2, 2), 0.5) is g


@quick
@given(st.integers(1, 6), st.integers(1, 8), st.sampled_from([0.0, 0.5]), st.integers(0, 10_000))
def test_dual_solution_satisfies_the_conditions_of_an_optimum(k: int, size: int, margin: float, seed: int) -> None:
    # More memories than parameters too, where many solutions give the same gradient.
    random = np.random.default_rng(seed)
    G, g = random.normal(size=(k, size)), random.normal(size=size)
    v = dual_solution(G @ G.T, G @ g, margin)
    slope = G @ G.T @ v + G @ g
    assert (v >= margin).all()
    assert (slope >= -1e-7).all()  # no share would be better larger ...
    np.testing.assert_allclose(slope * (v - margin), 0, atol=1e-6)  # ... and none smaller, that may be


@pytest.mark.parametrize("twist", ["the same twice", "opposite", "nearly the same", "tiny and huge"])
def test_projected_gradient_is_sound_in_single_precision_where_memories_depend_on_each_other(twist: str) -> None:
    # As in training: many parameters, float32. Two tasks' gradients may well be (nearly) the same line.
    generator = torch.Generator().manual_seed(3)
    first, g = torch.randn(2000, generator=generator), torch.randn(2000, generator=generator)
    second = {
        "the same twice": first.clone(),
        "opposite": -first,
        "nearly the same": first + 1e-4 * torch.randn(2000, generator=generator),
        "tiny and huge": 1e-4 * torch.randn(2000, generator=generator),
    }[twist]
    G = torch.stack([first, second, torch.randn(2000, generator=generator)])
    G = torch.where((G @ g)[:, None] > 0, -G, G) if twist != "opposite" else G
    turned = projected_gradient(g, G, 0.0)
    cosines = (G.double() @ turned.double()) / (G.double().norm(dim=1) * g.double().norm())
    assert cosines.min() > -1e-4
    assert turned.norm() <= g.norm() * 1.001  # a projection on a cone is never longer


def test_gradients_that_are_no_numbers_or_have_no_length_are_left_alone() -> None:
    g = torch.tensor([-1.0, 1.0])
    assert projected_gradient(g, torch.tensor([[1.0, 0.0], [math.nan, 0.0]]), 0.5) is g
    # Their products are too small for single precision: what they point to is lost.
    assert projected_gradient(1e-15 * g, torch.tensor([[1e-25, 0.0]]), 0.5).tolist() == (1e-15 * g).tolist()


# ------------------------------------------------------------------ ER-GNN: choice and weights


def test_strangers_nearby_by_hand() -> None:
    # On a line at 0, 1 and 3; the first is of another class than the rest. Distances 1, 3 and 2 between them, and the
    # mean over all 9 pairs, each node with itself among them, is 2 (1 + 3 + 2) / 9 = 4/3.
    f, labels = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([0, 1, 1])
    assert strangers_nearby(f, labels, 0.7).tolist() == [0, 0, 0]  # nearer than 0.93: none
    assert strangers_nearby(f, labels, 1.0).tolist() == [1, 1, 0]  # nearer than 1.33: 0 and 1
    assert strangers_nearby(f, labels, 2.0).tolist() == [1, 1, 0]  # nearer than 2.67: also 1 and 3, of one class
    assert strangers_nearby(f, labels, 2.5).tolist() == [2, 1, 1]  # nearer than 3.33: all
    # At 0 and 2 the mean over 4 pairs is 1, and a distance of exactly two means is not within two.
    assert strangers_nearby(torch.tensor([[0.0], [2.0]]), torch.tensor([0, 1]), 2.0).tolist() == [0, 0]


def test_strangers_nearby_do_not_depend_on_the_scale_nor_on_the_chunks() -> None:
    generator = torch.Generator().manual_seed(0)
    f, labels = torch.randn(2500, 3, generator=generator), torch.randint(0, 3, (2500,), generator=generator)
    counts = strangers_nearby(f, labels, 0.5)  # more than one chunk
    distances = torch.cdist(f, f, compute_mode="donot_use_mm_for_euclid_dist")
    naive = ((distances < 0.5 * distances.mean()) & (labels[:, None] != labels[None])).sum(dim=1)
    # Pairs right at the border may fall on either side, as sums are rounded.
    assert (counts - naive).abs().max() <= 1
    assert (counts == naive).float().mean() > 0.99
    assert (strangers_nearby(1024 * f, labels, 0.5) == counts).float().mean() > 0.99


def test_replay_weights_by_hand() -> None:
    # 30 nodes now and 10 kept: beta = 10 / 40 for the current ones, the rest for the kept.
    assert replay_weights(30, 10) == (0.25, 0.75)
