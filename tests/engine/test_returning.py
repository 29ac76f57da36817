"""A class that comes again, in one task with a new one: it is learned from its nodes, and is no old class meanwhile."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ipal.data.centrality import node_weights
from ipal.data.streams import Task, TaskStream
from ipal.learners import EFC, IPAL, METHODS, PCL, POLO, PR
from ipal.learners.ergnn import replay_weights
from ipal.learners.trained import TrainedLearner, balanced_cross_entropy
from ipal.nn import losses
from ipal.nn.prototypes import PrototypeMemory, weighted_mean
from tests.learning import first_step, learn, learned

TRAINED = [method for method in METHODS.values() if issubclass(method, TrainedLearner) and method.name != "joint"]
REMEMBERING = [PR, PCL, IPAL, EFC, POLO]
AGAIN, NEW, OLD = 1, 4, [0, 2, 3]


@pytest.fixture
def task(tiny_stream: TaskStream) -> Task:
    """Class 1 of the first task and class 4, which is new: after two tasks of classes 0, 1 and 2, 3."""
    nodes = np.flatnonzero(np.isin(tiny_stream.y, [AGAIN, NEW]))
    return Task(tiny_stream.graph.induced(nodes), np.arange(len(nodes)), tiny_stream.y[nodes])


@pytest.mark.parametrize("method", TRAINED, ids=lambda method: method.name)
def test_a_class_that_comes_again_is_current_and_not_old(method, tiny_stream: TaskStream, task: Task):
    learner = learned(method, tiny_stream, 2, epochs=2)
    terms, prepared = first_step(learner, task)
    assert prepared.current.tolist() == [AGAIN, NEW]
    assert prepared.old.tolist() == OLD
    assert all(torch.isfinite(term) for term in terms.values())


@pytest.mark.parametrize("method", [PCL, IPAL], ids=lambda method: method.name)
def test_a_node_has_one_prototype_of_its_class_to_go_to(method, tiny_stream: TaskStream, task: Task):
    options = {"boundary": False, "replay": False, "distillation": "none"} if method is IPAL else {}
    learner = learned(method, tiny_stream, 2, epochs=2, **options)
    terms, prepared = first_step(learner, task)
    f = learner.training_embeddings(task)
    mu = torch.cat([weighted_mean(f, prepared.weights), learner.memory_.mean[OLD]])
    assert len(mu) == 5, "what was known of class 1 is no negative for its own nodes"
    expected = F.cross_entropy(losses.cosine(f, mu) / learner.tau, torch.from_numpy((task.labels == NEW).astype(int)))
    assert terms["contrast"].item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("method", [PR, IPAL], ids=lambda method: method.name)
def test_no_sample_is_drawn_of_a_class_that_is_there(method, tiny_stream: TaskStream, task: Task, monkeypatch):
    learner, asked, draw = learned(method, tiny_stream, 2, epochs=2), [], PrototypeMemory.drawn

    def watched(memory: PrototypeMemory, *rest: object) -> torch.Tensor:
        asked.append(memory.mean)
        return draw(memory, *rest)

    monkeypatch.setattr(PrototypeMemory, "drawn", watched)
    first_step(learner, task)
    (mean,) = asked
    assert torch.equal(mean, learner.memory_.mean[OLD])


def test_efc_draws_of_old_classes_alone(tiny_stream: TaskStream, task: Task):
    learner = learned(EFC, tiny_stream, 2, epochs=2, ridge=1e-12)
    learner.covariance_ = torch.zeros_like(learner.covariance_)
    _, prepared = first_step(learner, task)
    drawn = learner._draw(prepared).reshape(len(OLD), learner.samples, -1)
    torch.testing.assert_close(drawn[:, 0], learner.memory_.mean[OLD], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", REMEMBERING, ids=lambda method: method.name)
def test_its_memory_is_pooled_with_what_was_known_and_not_moved_before(method, tiny_stream: TaskStream, task: Task):
    settings = {"node_weights": "pagerank"} if method is IPAL else {}
    learner = learned(method, tiny_stream, 2, epochs=2, **settings)
    before = learner.memory_
    learn(learner, task)
    after = learner.memory_
    assert len(after) == 5
    count = int(np.sum(task.labels == AGAIN))
    assert after.count[AGAIN] == before.count[AGAIN] + count
    assert torch.equal(after.count[OLD], before.count[OLD])
    # What is new of the class is what the memory of a learner that never knew it would hold.
    share = count / int(after.count[AGAIN])
    new_mean = torch.lerp(before.mean[AGAIN], after.mean[AGAIN], 1 / share)
    rows = torch.from_numpy(task.labels == AGAIN)
    f = learner.training_embeddings(task)[rows]
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


CLASSIFIERS = [method for method in TRAINED if method.has_head and method is not EFC]


@pytest.mark.parametrize("method", CLASSIFIERS, ids=lambda method: method.name)
def test_a_class_that_comes_again_competes_with_the_others_that_are_there(method, tiny_stream: TaskStream, task: Task):
    learner = learned(method, tiny_stream, 2, epochs=2, competing="current")
    terms, _ = first_step(learner, task)
    logits = learner.training_outputs(task)[:, [AGAIN, NEW]]
    expected = balanced_cross_entropy(logits, torch.from_numpy((task.labels == NEW).astype(int)))
    found = terms["cross_entropy"].item()
    if method.name == "er-gnn":  # which weighs current and kept nodes
        found /= replay_weights(len(task.nodes), len(learner.buffer_.nodes))[0]
    assert found == pytest.approx(expected.item(), rel=1e-3)


@pytest.mark.parametrize("method", TRAINED, ids=lambda method: method.name)
def test_every_class_is_predicted_afterwards(method, tiny_stream: TaskStream, task: Task):
    learner = learn(learned(method, tiny_stream, 2, epochs=2), task)
    assert learner.labels_ == [0, 1, 2, 3, 4]
    assert learner.look(task.graph).labels.shape == task.labels.shape
    assert torch.isfinite(learner.scores(task.graph)).all()
    assert learner.scores(task.graph).shape[1] == 5
