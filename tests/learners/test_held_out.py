"""The copy of a learner that held-out nodes did not teach."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import ipal
from ipal.learners.analytic import operations
from ipal.learners.from_hetero import task_of
from ipal.learners.open_world.held_out import set_aside
from tests.learners.test_open_world import blocks


@pytest.fixture(scope="module")
def graph() -> Data:
    return blocks()


@pytest.mark.parametrize("sums", ["per-class", "pooled"])
def test_the_copy_is_the_model_that_never_learned_the_held_out_nodes(graph, sums):
    part = task_of(graph.subgraph(graph.y < 4), None)
    given = {"hops": (1,), "expansion": 16, "ridge": 0.1, "sums": sums, "passes": 0}
    aside = set_aside(part, 0.2, np.random.default_rng(0))
    model, never = ipal.Analytic(**given), ipal.Analytic(**given)
    for learner, some in ((model, part), (never, replace(part, nodes=part.nodes[~aside], labels=part.labels[~aside]))):
        for _ in learner.learn(some):
            pass
    before = model.state()
    made = model.without_nodes(part, aside)
    torch.testing.assert_close(made.weights_, never.weights_, rtol=1e-9, atol=1e-12)
    assert made.sums_.count.tolist() == never.sums_.count.tolist()
    assert all(torch.equal(before.tensors[name], tensor) for name, tensor in model.state().tensors.items())


def test_a_few_nodes_leave_pooled_sums_without_weighing_all_anew(graph, monkeypatch):
    part = task_of(graph.subgraph(graph.y < 4), None)
    model = ipal.Analytic(hops=(1,), expansion=16, ridge=0.1, sums="pooled", passes=0)
    for _ in model.learn(part):
        pass
    few = np.zeros(len(part.nodes), dtype=bool)
    few[[int(np.flatnonzero(part.labels == label)[0]) for label in range(4)]] = True
    quick = model.without_nodes(part, few)
    monkeypatch.setattr(operations, "FEW_LEAVE", 0.0)
    exact = model.without_nodes(part, few)
    assert quick.sums_.count.tolist() == exact.sums_.count.tolist()
    assert not torch.equal(quick.sums_.gram, exact.sums_.gram)
    torch.testing.assert_close(quick.weights_, exact.weights_, rtol=0.1, atol=0.02)


def test_the_closed_form_learns_once_and_the_same_with_calibration(graph, monkeypatch):
    taught = []
    teach = ipal.Analytic.teach
    monkeypatch.setattr(ipal.Analytic, "teach", lambda *given: taught.append(given) or teach(*given))
    models = [
        ipal.Analytic(hops=(1,), passes=0, calibration=share)
        .partial_fit(graph.subgraph(graph.y < 3))
        .partial_fit(graph.subgraph(graph.y > 2))
        for share in (0, 0.2)
    ]
    assert len(taught) == 4
    assert torch.equal(models[0].weights_, models[1].weights_)
    assert (models[1].calibration_.count > 0).all()
