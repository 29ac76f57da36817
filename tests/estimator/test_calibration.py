"""Calibration: rows by task, by hand; and months of a growing graph."""

import importlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ipal
from ipal.backend.checks import MisfitError
from ipal.closed_form.ridge import SCALES
from ipal.data.datasets import load
from ipal.data.graph import Graph
from ipal.errors import ConfigError, Qualified, StoreError
from ipal.estimator import files
from ipal.estimator.convert.pyg import task_of
from ipal.estimator.open_world import calibration as module
from ipal.estimator.open_world.calibration import (
    ENOUGH,
    LEVELS,
    MOST,
    POWERS,
    Asked,
    Calibration,
    fewer_rivals,
    folds,
    own_margins,
    quantiles,
    shown,
    usual_by_means,
)
from ipal.methods.base import UsualMargins
from ipal.state.snapshot import Snapshot
from tests.closed_form.analytic_support import solved
from tests.conftest import PROJECT
from tests.estimator.test_open_world import blocks, narrow

pytestmark = pytest.mark.filterwarnings("ignore:.*nodes are rejected:ipal.errors.Qualified")

EVENLY = (torch.arange(LEVELS) + 0.5) / LEVELS


def row(task: int, count: list[int], at: float = 0.0, right: float = 0.8) -> Calibration:
    """A row whose novelty and margins are spread evenly over [at, at + 1]."""
    spread = (EVENLY + at)[None]
    sure = torch.linspace(0.3, 1, len(POWERS))[None]
    still = torch.zeros(1, LEVELS)
    return Calibration(torch.tensor([task]), torch.tensor([count]), spread, still, spread, sure, torch.tensor([right]))


def two() -> Calibration:
    """Two classes, then a third and the second again."""
    return row(0, [3, 5]).plus(row(2, [0, 4, 6], at=10.0))


# ---------------------------------------------------------------------- tasks and classes come and go


def test_classes_are_chosen_and_united_by_hand():
    known = two()
    assert known.of_classes([2, 0]).count.tolist() == [[0, 3], [6, 0]]
    assert known.of_classes([0, 3]).count.tolist() == [[3, 0], [0, 0]]  # one that no row knows
    assert known.of_classes([]).count.shape == (2, 0)
    assert known.united(torch.tensor([0, 1, 0]), 2).count.tolist() == [[3, 5], [6, 4]]
    assert known.united(torch.tensor([2, 0, 0, 1]), 3).count.tolist() == [[5, 0, 3], [10, 0, 0]]
    assert torch.equal(known.united(torch.tensor([0, 0, 0]), 1).novelty, known.novelty)


# ---------------------------------------------------------------------- what it says


def test_the_last_task_that_a_class_was_in_stands_for_it():
    known = two()
    assert known.latest().tolist() == [0, 1, 1]
    assert known.padded(4).latest().tolist() == [0, 1, 1, -1]
    nodes = torch.tensor([10, 20, 30])
    assert known.weights(nodes).tolist() == [[10, 0, 0], [0, 20, 30]]


def test_a_class_that_was_never_asked_is_as_all_others():
    # 10 known nodes are of the first row and 50 of the second: so are the 12 of the last class.
    weights = two().padded(4).weights(torch.tensor([10, 20, 30, 12]))
    assert weights[:, :3].tolist() == [[10, 0, 0], [0, 20, 30]]
    assert weights[:, 3].tolist() == pytest.approx([12 / 6, 12 * 5 / 6])
    assert float(weights.sum()) == pytest.approx(72)


def test_margins_have_the_rivals_that_came_since():
    known = two().plus(row(3, [0, 0, 0, 9], at=20.0))
    moved = torch.tensor([[9.0], [-2.0], [-0.5]]).expand(3, LEVELS)
    now = replace(known, rivals=moved).margins_now
    # The first row has had those of the second and third task since, the second those of the third.
    torch.testing.assert_close(now, known.margin.double() + torch.tensor([[-2.5], [-0.5], [0.0]]).double())
    turned = replace(known, rivals=torch.stack([EVENLY * 0, EVENLY * -3, EVENLY * 0])).margins_now
    assert (turned.diff(dim=1) >= 0).all(), "they are quantiles still"


def test_shares_below_are_by_the_number_of_known_nodes_by_hand():
    known, nodes = two(), torch.tensor([30, 5, 5])
    # 30 of 40 nodes lie in [0, 1], the others in [10, 11].
    found = known.shares_below(np.array([0.25, 0.5, 1.0, 10.0, 10.5, 10.9]), nodes)
    assert found == pytest.approx([0.75 * 0.25, 0.75 * 0.5, 0.75, 0.75, 0.875, 0.975], abs=0.007)


