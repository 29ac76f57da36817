"""Unknown classes, calibration and prediction sets: equations by hand, and what a model says on a graph of blocks."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import ipal
from ipal import ConfigError
from ipal.closed_form.method import LEAST_RIDGE, Analytic
from ipal.closed_form.metric import Mahalanobis, overall, with_more_ridge
from ipal.closed_form.ridge import factorise, ridge_weights
from ipal.closed_form.sums import Normal
from ipal.data.graph import Graph
from ipal.deploy.predict import predict, read, write_csv
from ipal.estimator import files
from ipal.estimator.open_world import held_out, scores, unknown
from ipal.estimator.open_world.calibration import LEVELS, Calibration, moved_along, quantiles, sharpened
from ipal.estimator.open_world.held_out import best_power, margins, mean_margins, set_aside
from ipal.estimator.open_world.scores import KINDS, NAMES

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
    """With few columns: the graph is small."""
    return method(**{"width": 128} if method is ipal.Analytic else {})


@pytest.fixture(scope="module")
def graph() -> Data:
    return blocks()


@pytest.fixture(scope="module")
def known(graph):
    """Models of each method that learned all classes but the last."""
    part = graph.subgraph(graph.y < 4)
    return {method: narrow(method).partial_fit(part) for method in METHODS}


# ---------------------------------------------------------------------- by hand


def test_entropy_by_hand():
    logs = torch.tensor([[0.5, 0.5], [1.0, 0.0]]).clamp_min(1e-30).log()
    assert scores.entropy(logs).tolist() == pytest.approx([math.log(2), 0.0])


def test_margin_by_hand():
    assert scores.margin(torch.tensor([[0.1, 0.6, 0.3]]).log()).tolist() == pytest.approx([math.log(0.5)])


def test_relative_distance_by_hand():
    # To two classes 2 and 6, to the mean of all 4: 2 / 4.
    assert scores.relative_distance(torch.tensor([[2.0, 6.0, 4.0]])).tolist() == [0.5]


def test_auroc_by_hand():
    # 3 above both, 1 equal to one and above none: (1 + 1 + 0.5 + 0) / 4.
    assert scores.auroc(torch.tensor([[3.0], [1.0]]), torch.tensor([[1.0], [2.0]])).tolist() == [0.625]


def test_smoothed_by_hand():
    # A path 0 - 1 - 2: means over a node and its neighbours, once.
    path = Graph(np.ones((3, 1), dtype=np.float32), np.array([[0, 1, 1, 2], [1, 0, 2, 1]]))
    found = scores.smoothed(torch.tensor([[3.0], [0.0], [6.0]]), path, times=1)
    assert found.flatten().tolist() == [1.5, 3.0, 3.0]


def test_best_power_by_hand():
    # Eight nodes say 0.9 for class 0, and seven are right: (7 + 1/2) / 9 = 0.9^s / (0.9^s + 0.1^s).
    logs, labels = torch.tensor([[0.9, 0.1]] * 8).double().log(), torch.tensor([0] * 7 + [1])
    right = 7.5 / 9
    power, precision = best_power(logs, labels)
    assert math.exp(power) == pytest.approx(math.log(right / (1 - right)) / math.log(9), rel=1e-3)
    # d conf / d log s = q (1 - q) s log 9, over the variance q (1 - q) / n.
    slope = right * (1 - right) * math.log(right / (1 - right))
    assert precision == pytest.approx(slope**2 * 8 / (right * (1 - right)), rel=0.02)


def test_nodes_that_are_all_recognised_do_not_ask_for_certainty():
    logs = torch.tensor([[0.6, 0.4]] * 20).double().log()
    power, _ = best_power(logs, torch.zeros(20, dtype=torch.int64))
    assert held_out.confidence(logs, power) == pytest.approx(20.5 / 21, abs=1e-3)


def test_sharpened_by_hand():
    p = torch.tensor([[0.6, 0.3, 0.1]])
    # squares 0.36, 0.09, 0.01 of sum 0.46
    assert sharpened(p, 2.0)[0].tolist() == pytest.approx([0.36 / 0.46, 0.09 / 0.46, 0.01 / 0.46], rel=1e-5)
    assert sharpened(p, 1.0)[0].tolist() == pytest.approx(p[0].tolist(), rel=1e-5)
    assert sharpened(torch.tensor([[1.0, 0.0]]), 0.5)[0].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)


def test_margins_by_hand():
    logs = torch.tensor([[0.5, 0.3, 0.2]]).double().log()
    assert margins(logs)[0].tolist() == pytest.approx([math.log(5 / 3), math.log(3 / 5), math.log(2 / 5)])
    # Raised to a power, probabilities have that many times the margins.
    assert margins((3 * logs).log_softmax(dim=1))[0].tolist() == pytest.approx((3 * margins(logs))[0].tolist())


def test_quantiles_are_evenly_spaced():
    assert quantiles(torch.arange(LEVELS + 1.0)[:, None])[0, :2].tolist() == pytest.approx([0.5, 1.5])


def test_values_move_along_two_distributions_by_hand():
    # [0, 1] goes to [0, 10]: the middle to the middle, what is beyond as far as the ends.
    before, after = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 10.0])
    assert moved_along(torch.tensor([[0.5, 2.0, -1.0]]), before, after)[0].tolist() == [5.0, 11.0, -1.0]


def test_a_threshold_is_a_quantile_over_classes_by_their_number_of_nodes():
    one = torch.linspace(0, 1, LEVELS)
    novelty = torch.zeros(2, len(NAMES), LEVELS)
    novelty[0], novelty[1] = one, one + 10
    found, trials = torch.zeros(len(NAMES)), torch.ones(1, dtype=torch.int64)
    made = Calibration(torch.tensor([90, 10]), torch.zeros(2, 2), torch.zeros(2, LEVELS), novelty, found, trials)
    assert made.threshold(0.05) == pytest.approx(10.5, abs=0.02)  # half of the small class
    assert made.threshold(0.2) < 1


def test_some_of_every_class_are_set_aside_and_never_all(graph):
    task = ipal.Task(
        Graph(np.ones((12, 1), np.float32), np.zeros((2, 0), int)), np.arange(12), np.array([0] * 11 + [1])
    )
    chosen = set_aside(task, 0.2, np.random.default_rng(0))
    assert chosen[:11].sum() == 3
    assert not chosen[11]


def test_of_many_nodes_fewer_are_set_aside_by_hand():
    nodes, half = 20_480, 10_240
    many = ipal.Task(
        Graph(np.ones((nodes, 1), np.float32), np.zeros((2, 0), int)), np.arange(nodes), np.arange(nodes) // half
    )
    chosen = set_aside(many, 0.2, np.random.default_rng(0))
    assert [chosen[:half].sum(), chosen[half:].sum()] == [1024, 1024]


# ---------------------------------------------------------------------- what a model says


@pytest.mark.parametrize("method", METHODS)
def test_unknown_nodes_score_higher_and_few_known_ones_are_lost(method, known, graph):
    model, is_new = known[method], (graph.y == 4).numpy()
    score = torch.from_numpy(ipal.score_unknown(model, graph))[:, None]
    assert float(scores.auroc(score[is_new], score[~is_new])) > 0.8
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


@pytest.mark.parametrize("sums", ["pooled", "per-class"])
def test_a_class_taken_away_is_a_class_never_learned(graph, sums):
    """Rehearsed unknown nodes are really unknown: exactly with sums by class, and nearly with pooled ones."""
    part = graph.subgraph(graph.y < 4)
    model, never = (ipal.Analytic(width=32, steps=2, ridge=0.1, sums=sums, calibration=0) for _ in range(2))
    model = model.partial_fit(part).model_
    before = files.checkpoint(model)
    others = part.clone()
    others.train_mask = part.train_mask & (part.y != 3)  # in the same graph
    never = never.partial_fit(others).model_
    found = held_out.without_class(scores.Views.of(model, read(model, part)), 3, anew=True)
    assert found.logs.shape[1] == 3
    assert found.model.labels == never.labels
    expected = scores.Views.of(never, read(never, part))
    if sums == "per-class":
        assert torch.equal(found.scores, expected.scores)
    off = (found.scores - expected.scores).square().mean().sqrt()
    assert off < 0.1 * expected.scores.std()
    after = files.checkpoint(model)
    assert all(torch.equal(before.tensors[name], tensor) for name, tensor in after.tensors.items())


def test_a_class_is_taken_from_pooled_sums_without_solving_anew(graph):
    model = ipal.Analytic(width=32, steps=2, ridge=0.1, calibration=0).partial_fit(graph).model_
    made = model.trial_without_class(2)
    normal, solved = made.state.memory.sums.normal(), made.method.solved(made.state.memory)
    by_hand = ridge_weights(factorise(normal.gram, 0.1 * 4 / 5), normal.mean)
    torch.testing.assert_close(solved.weights, by_hand, rtol=1e-6, atol=1e-8)
    assert solved.ridge == pytest.approx(0.08)
    assert made.labels == (0, 1, 3, 4)
    assert model.labels == (0, 1, 2, 3, 4)


def test_pooled_sums_find_unknown_nodes_as_well_as_sums_by_class():
    name = "synthetic:nodes=400,classes=5,features=16,signal=3,seed=1"
    dataset = ipal.load_dataset(name)
    is_new = dataset.y > 2
    data = replace(ipal.graph_from(dataset), train_mask=~is_new)
    for sums in ("pooled", "per-class"):
        model = ipal.Analytic(width=256, sums=sums).partial_fit(data)
        score = torch.from_numpy(ipal.score_unknown(model, data))[:, None]
        assert float(scores.auroc(score[is_new], score[~is_new])) > 0.95


def test_what_is_kept_is_saved_merged_and_forgotten(tmp_path, graph):
    def learned(*classes):
        chosen = torch.isin(graph.y, torch.tensor(classes))
        return ipal.Analytic(width=32, steps=1, ridge=0.1, sums="per-class").partial_fit(graph.subgraph(chosen))

    model, other = learned(0, 1, 2), learned(3, 4)
    model.save(tmp_path / "m")
    again = ipal.load(tmp_path / "m")
    assert (ipal.score_unknown(again, graph) == ipal.score_unknown(model, graph)).all()
    both = ipal.merge_models(model, other)
    counts = [count for one in (model, other) for count in one.model_.calibration.count.tolist()]
    assert both.model_.calibration.count.tolist() == counts
    assert ipal.forget_class(both, 1).model_.calibration.count.tolist() == [counts[0], *counts[2:]]
    assert len(ipal.score_unknown(both, graph)) == graph.num_nodes


def test_earlier_classes_move_as_more_come(graph):
    model = ipal.NCM()
    model.partial_fit(graph.subgraph(graph.y < 2))
    before = model.model_.calibration
    after = model.partial_fit(graph.subgraph((graph.y == 2) | (graph.y == 3))).model_.calibration
    kind = KINDS.index("entropy") + len(KINDS)
    assert (after.count > 0).all()
    # With two more classes there is more to be unsure about.
    assert float(after.novelty[:2, kind].mean()) > float(before.novelty[:, kind].mean())


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


def test_some_nodes_are_predicted_as_all_are(known, graph, tmp_path):
    model, nodes = known[ipal.Analytic].model_, [3, 250, 299]
    everyone = predict(model, graph, reject=0.05, coverage=0.9)
    some = predict(model, graph, nodes, reject=0.05, coverage=0.9)
    assert (some.rejected == everyone.rejected[nodes]).all()
    assert (some.sets == everyone.sets[nodes]).all()
    write_csv(some, tmp_path / "some.csv")
    header, first = (tmp_path / "some.csv").read_text().splitlines()[:2]
    assert header.startswith("node,predicted,confidence,rejected,set,p(0)")
    assert first.startswith("3,")


# ---------------------------------------------------------------------- what cannot be


def test_what_was_not_calibrated_says_so(graph):
    part = graph.subgraph(graph.y < 2)
    model = ipal.NCM(calibration=0).partial_fit(part)
    for ask in (ipal.score_unknown, ipal.predict_sets, ipal.discover):
        with pytest.raises(ConfigError, match=r"learn it anew with calibration=0\.2"):
            ask(model, part)
    with pytest.raises(ConfigError, match=r"learn it anew with calibration=0\.2"):
        model.predict(part, reject=0.05)


def test_shares_are_shares(known, graph):
    model = known[ipal.NCM]
    for share in (0, 1, -0.5, 2):
        with pytest.raises(ConfigError, match="between 0 and 1"):
            model.predict(graph, reject=share)
        with pytest.raises(ConfigError, match="between 0 and 1"):
            ipal.predict_sets(model, graph, share)
    with pytest.raises(ConfigError, match="at least 1"):
        ipal.discover(model, graph, classes=0)
    with pytest.raises(ConfigError, match="calibration"):
        ipal.NCM(calibration=0.9)


def test_a_small_task_does_not_calibrate(graph):
    few = blocks(classes=2, each=20)
    model = ipal.NCM().partial_fit(few)
    assert not model.model_.calibration
    assert len(unknown.masked(np.array([1, 2]), np.array([True, False]))) == 2


def two_classes() -> Normal:
    """Rows 0, 2 and 4, 6 on a line: their balanced A, and means."""
    gram = torch.tensor([[(0 + 4) / 2 + (16 + 36) / 2]], dtype=torch.float64)
    return normal_of(gram, torch.tensor([[1.0, 5.0]], dtype=torch.float64))


def normal_of(gram, mean) -> Normal:
    """What distances do not look at is left out."""
    return Normal(gram, mean, *(torch.zeros(0) for _ in range(3)))


def test_distances_by_hand():
    # Within classes the scatter is 2 and overall 10, both without a ridge: 3 is 2 from either mean, in the middle.
    metric = Mahalanobis.of(two_classes(), 0.0, 0.0)
    found = metric.distances(metric.products(torch.tensor([[3.0], [4.0]])))
    torch.testing.assert_close(found, torch.tensor([[2.0, 2.0, 0.0], [4.5, 0.5, 0.1]], dtype=torch.float64))
    # As if the first class were the only one: its mean is the middle, and no scatter is between classes.
    alone = metric.distances(metric.products(torch.tensor([[3.0]])), torch.tensor([0]))
    torch.testing.assert_close(alone, torch.tensor([[2.0, 2.0]], dtype=torch.float64))


def test_the_larger_of_two_ridges_is_in_distances_by_hand():
    # A ridge of 6 makes the scatter of 2 one of 8, as three times the mean of the diagonal would: 4 / 8.
    for least, ridge in ((0.0, 6.0), (3.0, 6.0), (3.0, 1.0)):
        metric = Mahalanobis.of(two_classes(), least, ridge)
        found = metric.distances(metric.products(torch.tensor([[3.0]])))
        torch.testing.assert_close(found[:, :2], torch.tensor([[0.5, 0.5]], dtype=torch.float64))


def test_overall_by_hand():
    # The row 4 and means -+ 2 around 3, through 1 / 2: 1 / 2 - t^T (I + K)^-1 t = 1 / 10.
    inner = torch.tensor([[2.0, -2.0], [-2.0, 2.0]], dtype=torch.float64)
    found = overall(torch.tensor([[0.5]]).double(), torch.tensor([[-1.0, 1.0]]).double(), inner)
    assert float(found) == pytest.approx(0.1)


def test_with_more_ridge_by_hand():
    # x = 3 and a scatter of 1: 9 / (1 + 0.5) with a ridge of 0.5, and 9 / (1 + 2) with one of 2.
    squares, falls = torch.tensor([[9 / 1.5]]).double(), torch.tensor([[(3 / 1.5) ** 2]]).double()
    assert float(with_more_ridge(squares, falls, torch.tensor(1.5))) == pytest.approx(0.5)


def test_distances_are_those_by_both_covariances():
    random = torch.Generator().manual_seed(0)
    x, labels = torch.rand(60, 6, dtype=torch.float64, generator=random), torch.arange(60) % 3
    x[:, 0] += labels / 4
    means = torch.stack([x[labels == c].mean(dim=0) for c in range(3)])
    metric = Mahalanobis.of(normal_of((x.T @ x / 20).tril(), means.T), 0.1, 0.0)
    found = metric.distances(metric.products(x.float()))

    def by(centred, scattered):
        scatter = scattered.T @ scattered / 20
        scatter += 0.1 * scatter.diagonal().mean() * torch.eye(6)
        return ((centred @ scatter.inverse()) * centred).sum(dim=1)

    for c in range(3):
        torch.testing.assert_close(found[:, c], by(x - means[c], x - means[labels]), rtol=1e-4, atol=1e-4)
    middle = means.mean(dim=0)
    torch.testing.assert_close(found[:, -1], by(x - middle, x - middle), rtol=0.05, atol=1e-3)  # to first order


def test_wide_models_measure_distances_as_the_narrower_one_that_is_in_them(graph, monkeypatch):
    wide = ipal.Analytic(width=64, steps=1, ridge=0.1, calibration=0).partial_fit(graph).model_
    whole = wide.distances(read(wide, graph))(None)
    monkeypatch.setattr("ipal.closed_form.method.MEASURED", 16)
    narrow = wide.distances(read(wide, graph))(None)
    assert narrow.shape == whole.shape
    assert not torch.equal(narrow, whole)
    # Written out: every fourth column alone, twice as long, with covariances of their own.
    memory = wide.state.memory
    rows, normal = 2 * memory.map.expanded(memory.map.propagated(read(wide, graph)))[:, ::4], memory.sums.normal()
    metric = Mahalanobis.of(normal_of(4 * normal.gram[::4, ::4], 2 * normal.mean[::4]), LEAST_RIDGE, 0.1)
    torch.testing.assert_close(narrow, metric.distances(metric.products(rows.float())), rtol=1e-3, atol=1e-3)


def test_distances_that_take_long_are_measured_once(graph, monkeypatch):
    model = ipal.Analytic(width=16, steps=1, calibration=0, sums="per-class").partial_fit(graph).model_
    view, calls, measured = scores.Views.of(model, read(model, graph)), [], Analytic.distances
    monkeypatch.setattr(Analytic, "distances", lambda *given: calls.append(given) or measured(*given))
    some = view.among(torch.tensor([0, 2]))
    assert torch.equal(some.distances[:, :2], view.distances[:, [0, 2]])
    assert not torch.equal(some.distances[:, 2], view.distances[:, -1])  # another middle
    away = held_out.without_class(view, 1, anew=False)
    assert torch.equal(away.distances[:, :-1], view.distances[:, [0, 2, 3, 4]])
    assert not torch.equal(away.logs, view.among(away.classes).logs)  # but it is solved anew
    assert len(calls) == 1
    assert held_out.without_class(view, 1, anew=True).distances.shape == away.distances.shape
    assert len(calls) == 2


def test_sets_by_hand(known):
    # A margin of zero is asked for, at least: the class of probability 0.51 is ahead of 0.48, which is behind.
    model, even = known[ipal.NCM].model_, torch.zeros(4, LEVELS)
    model = replace(model, calibration=replace(model.calibration, own=even))
    found = unknown.sets(model, np.array([[0.51, 0.48, 0.01, 0.0]], dtype=np.float32), 0.9)
    assert found.tolist() == [[True, False, False, False]]
    # Half as much is enough: margins grow with the power that probabilities were raised to.
    less = replace(model.calibration, own=even + math.log(0.48 / 0.51) / model.calibration.power)
    model = replace(model, calibration=less)
    found = unknown.sets(model, np.array([[0.51, 0.48001, 0.01, 0.0]], dtype=np.float32), 0.9)
    assert found.tolist() == [[True, True, False, False]]


def test_margins_of_earlier_classes_move_with_those_of_their_means(graph):
    """The closed form solves all classes anew: with ten of them the margins of the first two are others."""
    learner = ipal.Analytic(width=32, steps=1, ridge=0.1).partial_fit(graph.subgraph(graph.y < 2))
    model, memory = learner.model_, learner.model_.state.memory
    before = mean_margins(model)
    # Written out: scores of the means, own less the best other.
    scored = memory.sums.mean @ model.method.solved(memory).weights
    assert before.tolist() == pytest.approx([float(scored[0, 0] - scored[0, 1]), float(scored[1, 1] - scored[1, 0])])
    model = learner.partial_fit(graph.subgraph(graph.y >= 2)).model_
    after = mean_margins(model)[:2]
    assert (after < before).all()
    assert mean_margins(model, torch.tensor([1, 3])).shape == (2,)
    assert (mean_margins(ipal.NCM().partial_fit(graph).model_) == 0).all()
    low = model.calibration.least_margin(0.9, mean_margins(model))
    assert low < model.calibration.least_margin(0.9, mean_margins(model) + 0.5)


def test_scores_are_compared_as_calibrated_probabilities_have_them(known, graph):
    learner, part = known[ipal.NCM], graph.subgraph(graph.y < 4)
    model = learner.model_
    view = scores.Views.of(model, read(model, part))
    raised = replace(view, power=model.calibrating_power)
    p = torch.from_numpy(learner.predict_proba(part)).double()
    kind = len(KINDS) + KINDS.index("entropy")
    torch.testing.assert_close(raised.novelty(kind)[:, 0], scores.entropy(p.log()), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(raised.novelty(kind + 1), view.novelty(kind + 1) * model.calibrating_power)
    assert ipal.score_unknown(learner, part) == pytest.approx(raised.novelty(model.calibration.kind)[:, 0].numpy())
