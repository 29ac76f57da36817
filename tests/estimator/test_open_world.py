"""Unknown classes, calibration and prediction sets: equations by hand, and what a model says on a graph of blocks."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch_geometric.data import Data

import ipal
from ipal import ConfigError
from ipal.data.graph import Graph
from ipal.errors import DataError, Qualified
from ipal.estimator.model import Model
from ipal.estimator.open_world import calibration, unknown
from ipal.estimator.open_world.calibration import LEVELS, sharpened
from ipal.estimator.registry import METHODS as REGISTERED
from ipal.methods.base import UsualMargins

pytestmark = pytest.mark.filterwarnings("ignore:.*nodes are rejected:ipal.errors.Qualified")

METHODS = [ipal.Analytic, ipal.NCM, ipal.SLDA, ipal.IPAL]


def blocks(classes: int = 5, each: int = 120, noise: float = 2.2, seed: int = 0) -> Data:
    """A graph of blocks, most edges inside them, with overlapping features."""
    random = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), each)
    x = np.eye(classes, 16)[y] * 2 + noise * random.standard_normal((len(y), 16))
    ends = random.integers(0, len(y), (2, 12 * len(y)))
    kept = (y[ends[0]] == y[ends[1]]) | (random.random(ends.shape[1]) < 0.01)
    edges = np.concatenate([ends[:, kept], ends[::-1, kept]], axis=1)
    data = Data(x=torch.tensor(x, dtype=torch.float32), edge_index=torch.tensor(edges), y=torch.tensor(y))
    data.train_mask = torch.tensor(random.random(len(y)) < 0.7)
    return data


def narrow(method: type[ipal.Learner]) -> ipal.Learner:
    """With few columns, as the graph is small; class means of noisy features need more propagation."""
    return method(**{ipal.Analytic: {"width": 128}, ipal.NCM: {"restart": 0.15}}.get(method, {}))


@pytest.fixture(scope="module")
def graph() -> Data:
    return blocks()


@pytest.fixture(scope="module")
def known(graph):
    """Models of each method that learned all classes but the last."""
    part = graph.subgraph(graph.y < 4)
    return {method: narrow(method).partial_fit(part) for method in METHODS}


# ---------------------------------------------------------------------- by hand


def test_smoothed_by_hand():
    # A path 0 - 1 - 2: means over a node and its neighbours, once.
    path = Graph(np.ones((3, 1), dtype=np.float32), np.array([[0, 1, 1, 2], [1, 0, 2, 1]]))
    found = calibration.smoothed(torch.tensor([3.0, 0.0, 6.0]), path, times=1)
    assert found.tolist() == [1.5, 3.0, 3.0]
    # Twice: (1.5 + 3) / 2, (1.5 + 3 + 3) / 3, (3 + 3) / 2.
    assert calibration.smoothed(torch.tensor([3.0, 0.0, 6.0]), path).tolist() == [2.25, 2.5, 3.0]


@pytest.mark.parametrize("directed", [False, True])
def test_own_shares_are_what_a_value_weighs_in_its_own_mean(directed):
    edges = np.array([[0, 1, 1, 3, 2], [1, 2, 3, 0, 0]])
    edges = edges if directed else np.concatenate([edges, edges[::-1]], axis=1)
    graph = Graph(np.ones((5, 1), dtype=np.float32), edges)
    found = calibration.own_shares(graph)
    for node in range(5):
        assert float(found[node]) == pytest.approx(
            float(calibration.smoothed(torch.eye(5)[node].double(), graph)[node])
        )


def test_sharpened_by_hand():
    p = torch.tensor([[0.6, 0.3, 0.1]])
    # squares 0.36, 0.09, 0.01 of sum 0.46
    assert sharpened(p, 2.0)[0].tolist() == pytest.approx([0.36 / 0.46, 0.09 / 0.46, 0.01 / 0.46], rel=1e-5)
    assert sharpened(p, 1.0)[0].tolist() == pytest.approx(p[0].tolist(), rel=1e-5)
    assert sharpened(torch.tensor([[1.0, 0.0]]), 0.5)[0].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)


# ---------------------------------------------------------------------- what a model says


@pytest.mark.parametrize("method", METHODS)
def test_unknown_nodes_score_higher_and_few_known_ones_are_lost(method, known, graph):
    model, is_new = known[method], (graph.y == 4).numpy()
    assert roc_auc_score(is_new, ipal.score_unknown(model, graph)) > 0.8
    labels = model.predict(graph, reject=0.05)
    lost = np.equal(labels[~is_new & ~graph.train_mask.numpy()], None).mean()
    assert lost < 0.2
    assert np.equal(labels[is_new], None).mean() > 2 * lost
    kept = ~np.equal(labels, None)
    assert (labels[kept] == model.predict(graph)[kept]).all()


@pytest.mark.parametrize("method", [ipal.NCM, ipal.IPAL])
def test_probabilities_are_about_right_whatever_the_temperature(method, graph):
    part, rows = graph.subgraph(graph.y < 4), ((graph.y < 4) & ~graph.train_mask).numpy()

    def gap(p):
        return abs(p[rows].max(axis=1).mean() - (p[rows].argmax(axis=1) == graph.y.numpy()[rows]).mean())

    model, plain = (method(tau=0.5, **options).partial_fit(part) for options in ({}, {"calibration": 0}))
    assert gap(model.predict_proba(graph)) < 0.1 < 0.3 < gap(plain.predict_proba(graph))
    assert (model.predict(graph) == plain.predict(graph)).all()  # the copy leaves no trace


@pytest.mark.parametrize("method", METHODS)
def test_sets_hold_the_own_class_about_as_often_as_asked(method, known, graph):
    rows = ((graph.y < 4) & ~graph.train_mask).numpy()
    truth = graph.y.numpy()[rows]
    found = {coverage: ipal.predict_sets(known[method], graph, coverage)[rows] for coverage in (0.6, 0.95)}
    shares = {coverage: sets[np.arange(len(truth)), truth].mean() for coverage, sets in found.items()}
    assert shares[0.6] == pytest.approx(0.6, abs=0.2)
    assert shares[0.95] > 0.85
    assert (found[0.6] <= found[0.95]).all()


def test_groups_of_rejected_nodes_are_found():
    data = blocks(classes=6, noise=0.6)
    model = ipal.Analytic(width=128).partial_fit(data.subgraph(data.y < 4))
    truth, groups = data.y.numpy(), ipal.discover(model, data)[:2]
    for group in groups:
        _, counts = np.unique(truth[group.nodes], return_counts=True)
        assert counts.max() > 0.8 * group.size
        assert sum(share for _, share in group.nearest) <= 1.0001
    assert {int(np.bincount(truth[group.nodes]).argmax()) for group in groups} == {4, 5}
    assert sum(group.size for group in ipal.discover(model, data, classes=3)) <= len(truth)


# ---------------------------------------------------------------------- what cannot be


def test_what_was_not_calibrated_says_so(graph):
    part = graph.subgraph(graph.y < 2)
    model = ipal.NCM(calibration=0).partial_fit(part)
    for ask in (ipal.score_unknown, ipal.predict_sets, ipal.discover):
        with pytest.raises(ConfigError, match="it is not calibrated"):
            ask(model, part)
    with pytest.raises(ConfigError, match="it is not calibrated"):
        model.predict(part, reject=0.05)


def test_shares_are_shares(known, graph):
    model = known[ipal.NCM]
    for share in (0, 1, -0.5, 2):
        with pytest.raises(ConfigError, match="between 0 and 1"):
            model.predict(graph, reject=share)
        with pytest.raises(ConfigError, match="between 0 and 1"):
            ipal.predict_sets(model, graph, share)
    with pytest.raises(ConfigError, match="a whole number from 1 on, not 0"):
        ipal.discover(model, graph, classes=0)
    with pytest.raises(ConfigError, match="calibration"):
        ipal.NCM(calibration=0.9)


def test_a_small_task_does_not_calibrate():
    few = blocks(classes=2, each=20)
    for model in (ipal.NCM().partial_fit(few), ipal.Analytic(width=32).partial_fit(few)):
        assert not model.model_.calibration
        with pytest.raises(ConfigError, match="learn a task of at least 64 training nodes and two classes"):
            model.predict(few, reject=0.05)


def test_of_one_class_nothing_can_be_unlike_and_no_set_be_made(graph):
    one = graph.subgraph(graph.y == 0)
    model = ipal.NCM().partial_fit(one)
    with pytest.raises(ConfigError, match="it is not calibrated"):
        ipal.score_unknown(model, one)
    with pytest.raises(DataError, match="A model of one class has no sets"):
        ipal.predict_sets(model, one)
    assert (model.predict_proba(one) == 1).all()


# ---------------------------------------------------------------------- methods that keep nothing of classes


def quick(name: str) -> ipal.Learner:
    encoder = {"kind": "gcn", "layers": 2, "hidden": 16, "width": 16}
    train = {"epochs": 15, "lr_base": 0.02, "lr_next": 0.02}
    return ipal.learner_class(REGISTERED[name])(encoder=encoder, train=train)


@pytest.mark.parametrize("name", ["bare", "gem", "joint"])
def test_methods_that_keep_nothing_of_classes_reject_after_the_first_task_alone(name, graph):
    first, rows = graph.subgraph(graph.y < 3), (graph.y < 3).numpy()
    learner = quick(name).partial_fit(first)
    assert not learner.model_.keeps_classes
    assert np.equal(learner.predict(graph, reject=0.05), None)[rows].mean() < 0.3
    assert ipal.predict_sets(learner, graph, 0.9).shape == (graph.num_nodes, 3)
    learner.partial_fit(graph.subgraph(graph.y >= 3))
    said = f"'{name}' keeps nothing of earlier classes .* learn a task with all classes, or take analytic, ipal"
    for ask in (ipal.score_unknown, ipal.predict_sets, ipal.discover):
        with pytest.raises(ConfigError, match=said):
            ask(learner, graph)
    with pytest.raises(ConfigError, match=said):
        learner.predict(graph, reject=0.05)
    assert learner.predict_proba(graph).sum(axis=1) == pytest.approx(1, abs=1e-4)
    # A task of all classes says of all of them how they look by now.
    again = graph.clone()
    again.train_mask = ~graph.train_mask
    assert ipal.score_unknown(learner.partial_fit(again), graph).shape == (graph.num_nodes,)


# ---------------------------------------------------------------------- what is kept


def test_what_is_kept_is_saved_merged_and_forgotten(tmp_path, graph):
    def learned(*classes):
        chosen = graph.subgraph(torch.isin(graph.y, torch.tensor(classes)))
        return ipal.Analytic(width=32, steps=1, ridge=0.1).partial_fit(chosen), chosen

    (model, first), (other, _) = learned(0, 1, 2), learned(3, 4)
    model.save(tmp_path / "m")
    again = ipal.load(tmp_path / "m")
    assert (ipal.score_unknown(again, graph) == ipal.score_unknown(model, graph)).all()
    kept, theirs = model.model_.calibration, other.model_.calibration
    both = ipal.merge_models(model, other).model_.calibration
    assert both.task.tolist() == [0, 1]
    assert both.count.tolist() == [[*kept.count[0].tolist(), 0, 0], [0, 0, 0, *theirs.count[0].tolist()]]
    assert torch.equal(both.novelty, torch.cat([kept.novelty, theirs.novelty]))
    assert len(ipal.score_unknown(ipal.merge_models(model, other), graph)) == graph.num_nodes
    ipal.forget_class(model, 1, first)
    assert model.model_.calibration.count.shape == (1, 2)
    assert not torch.equal(model.model_.calibration.novelty, kept.novelty)


def test_sets_by_hand(known):
    # Margins are usual ones and a spread times a quantile; of a mean margin of 1.5 by a spread of 0.5, at -2: 0.5.
    model = known[ipal.NCM].model_
    even = replace(model.calibration, margin=torch.full((1, LEVELS), -2.0), rivals=torch.zeros(1, LEVELS))

    class Usual(Model):
        calibrating_power = 1.0

        def usual_margins(self):
            return UsualMargins(torch.full((4,), 1.5), torch.full((4,), 0.5))

    by_hand = Usual(**{field.name: getattr(model, field.name) for field in fields(model)} | {"calibration": even})
    just, less = math.exp(0.501), math.exp(0.499)
    p = np.array([[just, 1, 0.5, 0.5], [less, 1, 0.5, 0.5], [1, 1, 0.1, 0.1]], dtype=np.float32)
    found = unknown.sets(by_hand, p / p.sum(axis=1, keepdims=True), 0.9)
    assert found.tolist() == [[True, False, False, False], [False] * 4, [False] * 4]
    # Probabilities that were raised to a power have that many times the margins.
    Usual.calibrating_power = 0.5
    found = unknown.sets(by_hand, p / p.sum(axis=1, keepdims=True), 0.9)
    assert found.tolist() == [[True, False, False, False], [True, False, False, False], [False] * 4]


@pytest.mark.parametrize("method", METHODS)
def test_novelty_is_the_share_of_known_nodes_that_are_less_novel(method, known, graph):
    score, test = ipal.score_unknown(known[method], graph), ((graph.y < 4) & ~graph.train_mask).numpy()
    assert ((score > 0) & (score < 1)).all()
    for share in (0.05, 0.2, 0.5):
        rejected = np.equal(known[method].predict(graph, reject=share), None)
        assert np.array_equal(rejected, score > 1 - share)
        assert rejected[test].mean() == pytest.approx(share, abs=0.12)


def test_that_most_nodes_are_rejected_is_said(graph):
    model = narrow(ipal.Analytic).partial_fit(graph.subgraph(graph.y < 2))
    with pytest.warns(Qualified, match=r"of 600 nodes are rejected"):
        assert np.mean(model.predict(graph, reject=0.05) == None) > 0.5  # noqa: E711