def test_shares_below_grow_strictly_and_stay_between_zero_and_one():
    known, nodes = two(), torch.tensor([30, 5, 5])
    values = np.concatenate([np.linspace(-4, 0, 50), np.linspace(0.01, 0.99, 99), np.linspace(10.01, 14, 50)])
    found = known.shares_below(values, nodes)
    assert (np.diff(found) > 0).all()
    assert 0 < found[0] < found[-1] < 1
    assert ((known.shares_below(np.array([-40.0, 40.0]), nodes) - 0.5) * [-1, 1] > 0.49).all()
    same = replace(known, novelty=torch.ones(2, LEVELS))  # all nodes alike
    below, here, above = same.shares_below(np.array([0.5, 1.0, 1.5]), nodes)
    assert 0 <= below < here < above <= 1


def test_quantiles_are_in_the_middle_of_their_share():
    """Of 64 nodes each is one: (i + 1/2) / LEVELS, where i / LEVELS would lie between two."""
    values = torch.arange(float(LEVELS))
    assert torch.equal(quantiles(values, torch.ones(LEVELS)), values[None])
    assert torch.equal(quantiles(values.flip(0), torch.ones(LEVELS)), values[None])
    found = quantiles(torch.linspace(0, 1, 100_001).double(), torch.ones(100_001))
    torch.testing.assert_close(found[0], EVENLY, atol=1e-4, rtol=0)
    assert float(found.mean()) == pytest.approx(0.5, abs=1e-4)


def test_quantiles_count_nodes_by_their_weight():
    # 8 nodes that count 30 are 240 of 320, and a node that counts two is two nodes.
    values, weights = torch.cat([torch.zeros(8), torch.ones(80)]), torch.cat([torch.full((8,), 30.0), torch.ones(80)])
    assert float((quantiles(values, weights) < 0.5).double().mean()) == pytest.approx(0.75, abs=0.05)
    values = torch.linspace(0, 1, 2000)
    weights = 1 + torch.arange(2000) % 2
    often = values.repeat_interleave(weights)
    torch.testing.assert_close(quantiles(values, weights), quantiles(often, torch.ones(3000)), atol=1e-3, rtol=0)
    some = quantiles(torch.tensor([5.0, 1.0, 9.0]), torch.tensor([1.0, 0.0, 1.0]))
    assert float(some.min()) == 5, "what counts nothing is not there"


def test_a_row_by_hand():
    # Two of class 0 stand for 30 known nodes, one of class 1 for 10; of these one and none are found.
    logs = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]]).double().log()
    labels, margin = torch.tensor([0, 0, 1]), torch.tensor([1.0, 2.0, 3.0]).double()
    made = shown(Asked(labels, logs, margin, margin - 0.5, margin * 2), torch.tensor([30, 10]), 4)
    assert made.task.tolist() == [4]
    assert made.count.tolist() == [[2, 1]]
    assert float(made.right) == pytest.approx(15 / 40)
    sure = np.interp(0.0, POWERS, made.confidence[0].numpy())
    assert sure == pytest.approx((15 * 0.9 + 15 * 0.6 + 10 * 0.7) / 40, abs=0.01)
    torch.testing.assert_close(made.rivals, torch.full((1, LEVELS), 0.5))
    torch.testing.assert_close(made.novelty, 2 * made.margin)
    assert made.margin[0, [0, -1]].tolist() == [1, 3]


def test_own_margins_by_hand():
    logs = torch.tensor([[0.8, 0.2], [0.8, 0.2]]).double().log()
    usual = UsualMargins(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 0.5]))
    found = own_margins(logs, torch.tensor([0, 1]), usual)
    assert found.tolist() == pytest.approx([(np.log(4) - 1) / 2, -np.log(4) / 0.5])
    assert usual_by_means(logs).spread.tolist() == pytest.approx([np.log(4), 1e-6])


def test_fewer_rivals_are_as_many_as_earlier_classes_had():
    means = torch.eye(4).double() * 3
    logs = torch.tensor([[0.1, 0.3, 0.2, 0.4], [0.3, 0.1, 0.5, 0.1]]).double().log()
    found = fewer_rivals(means, logs, torch.tensor([3, 2]))
    assert found is not None
    # Classes 0 and 1 are old, with one rival each: class 2 is to have class 1 alone, class 3 class 0 alone.
    assert found.tolist() == pytest.approx([np.log(4) / 3, np.log(5) / 3])
    assert fewer_rivals(means, logs, torch.tensor([1, 3, 2])) is None


# ---------------------------------------------------------------------- the power


def sure_of(task: int, asked: list[int], certain: float, right: float) -> Calibration:
    """A task whose nodes say `certain` for one of two classes, and are right so often."""
    odds = certain / (1 - certain)
    sure = torch.tensor([[1 / (1 + odds**-power) for power in np.exp(POWERS)]])
    return replace(row(task, asked), confidence=sure, right=torch.tensor([right]))


