"""Methods with a head: forgetting, growth, the optimiser's moments, and distillation of outputs."""

import math

import numpy as np
import pytest
import torch

from ipal.config import TrainConfig
from ipal.data.streams import TaskStream
from ipal.learners import EFC, METHODS, Bare, Joint, LwF
from ipal.learners.lwf import output_distillation
from ipal.learners.trained import TrainedLearner
from tests.learning import SMALL, accuracy, first_step, gradients, learn, learned, make

CLASSIFIERS = pytest.mark.parametrize(
    "method",
    [method for method in METHODS.values() if issubclass(method, TrainedLearner) and method.has_head],
    ids=lambda m: m.name,
)


def test_bare_learns_each_task_and_forgets_the_first(tiny_stream: TaskStream):
    learner = make(Bare, epochs=40)
    for index in range(3):
        learn(learner, tiny_stream.task(index))
        assert accuracy(learner, tiny_stream, index) > 0.8
    assert accuracy(learner, tiny_stream, 0) < 0.5


def test_joint_forgets_nothing(tiny_stream: TaskStream):
    learner = learned(Joint, tiny_stream, 3, epochs=40)
    assert min(accuracy(learner, tiny_stream, index) for index in range(3)) > 0.8


@CLASSIFIERS
def test_a_head_grows_by_the_new_classes_and_old_rows_start_as_they_were(method, tiny_stream: TaskStream):
    learner = learned(method, tiny_stream, 1)
    old = learner.head_.weight.detach().clone()
    learner.start(tiny_stream.task(1))
    assert learner.head_.num_classes == 4
    if method is not Joint:  # which starts anew
        assert torch.equal(learner.head_.weight[:2], old)


@CLASSIFIERS
def test_new_rows_start_without_moments_and_old_parameters_keep_theirs(method, tiny_stream: TaskStream):
    if method is Joint:
        pytest.skip("starts anew with every task")
    learner = learned(method, tiny_stream, 1)
    before = {p: {k: v.clone() for k, v in state.items()} for p, state in learner.optimizer_.state.items()}
    old = set(learner.network_.parameters())
    assert before.keys() == old
    learner.start(tiny_stream.task(1))
    new = set(learner.network_.parameters()) - old
    assert len(new) == len(learner.head_.weights[1:]) + len(learner.head_.biases[1:]) > 0
    assert not new & learner.optimizer_.state.keys()
    for parameter, state in before.items():
        assert state["exp_avg"].any()
        assert all(torch.equal(learner.optimizer_.state[parameter][key], value) for key, value in state.items())
    trained = [p for group in learner.optimizer_.param_groups for p in group["params"]]
    assert len(trained) == len(set(trained)) == len(old | new)


@CLASSIFIERS
def test_moments_that_are_reset_are_gone_for_all(method, tiny_stream: TaskStream):
    learner = method(encoder=SMALL, train=TrainConfig(epochs=2, moments="reset"))
    learn(learner, tiny_stream.task(0)).start(tiny_stream.task(1))
    assert not learner.optimizer_.state
    trained = [p for group in learner.optimizer_.param_groups for p in group["params"]]
    assert len(trained) == len(set(trained)) == len(list(learner.network_.parameters()))


@CLASSIFIERS
def test_later_tasks_are_learned_at_their_own_rate_by_all_parameters(method, tiny_stream: TaskStream):
    learner = method(encoder=SMALL, train=TrainConfig(epochs=1, lr_base=0.02, lr_next=0.003))
    learn(learner, tiny_stream.task(0))
    assert {group["lr"] for group in learner.optimizer_.param_groups} == {0.02}
    learn(learner, tiny_stream.task(1))
    rates = {group["lr"] for group in learner.optimizer_.param_groups}
    assert rates == ({0.02} if method is Joint else {0.003})
    # A learner that is restored in the middle of a task goes on at the same rate, in the head as well.
    other = method(encoder=SMALL, train=learner.train)
    other.restore(learner.state())
    assert {group["lr"] for group in other.optimizer_.param_groups} == rates


