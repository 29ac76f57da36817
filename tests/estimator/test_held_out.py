"""The copy of a model that held-out nodes did not teach."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import ipal
from ipal.closed_form.method import Analytic
from ipal.estimator import files
from ipal.estimator.convert.hetero import task_of
from ipal.estimator.model import Model
from ipal.estimator.open_world.held_out import Aside, set_aside
from tests.closed_form.analytic_support import assert_same_sums
from tests.estimator.test_open_world import blocks
from tests.learning import config, learn


@pytest.fixture(scope="module")
def graph() -> Data:
    return blocks()


def weights(model: Model) -> torch.Tensor:
    assert isinstance(model.method, Analytic)
    return model.method.solved(model.state.memory).weights


@pytest.mark.parametrize("sums", ["per-class", "pooled"])
def test_the_copy_is_the_model_that_never_learned_the_held_out_nodes(graph, sums):
    part = task_of(graph.subgraph(graph.y < 4), None)
    given = {"steps": 1, "width": 32, "ridge": 0.1, "sums": sums}
    aside = set_aside(part, 0.2, np.random.default_rng(0))
    others = replace(part, nodes=part.nodes[~aside], labels=part.labels[~aside])
    model, never = (learn(config(Analytic, **given), some) for some in (part, others))
    before = files.checkpoint(model)
    made = model.trial(part, aside)
    assert_same_sums(ipal.Analytic._of(made), ipal.Analytic._of(never))
    assert torch.equal(weights(made), weights(never))
    after = files.checkpoint(model)
    assert all(torch.equal(before.tensors[name], tensor) for name, tensor in after.tensors.items())


@pytest.mark.parametrize("sums", ["per-class", "pooled"])
def test_the_copy_that_nobody_left_is_the_model(graph, sums):
    part = task_of(graph.subgraph(graph.y < 4), None)
    model = learn(config(Analytic, steps=1, width=32, ridge=0.1, sums=sums), part)
    made = model.trial(part, np.zeros(len(part.nodes), dtype=bool))
    assert torch.equal(weights(made), weights(model))


def test_the_copy_of_later_tasks_keeps_the_weight_of_earlier_classes(graph):
    given = {"steps": 1, "width": 32, "ridge": 0.1}
    models = [ipal.Analytic(**given, sums=sums) for sums in ("per-class", "pooled")]
    for model in models:
        model.partial_fit(graph.subgraph(graph.y < 3)).partial_fit(graph.subgraph(graph.y > 2))
    kept = [model.model_.calibration.own for model in models]
    torch.testing.assert_close(kept[0], kept[1], rtol=0.2, atol=0.5)


def test_the_closed_form_learns_once_and_the_same_with_calibration(graph, monkeypatch):
    taught = []
    end_task = Analytic.end_task
    monkeypatch.setattr(Analytic, "end_task", lambda *given: taught.append(given) or end_task(*given))
    models = [
        ipal.Analytic(width=64, steps=1, calibration=share)
        .partial_fit(graph.subgraph(graph.y < 3))
        .partial_fit(graph.subgraph(graph.y > 2))
        .model_
        for share in (0, 0.2)
    ]
    assert len(taught) == 4
    assert torch.equal(weights(models[0]), weights(models[1]))
    assert (models[1].calibration.count > 0).all()


def test_the_latest_task_says_most_about_the_power(graph, monkeypatch):
    found = []
    monkeypatch.setattr(Aside, "power", lambda self, among=None: (found[-1], 10.0))
    learner = ipal.NCM()
    for power, classes in ((1.0, (0, 1)), (2.0, (2, 3))):
        found.append(power)
        learner.partial_fit(graph.subgraph(torch.isin(graph.y, torch.tensor(classes))))
    # 1.0 with half of its 10, 2.0 with 10, and a little for no change.
    assert math.log(learner.model_.calibration.power) == pytest.approx((5 * 1.0 + 10 * 2.0) / 15.1, rel=1e-5)