def test_calibration_power_by_hand() -> None:
    # All say 0.9, and 3 of 4 are right: 9^s / (9^s + 1) = 3/4 where 9^s = 3.
    assert sure_of(0, [5, 5], 0.9, 0.75).power(torch.tensor([10, 10])) == pytest.approx(0.5, rel=1e-2)
    # All say 0.6, and 9 of 10 are right: 1.5^s = 9.
    expected = math.log(9) / math.log(1.5)
    assert sure_of(0, [5, 5], 0.6, 0.9).power(torch.tensor([10, 10])) == pytest.approx(expected, rel=1e-2)


def test_calibration_power_counts_tasks_by_the_known_nodes_they_stand_for() -> None:
    # 30 nodes of class 0 stand behind the first task, 10 of class 1 behind the second: right are 0.75 in the mean,
    # whatever the number of those that were asked.
    both = sure_of(0, [5, 0], 0.9, 0.7).plus(sure_of(1, [0, 500], 0.9, 0.9))
    assert both.power(torch.tensor([30, 10])) == pytest.approx(0.5, rel=1e-2)


def test_calibration_power_is_one_where_nothing_is_known() -> None:
    assert Calibration.empty().power(torch.tensor([3, 4])) == 1
    assert sure_of(0, [5, 5], 0.9, 0.75).power(torch.tensor([0, 0])) == 1
    # No power makes nodes right always, or less often than by chance.
    for right in (1.0, 0.4):
        assert sure_of(0, [5, 5], 0.9, right).power(torch.tensor([10, 10])) == 1


# ---------------------------------------------------------------------- who is asked


def labels_of(labels: np.ndarray) -> ipal.Task:
    graph = Graph(np.ones((len(labels), 1), np.float32), np.zeros((2, 0), int))
    return ipal.Task(graph, np.arange(len(labels)), labels)


def test_each_node_is_asked_once_and_the_only_one_of_its_class_never():
    task = labels_of(np.array([0] * 99 + [1] + [2] * 7))
    parts = np.array(list(folds(task, 0.2, np.random.default_rng(0))))
    assert len(parts) == 5
    asked = parts.sum(axis=0)
    assert (np.delete(asked, 99) == 1).all()
    assert asked[99] == 0
    for part in parts:
        assert 19 <= part[:99].sum() <= 20
        assert 1 <= part[100:].sum() <= 2, "some of every class, and never all of it"


def test_of_many_nodes_fewer_are_asked_and_no_more_than_are_enough():
    several = list(folds(labels_of(np.arange(600) % 3), 0.2, np.random.default_rng(0)))
    assert [part.sum() for part in several] == [120] * 3
    assert 2 * 120 < ENOUGH <= 3 * 120
    (once,) = folds(labels_of(np.arange(20 * MOST) % 2), 0.2, np.random.default_rng(0))
    assert once.sum() == MOST


@pytest.mark.parametrize("method", [ipal.Analytic, ipal.NCM, ipal.IPAL])
def test_calibrating_leaves_no_trace(method):
    graph = blocks(each=60)
    models = []
    for share in (0.0, 0.2):
        learner = method(calibration=share, **({"width": 64} if method is ipal.Analytic else {}))
        learner.partial_fit(graph.subgraph(graph.y < 3)).partial_fit(graph.subgraph(graph.y > 2))
        models.append(files.checkpoint(learner.model_).tensors)
    plain, calibrated = models
    assert {name.split(".")[0] for name in calibrated.keys() - plain.keys()} == {"calibration"}
    assert all(torch.equal(tensor, calibrated[name]) for name, tensor in plain.items())


def test_the_copy_learns_all_but_those_that_are_asked(monkeypatch):
    graph = blocks(classes=3, each=60)
    task, asked, made = task_of(graph), [], module._set_aside

    def seen(model: Any, task: ipal.Task, aside: np.ndarray) -> Asked:
        asked.append(aside)
        others = graph.clone()
        others.train_mask = torch.zeros(len(graph.y), dtype=torch.bool)
        others.train_mask[task.nodes[~aside]] = True
        never = ipal.NCM(calibration=0).partial_fit(others).model_
        assert torch.equal(model.state.memory.sum, never.state.memory.sum)
        assert torch.equal(model.state.memory.count, never.state.memory.count)
        return made(model, task, aside)

    monkeypatch.setattr(module, "_set_aside", seen)
    found = ipal.NCM().partial_fit(graph).model_.calibration
    assert found.count.sum() == sum(aside.sum() for aside in asked) == len(task.nodes)


# ---------------------------------------------------------------------- damaged files