def test_all_seen_classes_compete_unless_only_the_current_ones_may(tiny_stream: TaskStream):
    for competing in ("seen", "current"):
        learner = learned(Bare, tiny_stream, 1, competing=competing)
        terms, _ = first_step(learner, tiny_stream.task(1))
        found = gradients(learner, terms["cross_entropy"])
        assert found["head.weights.1"].any()
        assert found["head.weights.0"].any() == (competing == "seen")
        assert found["head.biases.0"].any() == (competing == "seen")


def test_efc_teaches_current_nodes_the_new_classes_and_replays_over_all(tiny_stream: TaskStream):
    learner = learned(EFC, tiny_stream, 1)
    terms, _ = first_step(learner, tiny_stream.task(1))
    assert set(terms) == {"cross_entropy", "replay", "consolidation"}
    assert not gradients(learner, terms["cross_entropy"])["head.weights.0"].any()
    assert gradients(learner, terms["replay"])["head.weights.0"].any()
    assert terms["consolidation"].item() == pytest.approx(0, abs=1e-9)


def test_lwf_distils_nothing_at_the_first_step_and_something_later(tiny_stream: TaskStream):
    learner = learned(LwF, tiny_stream, 1)
    terms, prepared = first_step(learner, tiny_stream.task(1))
    found = gradients(learner, terms["distillation"])
    whole = gradients(learner, terms["cross_entropy"])
    assert max(g.abs().max() for g in found.values()) < 1e-6 * max(g.abs().max() for g in whole.values())
    # What is left is the entropy of the softened outputs.
    before = prepared.before.network["head"](prepared.before.embeddings)
    assert terms["distillation"].item() == pytest.approx(output_distillation(before, before, 2.0).item())
    assert before.shape[1] == 2
    steps = learn(learner, tiny_stream.task(1)).learn(tiny_stream.task(2))
    next(steps)
    assert next(steps)["distillation"] > 0
    assert learner.previous_["head"].num_classes == 4


def test_lwf_keeps_outputs_nearer_to_the_old_ones_than_bare_does(tiny_stream: TaskStream):
    task = tiny_stream.task(1)
    moved = {}
    for method, options in ((Bare, {}), (LwF, {"strength": 30.0})):
        learner = learned(method, tiny_stream, 1, **options)
        before = learner.scores(task.graph).softmax(dim=1).detach()
        learn(learner, task)
        moved[method] = (learner.scores(task.graph)[:, :2].softmax(dim=1) - before).abs().mean().item()
    assert moved[LwF] < 0.5 * moved[Bare]


def test_joint_starts_from_fresh_weights_on_all_the_data_so_far(tiny_stream: TaskStream):
    learner = learned(Joint, tiny_stream, 1, epochs=20)
    trained = learner.encoder_.weights[0].detach().clone()
    learner.start(tiny_stream.task(1))
    weight = learner.encoder_.weights[0]
    assert not torch.equal(weight, trained)
    assert weight.abs().max() <= math.sqrt(6 / sum(weight.shape))  # as Glorot draws them
    assert not any(bias.any() for bias in learner.encoder_.biases)
    assert not learner.optimizer_.state
    learn(learner, tiny_stream.task(2))  # the second task's labels are known, though it was not trained to the end
    tasks = [tiny_stream.task(index) for index in range(3)]
    data = learner.data_
    assert data.labels.tolist() == np.concatenate([task.labels for task in tasks]).tolist()
    assert data.graph.num_nodes == sum(task.graph.num_nodes for task in tasks)
    assert data.graph.edges.shape[1] == sum(task.graph.edges.shape[1] for task in tasks)
    starts = np.cumsum([0] + [task.graph.num_nodes for task in tasks])
    for task, start in zip(tasks, starts, strict=False):
        chosen = (data.nodes >= start) & (data.nodes < start + task.graph.num_nodes)
        assert np.array_equal(data.nodes[chosen] - start, task.nodes)
        assert np.array_equal(data.graph.x[start : start + task.graph.num_nodes], task.graph.x)
    # No edge runs between tasks.
    part = np.searchsorted(starts, data.graph.edges, side="right")
    assert np.array_equal(part[0], part[1])
    assert len(learner.prepare(tasks[2]).labels) == len(data.nodes)
    assert learner.prepare(tasks[2]).current.tolist() == list(range(6))
