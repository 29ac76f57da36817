"""What the closed form chooses by itself from training nodes and memory, and how sure it is of what it predicts."""

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from ipal.config import ProtocolConfig
from ipal.data.datasets import load
from ipal.data.streams import TaskStream
from ipal.learners import Analytic
from ipal.learners.analytic import selection
from ipal.learners.analytic.learner import FIRST_RIDGE
from ipal.learners.analytic.rehearsal import Loss, Rehearsal
from ipal.learners.analytic.room import EXPANSIONS, GIB, NARROWEST_SKETCH, STEP, WIDEST_SKETCH
from ipal.learners.analytic.selection import RIDGES, SPREADS
from ipal.learners.analytic.solved import ENOUGH_ROWS
from ipal.learners.analytic.spread import Spread
from tests.learners.analytic_support import graph_of
from tests.learners.support import learn

# ------------------------------------------------------------------ what it chooses by itself

SMALL = 1024**2 * 8 / GIB
"""Memory for pooled sums of width 1024, and no more."""


def blobs(features: int, noise: float, homophily: float, seed: int = 0, nodes: int = 240) -> Data:
    """Four classes around random centres; a share of the edges stays inside a class, the rest runs anywhere."""
    random = np.random.default_rng(seed)
    y = np.arange(nodes) % 4
    x = np.eye(4, features)[y] * 2 + noise * random.normal(size=(nodes, features))
    ends = random.integers(0, nodes, (2, 8 * nodes))
    inside = random.random(8 * nodes) < homophily
    ends[1, inside] = ends[0, inside] + 4 * random.integers(0, nodes // 4, inside.sum())
    ends %= nodes
    edges = np.concatenate([ends, ends[::-1]], axis=1)
    train = torch.from_numpy(random.random(nodes) < 0.6)
    return Data(x=np.float32(x), edge_index=torch.from_numpy(edges), y=torch.from_numpy(y), train_mask=train)


def test_what_is_chosen_among_is_what_published_numbers_were_chosen_among():
    single = [(hops, 0.0) for hops in ((0,), (1,), (2,), (3,), (4,), (6,), (8,))]
    restarted = [((hops,), restart) for restart in (0.1, 0.2, 0.4) for hops in (2, 3, 6)]
    beside = [(hops, 0.0) for hops in ((0, 1), (0, 2), (1, 2), (2, 3), (0, 1, 2), (1, 2, 3))]
    assert list(SPREADS) == [*single, *restarted, *beside]
    assert RIDGES == (0.001, 0.0032, 0.01, 0.032, 0.1, 0.32, 1.0, 3.2, 10.0, 32.0)
    assert EXPANSIONS == (0, 256, 512, 1024, 2048, 4096)
    assert (NARROWEST_SKETCH, WIDEST_SKETCH, STEP, ENOUGH_ROWS, FIRST_RIDGE) == (768, 1024, 256, 32, 0.1)
    own = selection
    assert (own.DEFAULT, own.NEAR, own.CORNER, own.LEFT_OUT_ROWS) == (((3,), 0.1), 1.02, 2048, 1024)
    assert (own.FEW_COLUMNS, own.CLEARLY, own.FARTHEST, own.FEWEST_MIXED) == (512, 2, 4, 3)
    assert (own.FEWEST_ROWS, own.FEW_ROWS) == (64, 256)


def test_neighbours_are_asked_where_they_help_and_only_there():
    noisy, clean = blobs(16, 1.5, 0.9), blobs(16, 0.1, 0.0)
    choices = [Analytic(memory=SMALL).partial_fit(data).choices() for data in (noisy, clean)]
    assert min(choices[0]["hops"]) >= 1
    assert choices[1]["hops"] == [0]
    for choice in choices:
        least = min(choice["hops_errors"], key=choice["hops_errors"].get)
        assert str(Spread(tuple(choice["hops"]), choice["restart"])) in (least, str(selection.DEFAULT))
        assert choice["expansion_errors"] == {}  # an expansion would be wider than there are rows
        assert "each left out" in choice["reason"]


def test_own_features_return_where_neighbours_are_of_any_class():
    """Features and neighbours both tell something: neither no hop nor plain hops are best."""
    mixed = blobs(16, 0.8, 0.3, nodes=2000)
    choice = Analytic(test_graph="isolated").partial_fit(mixed).choices()
    assert choice["restart"] > 0
    assert choice["hops_errors"]["0"] > min(choice["hops_errors"].values())


class Told(Rehearsal):
    """A rehearsal in which every row has the log-loss that it is given in place of a feature map."""

    def loss(self, features: Any) -> Loss:
        log = torch.full((40,), features)
        return Loss(float(features), 0.0, 0.1, log, log)


def chosen_where(losses: dict[Spread, float], default_within: int = 0) -> tuple[Spread, list[Spread]]:
    """What is chosen, and what was tried, where each has this log-loss."""
    chosen, tried = selection.choose_spread(Told({}, [], torch.arange(40) % 2), losses, default_within)
    return chosen, list(tried)


def test_hops_stand_side_by_side_where_the_log_loss_falls_by_hand():
    single = {Spread((0,)): 0.9, Spread((1,)): 0.35, Spread((2,)): 0.4, Spread((3,)): 0.9}
    pairs = {Spread((0, 1)): 0.3, Spread((0, 2)): 0.0, Spread((1, 2)): 0.2}
    three = {Spread((0, 1, 2)): 0.1, Spread((1, 2, 3)): 0.15}
    chosen, tried = chosen_where(single | pairs | three)
    assert chosen == Spread((0, 1, 2))
    assert sorted(tried) == sorted([*single, Spread((0, 1)), Spread((1, 2)), *three]), "none without the chosen hop"
    assert chosen_where(single | pairs | dict.fromkeys(three, 0.25))[0] == Spread((1, 2))
    chosen, tried = chosen_where(single | {Spread((0, 1)): 0.6} | three)
    assert chosen == Spread((1,))
    assert sorted(tried) == sorted([*single, Spread((0, 1))]), "no three where two are no better than one"
    assert chosen_where({Spread((0, 3)): 0.5, Spread((1, 2)): 0.4})[0] == Spread((1, 2))


def test_restarts_grow_and_hops_change_as_long_as_the_loss_falls_by_hand():
    plain = {Spread((hop,)): loss for hop, loss in zip((0, 1, 2, 3, 4), (0.9, 0.8, 0.6, 0.5, 0.7), strict=True)}
    some = {Spread((2,), 0.1): 0.45, Spread((3,), 0.1): 0.4, Spread((6,), 0.1): 0.42}
    more = {Spread((2,), 0.2): 0.5, Spread((3,), 0.2): 0.41, Spread((6,), 0.2): 0.5}
    most = {Spread((3,), 0.4): 0.1}
    chosen, tried = chosen_where(plain | some | more | most)
    assert chosen == Spread((3,), 0.1)
    assert set(tried) == {*plain, *some, *more} - {Spread((1,))}, "not beyond what is worse"


def test_the_default_stays_where_it_is_level_by_hand():
    losses = {Spread((0,)): 0.5, selection.DEFAULT: 0.5}
    assert chosen_where(losses)[0] == Spread((0,))
    assert chosen_where(losses, 1)[0] == selection.DEFAULT
    assert chosen_where(losses | {selection.DEFAULT: 0.6}, 1)[0] == Spread((0,))  # by the same in every row


def test_features_are_expanded_where_a_line_does_not_part_the_classes():
    random = np.random.default_rng(0)
    angle = random.uniform(0, 2 * np.pi, 300)
    quarter = (angle // (np.pi / 4)).astype(int) % 2  # eight sectors, in turn
    rings = Data(x=np.float32(np.stack([np.cos(angle), np.sin(angle)], axis=1)), y=quarter)
    errors = Analytic(memory=SMALL, hops=(0,)).partial_fit(rings).choices()["expansion_errors"]
    assert errors["256"] < 0.5 * errors["0"]
    line = Data(x=np.float32(np.eye(4)[np.arange(300) % 4] + 0.05 * random.normal(size=(300, 4))), y=np.arange(300) % 4)
    chosen = Analytic(memory=SMALL, hops=(0,)).partial_fit(line)
    assert chosen.choices()["expansion_errors"]["0"] < 0.02  # hardly any need
    assert (chosen.predict(line) == line.y).all()


def test_the_choice_asks_no_other_label_and_the_seed_decides_it(monkeypatch):
    monkeypatch.setattr("ipal.learners.analytic.room.EXPANSIONS", (0, 64))  # is chosen as 1024 is, and sooner
    data = blobs(8, 1.0, 0.8)
    first = Analytic(memory=SMALL, seed=2).partial_fit(data)
    other = data.clone()
    hidden = ~data.train_mask
    other.y[hidden] = other.y[hidden].flip(0) + 1
    choice = Analytic(memory=SMALL, seed=2).partial_fit(other).choices()
    for name in ("hops", "expansion", "hops_errors", "expansion_errors"):
        assert choice[name] == first.choices()[name]
    again = Analytic(memory=SMALL, seed=2).partial_fit(data)
    assert again.state().facts == first.state().facts
    assert torch.equal(again.weights_, first.weights_)


def test_the_ridge_is_chosen_at_every_task_and_told():
    stream = TaskStream(*graph_of(load("synthetic:nodes=240,classes=6,features=16,seed=1")), ProtocolConfig(), 0)
    learner = learn(Analytic(expansion=64), stream.task(0))
    before = learner.state()
    learn(learner, stream.task(1), stream.task(2))
    told = learner.choices()["ridge"]
    assert len(told) == 3
    assert told[-1]["chosen"] == learner.ridge_
    assert [one["classes"] for one in told] == [2, 2, 2]

    assert [one["known"] for one in told] == [2, 4, 6]
    losses = [selection.as_of(one["log_losses"], 6 / one["known"]) for one in told]
    mean = {ridge: sum(one[ridge] for one in losses) for ridge in losses[0]}
    assert mean[f"{learner.ridge_:g}"] <= 1.02 * min(mean.values())
    assert len(before.facts["choices"]["ridge"]) == 1  # a state is a value


def test_losses_of_fewer_classes_are_read_at_the_same_ridge_by_hand():
    losses = {"0.1": 1.0, "1": 3.0, "10": 4.0}
    assert selection.as_of(losses, 1) == losses
    assert selection.as_of(losses, 10) == {"0.1": 3.0, "1": 4.0, "10": 4.0}  # ten times as large, relatively, as then
    assert selection.as_of(losses, 10**0.5)["0.1"] == pytest.approx(2.0)


def test_with_one_class_first_the_defaults_are_used_and_nothing_breaks():
    data = blobs(8, 0.5, 0.8)
    learner = Analytic(memory=SMALL)
    for label in range(4):
        part = data.clone()
        part.train_mask = data.train_mask & (data.y == label)
        learner.partial_fit(part)
    assert (learner.choices()["hops"], learner.choices()["restart"]) == ([3], 0.1)
    assert learner.choices()["expansion"] == 0
    assert learner.choices()["hops_errors"] == {}
    assert "one class" in learner.choices()["reason"]
    hidden = ~data.train_mask.numpy()
    assert np.mean(learner.predict(data)[hidden] == data.y.numpy()[hidden]) > 0.9


def test_memory_and_expected_classes_limit_the_expansion():
    data = blobs(8, 0.5, 0.8, nodes=4000)
    data.train_mask &= data.y == 0  # one class of 600 rows: 512 columns are enough
    square, half = 512**2 * 8 / GIB, 512 * 513 / 2 * 8 / GIB

    def chosen(**options: Any) -> int:
        learner = Analytic(**options).partial_fit(data)
        report = learner.memory_report()["bytes"]
        assert report < 1.05 * options["memory"] * GIB + 2**17
        return learner.choices()["expansion"]

    assert chosen(memory=0.99 * square) == 256
    assert chosen(memory=square) == chosen(memory=100 * square) == 512
    assert chosen(sums="per-class", memory=10 * half) == 0  # for a hundred classes
    assert chosen(sums="per-class", memory=10 * half, expected_classes=10) == 512
    assert chosen(sums="per-class", memory=10 * half, expected_classes=11) == 256


def test_without_an_expansion_too_the_chosen_width_is_within_the_memory():
    data = blobs(16, 1.5, 0.9)
    for hops in (1, 2, 3):
        most = (16 * hops) ** 2 * 8 / GIB
        learner = Analytic(memory=most, sums="pooled").partial_fit(data)
        assert learner.choices()["expansion"] == 0
        assert all(key.count("+") < hops for key in learner.choices()["hops_errors"])
        assert learner.sums_.gram.numel() * 8 <= most * GIB


# ------------------------------------------------------------------ probabilities


def calibration_error(p: np.ndarray, truth: np.ndarray) -> float:
    """Expected difference between confidence and accuracy, in 15 bins of confidence."""
    sure, right = p.max(axis=1), p.argmax(axis=1) == truth
    bins = np.minimum((sure * 15).astype(int), 14)
    return float(sum(abs((sure - right)[bins == b].sum()) for b in range(15)) / len(p))


def test_probabilities_are_calibrated_on_nodes_that_were_not_learned():
    data = load("synthetic:nodes=1500,classes=6,features=16,signal=1,seed=3")
    stream = TaskStream(*graph_of(data), ProtocolConfig(), 0)
    learner = learn(Analytic(expansion=256), *(stream.task(index) for index in range(3)))
    found, raw = [], []
    for exam in stream.exams(2):
        scores = learner.scores(exam.graph)
        truth = np.array([learner.labels_.index(label) for label in exam.test.labels])
        for into, p in ((found, learner.probabilities(scores, exam.graph)), (raw, scores.softmax(dim=1))):
            into.append((p.numpy()[exam.test.nodes], truth))
    errors = [calibration_error(*map(np.concatenate, zip(*each, strict=True))) for each in (found, raw)]
    assert errors[0] < 0.08
    assert errors[0] < 0.3 * errors[1]