DAMAGE = {
    "task": lambda tensor: tensor + 7,
    "count": lambda tensor: tensor[:, :1],
    "margin": lambda tensor: tensor[:, :9],
    "rivals": lambda tensor: tensor.double(),
    "novelty": lambda tensor: tensor * float("nan"),
    "confidence": lambda tensor: tensor + 1,
    "right": lambda tensor: -tensor - 0.1,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    graph, path = blocks(each=60), tmp_path_factory.mktemp("calibration") / "m.safetensors"
    learner = narrow(ipal.NCM).partial_fit(graph.subgraph(graph.y < 3)).partial_fit(graph.subgraph(graph.y > 2))
    learner.save(path)
    return path


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_calibration_is_refused(name, saved, tmp_path):
    read = Snapshot.load(saved)
    place = f"calibration.{name}"
    for changed in ({**read.tensors, place: DAMAGE[name](read.tensors[place])}, dict(read.tensors)):
        if changed[place] is read.tensors[place]:
            del changed[place]
        Snapshot(changed, read.facts).save(tmp_path / "m.safetensors")
        with pytest.raises(StoreError, match=r"m\.safetensors") as refused:
            ipal.load(tmp_path / "m.safetensors")
        assert name in str(refused.value)


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        (lambda: replace(two(), task=torch.tensor([2, 0])), "out of order"),
        (lambda: replace(two(), task=torch.tensor([-1, 2])), "other numbers"),
        (lambda: replace(two(), count=-two().count), "no count"),
    ],
)
def test_what_no_model_has_is_refused(damaged, words):
    two().check(3, 3)
    Calibration.empty().check(9, 0)
    with pytest.raises(MisfitError, match=words):
        damaged().check(3, 3)


# ---------------------------------------------------------------------- months


@pytest.fixture(scope="module")
def months(request) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PROJECT / "benchmarks"))
        yield importlib.import_module("months")


FEW: dict[str, dict[str, Any]] = {
    "analytic": {"width": 256},
    "ncm": {},
    "slda": {},
    "ipal": {"train": {"epochs": 60}},
}


@pytest.mark.parametrize(("name", "weights"), [("analytic", True), ("slda", False), ("ncm", True), ("ipal", False)])
def test_in_every_month_about_as_many_known_nodes_are_lost_as_asked(name, weights, months):
    data = months.accounts(0, weights=weights)
    learner = ipal.learner_class(months.METHODS.find(name))(**FEW[name])
    for now in range(6):
        graph = data.until(now)
        learner.partial_fit(graph)
        known = np.isin(graph.y, learner.classes_)
        lost = np.equal(learner.predict(graph, reject=0.05), None)[known].mean()
        assert 0.01 <= lost <= 0.1, now
    assert len(learner.classes_) == 5


@pytest.mark.filterwarnings("ignore:Class .* was (never calibrated|calibrated without)")
@pytest.mark.parametrize("alone", [1, 7], ids=["one class, then the others", "one class a task"])
def test_a_task_of_one_class_does_not_ruin_probabilities(alone, real_data):
    dataset = load("cora-ml", real_data)
    random = np.random.default_rng(0)
    teaches, classes = random.random(len(dataset.y)) < 0.6, np.unique(dataset.y)
    parts = [[label] for label in classes] if alone > 1 else [classes[:1], classes[1:]]
    learner, graph = ipal.Analytic(width=256), ipal.graph_from(dataset)
    for part in parts:
        learner.partial_fit(replace(graph, train_mask=teaches & np.isin(dataset.y, part)))
    p = learner.predict_proba(graph)[~teaches]
    right = (learner.classes_[p.argmax(axis=1)] == dataset.y[~teaches]).mean()
    assert p.max(axis=1).mean() == pytest.approx(right, abs=0.05)
    assert SCALES[0] * 1.05 < solved(learner).scale < SCALES[-1] / 1.05
    lost = np.equal(learner.predict(graph, reject=0.05), None)[~teaches].mean()
    assert 0.01 < lost < 0.12


@pytest.mark.parametrize("method", [ipal.Analytic(width=256), ipal.NCM()], ids=["closed form", "NCM"])
def test_two_tasks_of_one_class_are_too_few_to_reject_and_three_are_enough(method):
    dataset = load("digits")
    graph = ipal.graph_from(dataset)
    for label in range(2):
        method.partial_fit(replace(graph, train_mask=dataset.y == label))
    for ask in (lambda: method.predict(graph, reject=0.05), lambda: ipal.predict_sets(method, graph, 0.9)):
        with pytest.raises(ConfigError, match="calibrated for one class only: learn another"):
            ask()
    assert set(method.predict(graph)) == {0, 1}
    method.partial_fit(replace(graph, train_mask=dataset.y == 2))
    with pytest.warns(Qualified, match="Class 0 was never calibrated"), pytest.warns(Qualified, match="Class 1, 2 was"):
        assert np.equal(method.predict(graph, reject=0.05), None)[np.asarray(dataset.y) > 2].mean() > 0.5
