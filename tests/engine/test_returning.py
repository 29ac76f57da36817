"""A class that comes again, in one task with a new one: it is learned from its nodes, and is no old class meanwhile."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ipal.data.centrality import node_weights
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.estimator.registry import METHODS
from ipal.methods.base import Trained
from ipal.methods.classifier import Classifier, balanced_cross_entropy
from ipal.methods.efc import EFC
from ipal.methods.ergnn import replay_weights
from ipal.methods.ipal import IPAL
from ipal.methods.pcl import PCL
from ipal.methods.polo import POLO
from ipal.methods.pr import PR
from ipal.methods.shared.prototypes import PrototypeMemory, weighted_mean
from ipal.nn import losses
from tests.learning import first_step, learn, learned

TRAINED = [method for method in METHODS.values() if issubclass(method, Trained) and method.name != "joint"]
REMEMBERING = [PR, PCL, IPAL, EFC, POLO]
AGAIN, NEW, OLD = 1, 4, [0, 2, 3]


@pytest.fixture
def task(tiny_stream: TaskStream) -> Task:
    """Class 1 of the first task and class 4, which is new: after two tasks of classes 0, 1 and 2, 3."""
    nodes = np.flatnonzero(np.isin(tiny_stream.y, [AGAIN, NEW]))
    return Task(tiny_stream.graph.induced(nodes), np.arange(len(nodes)), tiny_stream.y[nodes])


@pytest.mark.parametrize("method", TRAINED, ids=lambda method: method.name)
def test_a_class_that_comes_again_is_current_and_not_old(method, tiny_stream: TaskStream, task: Task):
    known = learned(method, tiny_stream, 2, epochs=2)
    terms, training = first_step(known, task)
    assert training.context.current.tolist() == [AGAIN, NEW]
    assert training.context.old.tolist() == OLD
    assert all(torch.isfinite(term) for term in terms.values())
    model = learn(known, task)
    assert model.labels == (0, 1, 2, 3, 4)
    scores = model.predict_graph(task.graph).scores
    assert scores.shape == (len(task.labels), 5)
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize("method", [PCL, IPAL], ids=lambda method: method.name)
def test_a_node_has_one_prototype_of_its_class_to_go_to(method, tiny_stream: TaskStream, task: Task):
    options = {"boundary": False, "replay": False, "distillation": "none"} if method is IPAL else {}
    model = learned(method, tiny_stream, 2, epochs=2, **options)
    terms, training = first_step(model, task)
    f = model.compute.embeddings(model.network, task)
    mu = torch.cat([weighted_mean(f, training.context.weights), model.state.memory.mean[OLD]])
    assert len(mu) == 5, "what was known of class 1 is no negative for its own nodes"
    expected = F.cross_entropy(
        losses.cosine(f, mu) / model.method.tau, torch.from_numpy((task.labels == NEW).astype(int))
    )
    assert terms["contrast"].item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("method", [PR, IPAL], ids=lambda method: method.name)
def test_no_sample_is_drawn_of_a_class_that_is_there(method, tiny_stream: TaskStream, task: Task, monkeypatch):
    model, asked, draw = learned(method, tiny_stream, 2, epochs=2), [], PrototypeMemory.draw

    def watched(memory: PrototypeMemory, *rest: object) -> torch.Tensor:
        asked.append(memory.mean)
        return draw(memory, *rest)

    monkeypatch.setattr(PrototypeMemory, "draw", watched)
    first_step(model, task)
    (mean,) = asked
    assert torch.equal(mean, model.state.memory.mean[OLD])


@pytest.mark.parametrize("method", REMEMBERING, ids=lambda method: method.name)
def test_its_memory_is_pooled_with_what_was_known_and_not_moved_before(method, tiny_stream: TaskStream, task: Task):
    settings = {"node_weights": "pagerank"} if method is IPAL else {}
    known = learned(method, tiny_stream, 2, epochs=2, **settings)
    model = learn(known, task)
    before, after = (one.method.statistics(one.state.memory) for one in (known, model))
    assert len(after.count) == 5
    count = int(np.sum(task.labels == AGAIN))
    assert after.count[AGAIN] == before.count[AGAIN] + count
    assert torch.equal(after.count[OLD], before.count[OLD])
    # What is new of the class is what the memory of a learner that never knew it would hold.
    share = count / int(after.count[AGAIN])
    new_mean = torch.lerp(before.mean[AGAIN], after.mean[AGAIN], 1 / share)
    rows = torch.from_numpy(task.labels == AGAIN)
    f = model.compute.embeddings(model.network, task)[rows]
    if method is not POLO:  # whose mean weighs nodes by the density around them
        weights = torch.full((1, len(f)), 1 / len(f))
        if method is IPAL:
            weights = torch.from_numpy(node_weights(task.graph, "pagerank", 0.85)[task.nodes][rows.numpy()]).float()[
                None
            ]
            weights = weights / weights.sum()
        torch.testing.assert_close(new_mean, weighted_mean(f, weights)[0], rtol=1e-3, atol=1e-4)
    if method in (PR, PCL):
        assert torch.equal(after.mean[OLD], before.mean[OLD])
    else:
        assert not torch.equal(after.mean[OLD], before.mean[OLD]), "old classes follow the drift"


CLASSIFIERS = [method for method in TRAINED if issubclass(method, Classifier)]


@pytest.mark.parametrize("method", CLASSIFIERS, ids=lambda method: method.name)
def test_a_class_that_comes_again_competes_with_the_others_that_are_there(method, tiny_stream: TaskStream, task: Task):
    terms, training = first_step(learned(method, tiny_stream, 2, epochs=2, competing="current"), task)
    logits = training.context.compute.outputs(training.network, task)[:, [AGAIN, NEW]]
    expected = balanced_cross_entropy(logits, torch.from_numpy((task.labels == NEW).astype(int)))
    found = terms["cross_entropy"].item()
    if method.name == "er-gnn":  # which weighs current and kept nodes
        found /= replay_weights(len(task.nodes), len(training.state.memory.buffer.nodes))[0]
    assert found == pytest.approx(expected.item(), rel=1e-3)
