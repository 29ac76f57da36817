"""The losses against numbers worked by hand, against naive loops, and against finite differences."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ipal.backend.finite import read_terms
from ipal.backend.operators import operators
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig
from ipal.data.streams import TaskStream
from ipal.engine.trainer import Training
from ipal.estimator.settings import LearnerConfig
from ipal.methods.ipal import IPAL
from ipal.nn import losses
from tests.learning import begun, config, learn
from tests.numbers import normal

HERE = Runtime.of()


def close(got: Tensor, expected: object) -> None:
    torch.testing.assert_close(got, torch.as_tensor(expected, dtype=got.dtype), rtol=1e-6, atol=1e-7)


# ------------------------------------------------------------------ Eq. 2 and 10: contrast

# Two nodes, of classes 0 and 1, two online prototypes and (last) an offline one. All of unit length.
NODES = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
LABELS = torch.tensor([0, 1])
PROTOTYPES = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]])


def test_prototype_contrast_by_hand() -> None:
    hard, hard_labels = torch.tensor([[0.8, 0.6], [0.0, 1.0]]), torch.tensor([0, 1])
    replayed = torch.tensor([[0.0, -1.0]])
    tau = 0.5  # so every cosine is doubled

    # Node 0: cosines 1, 0.6, -1 with prototypes. The hard example of class 0 (0.8) is its own class's and must
    # not appear; that of class 1 gives 0, the replayed feature 0.
    node_0 = -math.log(math.exp(2) / (math.exp(2) + math.exp(1.2) + math.exp(-2) + math.exp(0) + math.exp(0)))
    # Node 1: cosines 0, 0.8, 0. Here the second hard example is its own class's (in fact the node itself: 1);
    # the first gives 0.6, the replayed feature -1.
    node_1 = -math.log(math.exp(1.6) / (math.exp(0) + math.exp(1.6) + math.exp(0) + math.exp(1.2) + math.exp(-2)))

    got = losses.prototype_contrast(NODES, LABELS, PROTOTYPES, tau, hard, hard_labels, replayed)
    close(got, (node_0 + node_1) / 2)


def test_prototype_contrast_with_prototypes_alone_is_eq_2_by_hand() -> None:
    tau = 0.25  # every cosine times four
    node_0 = -math.log(math.exp(4) / (math.exp(4) + math.exp(2.4) + math.exp(-4)))
    node_1 = -math.log(math.exp(3.2) / (math.exp(0) + math.exp(3.2) + math.exp(0)))
    close(losses.prototype_contrast(NODES, LABELS, PROTOTYPES, tau), (node_0 + node_1) / 2)


def test_prototype_contrast_leaves_out_prototypes_that_are_absent_by_hand() -> None:
    # The third prototype is none: its cosines, -1 and 0, do not count, whatever they are.
    node_0 = -math.log(math.exp(1) / (math.exp(1) + math.exp(0.6)))
    node_1 = -math.log(math.exp(0.8) / (math.exp(0) + math.exp(0.8)))
    absent = torch.tensor([False, False, True])
    close(losses.prototype_contrast(NODES, LABELS, PROTOTYPES, 1.0, absent=absent), (node_0 + node_1) / 2)


# ------------------------------------------------------------------ Eq. 5: feature distillation


def test_feature_distillation_by_hand() -> None:
    f = torch.tensor([[4.0, 6.0], [1.0, 2.0]])
    f_before = torch.tensor([[1.0, 2.0], [1.0, 1.0]])
    # Differences (3, 4) and (0, 1), lengths 5 and 1. One norm over all would be sqrt(26), mean squares 13.
    close(losses.feature_distillation(f, f_before), (5 + 1) / 2)


# ------------------------------------------------------------------ Eq. 6 to 8: affinity distillation


def test_unseen_share_by_hand() -> None:
    assert losses.unseen_share(8, 2) == 0.25  # two of eight remembered classes are not in the batch
    assert losses.unseen_share(3, 3) == 1.0  # as in a class-incremental stream
    assert losses.unseen_share(3, 0) == losses.unseen_share(0, 0) == 0.0


def test_mixed_affinity_by_hand() -> None:
    f = torch.tensor([[2.0, 0.0]])
    mu = torch.tensor([[0.0, 1.0], [3.0, 4.0]])  # unit rows: (0, 1) and (0.6, 0.8)
    lam = torch.tensor([[0.25, 0.5]])
    # m = 0: 0.25 (2, 0) + 0.75 (0, 1) = (0.5, 0.75); products with the unit rows: 0.75 and 0.3 + 0.6.
    length_0 = math.sqrt(0.5**2 + 0.75**2)
    # m = 1: 0.5 (2, 0) + 0.5 (3, 4) = (2.5, 2); products: 2 and 1.5 + 1.6.
    length_1 = math.sqrt(2.5**2 + 2**2)
    expected = [[[0.75 / length_0, 0.9 / length_0], [2 / length_1, 3.1 / length_1]]]
    close(losses.mixed_affinity(f, mu, lam), expected)


def test_keep_consistent_by_hand() -> None:
    before = torch.tensor(
        [
            # Both virtual features are nearest to prototype 0: only the first is kept. Over the wrong axis both
            # columns would have their maximum in row 1, and the second would be kept instead.
            [[0.9, 0.1], [0.95, 0.2]],
            # Each is nearest to its own.
            [[0.5, 0.4], [-0.3, -0.2]],
            # Each is nearest to the other.
            [[0.1, 0.2], [0.9, 0.8]],
        ]
    )
    assert losses.keep_consistent(before).tolist() == [[True, False], [True, True], [False, False]]


# Two nodes, two old classes. The virtual feature of node 0 and class 1 is not kept, so its change must not count.
CHANGE = torch.tensor([[[1.0, 2.0], [7.0, -9.0]], [[2.0, 0.0], [0.0, -4.0]]])
BEFORE = torch.tensor([[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6], [0.7, 0.8]]])
KEEP = torch.tensor([[True, False], [True, True]])


def test_affinity_distillation_by_hand() -> None:
    # sqrt(1 + 4 + 4 + 0 + 0 + 16): one norm over nodes, classes m and prototypes k; a mean would be another number.
    close(losses.affinity_distillation(BEFORE + CHANGE, BEFORE, KEEP), 5.0)


def test_affinity_distillation_printed_by_hand() -> None:
    # Own prototypes only: |1| for node 0 (its other feature is not kept), |2| + |-4| for node 1; mean over nodes.
    close(losses.affinity_distillation_printed(BEFORE + CHANGE, BEFORE, KEEP), (1 + 6) / 2)


def test_distillations_have_a_gradient_of_zero_where_nothing_changed() -> None:
    # The first step of every task: current and previous encoder are the same. A naive norm gives 0 / 0 here.
    f = normal(4, 3)
    for loss in (losses.affinity_distillation, losses.affinity_distillation_printed):
        affinity = normal(2, 2, 2)
        loss(affinity, affinity.detach(), KEEP).backward()
        assert not affinity.grad.any()
    losses.feature_distillation(f, f.detach()).backward()
    assert not f.grad.any()


# ------------------------------------------------------------------ Eq. 9: hard examples


def test_entropy_by_hand() -> None:
    # Classes x nodes: three nodes over two classes. A certain node has entropy 0, not NaN.
    p = torch.tensor([[0.5, 0.25, 1.0], [0.5, 0.75, 0.0]])
    close(losses.entropy(p), [math.log(2), -(0.25 * math.log(0.25) + 0.75 * math.log(0.75)), 0.0])


def test_hardness_is_each_measure_by_hand() -> None:
    # Cosines of two nodes with three prototypes (classes x nodes); node 0 is the undecided one.
    affinity = torch.tensor([[0.5, 1.0], [0.5, 0.0], [-1.0, -1.0]])
    sums = math.exp(0.5) + math.exp(0.5) + math.exp(-1), math.exp(1) + math.exp(0) + math.exp(-1)
    p = [[math.exp(a) / s for a in column] for column, s in zip(affinity.T.tolist(), sums, strict=True)]
    close(losses.hardness(affinity, "entropy"), [-sum(q * math.log(q) for q in node) for node in p])
    close(losses.hardness(affinity, "margin"), [0.0, p[1][1] - p[1][0]])
    close(losses.hardness(affinity, "energy"), [-math.log(s) for s in sums])


def test_hardest_is_chosen_within_each_class_by_hand() -> None:
    hard = torch.tensor([0.9, 0.1, 0.5, 0.7, 0.3])
    members = torch.tensor([[True, False, True, False, True], [False, True, False, False, False]])
    nodes, classes = losses.hardest(hard, members, 2)
    # Node 3 is hard but of neither class; class 1 has one node to give, and the fourth place stays empty.
    assert classes.tolist() == [0, 0, 1, -1]
    assert nodes[:3].tolist() == [0, 2, 1]


# ------------------------------------------------------------------ Eq. 11 and 12: drift compensation


def test_compensate_by_hand() -> None:
    mu = torch.tensor([[1.0, 1.0], [0.0, 5.0]])
    f_before = torch.tensor([[2.0, 2.0], [3.0, 3.0]])
    f = f_before + torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    w = torch.tensor([[0.25, 1.0], [0.75, 0.0]])  # nodes x classes
    # Drifts: 0.25 (1, 0) + 0.75 (0, 2) = (0.25, 1.5) and (1, 0); a tenth of each is added.
    close(losses.compensate(mu, f, f_before, w, 0.1), [[1.025, 1.15], [0.1, 5.0]])


# Cosines of the nodes with the prototypes: (1, 0.6) and (0, 0.8). Lengths differ, so raw products would not do.
EARLIER = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
OLD = torch.tensor([[1.0, 0.0], [3.0, 4.0]])


def test_proximity_softmax_by_hand() -> None:
    e = math.exp
    # Over nodes, one column per prototype.
    expected = [[e(1) / (e(1) + e(0)), e(0.6) / (e(0.6) + e(0.8))], [e(0) / (e(1) + e(0)), e(0.8) / (e(0.6) + e(0.8))]]
    close(losses.proximity_softmax(losses.cosine(EARLIER, OLD)), expected)


def test_proximity_printed_by_hand() -> None:
    close(losses.proximity_printed(losses.cosine(EARLIER, OLD)), [[1 / 1, 0.6 / 1.4], [0 / 1, 0.8 / 1.4]])


def test_mixed_affinity_printed_by_hand() -> None:
    f, mu = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0], [3.0, 4.0]])
    lam = torch.tensor([[0.5, 0.25]])
    # Virtual features: half of (1, 0) and (2, 0) is (1.5, 0); a quarter of (1, 0) and three of (3, 4) is (2.5, 3).
    close(losses.mixed_affinity_printed(f, mu, lam), [[[3.0, 4.5], [5.0, 19.5]]])


def test_cosine_of_a_row_of_zeros_is_zero() -> None:
    # A last ReLU can silence a node altogether; it must not spoil the others with NaN.
    zero, some = torch.zeros(1, 2), torch.tensor([[0.0, 2.0]])
    close(losses.cosine(torch.cat([zero, some]), some), [[0.0], [1.0]])


# ------------------------------------------------------------------ Eq. 13: the whole, in the method


def small_ipal(**changes: object) -> LearnerConfig:
    settings = {"distillation": "fd", "replay": False, "k": 2, "gamma": 0.7, "node_weights": "pagerank", **changes}
    return config(IPAL, epochs=3, encoder=EncoderConfig(hidden=8, width=4), **settings)


def step(training: Training) -> dict[str, float]:
    """Loss terms of a step that is taken."""
    (batch,) = training.batches(0)
    return read_terms([training.step(batch)])[0]


def test_ipal_loss_by_hand(tiny_stream: TaskStream) -> None:
    """All terms of a step on a second task, by loops over nodes and classes, straight from the equations."""
    task = tiny_stream.task(1)
    training = begun(learn(small_ipal(), tiny_stream.task(0)), task)
    step(training)  # so that the encoder differs from the teacher
    state = training.state
    with torch.no_grad():
        assert state.teacher is not None
        f, before = (
            network.encoder(operators(task, HERE)).numpy().astype(np.float64)
            for network in (training.network, state.teacher)
        )
    terms = step(training)
    # Eq. 3, solved instead of iterated: (I - alpha A D^-1) r = 1 - alpha.
    a = task.graph.aggregation("sum").toarray().astype(np.float64)
    n = len(a)
    r = np.linalg.solve(np.eye(n) - 0.85 * a / np.maximum(a.sum(axis=0), 1), np.full(n, 0.15))[task.nodes]
    # Eq. 4 for the classes of this task, then the remembered ones.
    labels = task.labels
    current = np.unique(labels).tolist()
    online = [np.average(f[labels == label], axis=0, weights=r[labels == label]) for label in current]
    mu = np.array([*online, *state.memory.mean.numpy()])
    unit = f / np.linalg.norm(f, axis=1, keepdims=True)
    mu /= np.linalg.norm(mu, axis=1, keepdims=True)
    # Eq. 9: the two most uncertain nodes of each class.
    e = np.exp(unit @ mu.T)
    p = e / e.sum(axis=1, keepdims=True)
    uncertain = -(p * np.log(p)).sum(axis=1)
    hard = {label: sorted(np.flatnonzero(labels == label), key=lambda i: uncertain[i])[-2:] for label in current}
    # Eq. 10
    contrast = []
    for node, label in enumerate(labels):
        right = math.exp(unit[node] @ mu[current.index(label)] / 0.07)
        below = sum(math.exp(unit[node] @ row / 0.07) for row in mu)
        below += sum(math.exp(unit[node] @ unit[i] / 0.07) for other in current if other != label for i in hard[other])
        contrast.append(-math.log(right / below))
    assert terms["contrast"] == pytest.approx(np.mean(contrast), rel=1e-4)
    # Eq. 5, weighted by gamma as in Eq. 13.
    assert terms["distillation"] == pytest.approx(0.7 * np.mean(np.linalg.norm(f - before, axis=1)), rel=1e-4)
    assert set(terms) == {"contrast", "distillation"}


def distilled(training: Training, f: Tensor, before: Tensor, mu: Tensor) -> Tensor:
    """The distillation of IPAL where `mu` are the old prototypes."""
    context = replace(training.context, held=losses.OldPrototypes.of(mu))
    method: Any = training.method
    found: Tensor = method._distil(f, before, context, torch.Generator().manual_seed(1))
    return found


@pytest.mark.parametrize(
    ("distillation", "equation"),
    [("ipad", losses.affinity_distillation), ("ipad-printed", losses.affinity_distillation_printed)],
)
def test_ipal_distils_by_the_equation_that_is_asked_for(distillation: str, equation, tiny_stream: TaskStream) -> None:
    training = begun(small_ipal(distillation=distillation, subset=4), tiny_stream.task(0))
    f, before, mu = (normal(*shape, seed=seed).detach().float() for seed, shape in enumerate([(9, 4), (9, 4), (3, 4)]))
    got = distilled(training, f, before, mu)
    # The same draws: four of the nine nodes, and for each a share of every old prototype.
    draws = torch.Generator().manual_seed(1)
    chosen = torch.randperm(9, generator=draws)[:4]
    lam = training.context.mixing.draw((4, 3), draws)
    then, now = (losses.mixed_affinity(each[chosen], mu, lam) for each in (before, f))
    close(got, equation(now, then, losses.keep_consistent(then)))
