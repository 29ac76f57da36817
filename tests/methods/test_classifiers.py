"""Methods with a head: forgetting, growth, the optimiser's moments, and distillation of outputs."""

import math

import numpy as np
import pytest
import torch

from ipal.backend.finite import read_terms
from ipal.config import Sampling, TrainConfig
from ipal.data.streams import TaskStream
from ipal.estimator import files
from ipal.estimator.model import begin_learning
from ipal.estimator.registry import METHODS
from ipal.methods.bare import Bare
from ipal.methods.classifier import HeadClassifier
from ipal.methods.efc import EFC
from ipal.methods.ipal import IPAL
from ipal.methods.ipal_online import OnlineIPAL
from ipal.methods.joint import Joint
from ipal.methods.lwf import LwF, output_distillation
from ipal.methods.polo import POLO
from tests.learning import CPU, accuracy, begun, config, first_step, gradients, learn, learned

CLASSIFIERS = pytest.mark.parametrize(
    "method", [method for method in METHODS.values() if issubclass(method, HeadClassifier)], ids=lambda m: m.name
)


def test_bare_learns_each_task_and_forgets_the_first(tiny_stream: TaskStream):
    model = config(Bare, epochs=40)
    for index in range(3):
        model = learn(model, tiny_stream.task(index))
        assert accuracy(model, tiny_stream, index) > 0.8
    assert accuracy(model, tiny_stream, 0) < 0.5


def test_joint_forgets_nothing(tiny_stream: TaskStream):
    model = learned(Joint, tiny_stream, 3, epochs=40)
    assert min(accuracy(model, tiny_stream, index) for index in range(3)) > 0.8


@CLASSIFIERS
def test_a_head_grows_by_new_classes_without_moments_and_all_that_is_old_starts_as_it_was(
    method, tiny_stream: TaskStream
):
    model = learned(method, tiny_stream, 1)
    state, new = model.state, begun(model, tiny_stream.task(1))
    assert new.network.classifier.num_classes == 4
    trained = new.optimizer.parameters
    assert len(trained) == len(set(trained)) == len(list(new.network.parameters()))
    if method is Joint:  # which starts anew
        assert not new.optimizer.state
        return
    named, moments = dict(new.network.named_parameters()), new.optimizer.state
    old = dict(state.network.named_parameters())
    for name, parameter in old.items():
        assert torch.equal(named[name], parameter)
        before = state.optimizer.state[parameter]
        assert before["exp_avg"].any()
        assert all(torch.equal(moments[named[name]][key], value) for key, value in before.items())
    rows = {name for name in named if name not in old}
    assert rows == {name for name in named if name.startswith("head.") and name.endswith(".1")} != set()
    assert not {named[name] for name in rows} & moments.keys()


@CLASSIFIERS
def test_later_tasks_are_learned_at_their_own_rate_by_all_parameters(method, tiny_stream: TaskStream):
    settings = config(method, train=TrainConfig(epochs=1, lr_base=0.02, lr_next=0.003))
    model = learn(settings, tiny_stream.task(0))
    assert model.state.optimizer.lr == 0.02
    model = learn(model, tiny_stream.task(1))
    rate = 0.02 if method is Joint else 0.003
    assert model.state.optimizer.lr == rate
    # One that is restored in the middle of a task goes on at the same rate, in the head as well.
    other = files.restored(settings, files.checkpoint(model), CPU, whole=False, source="it")
    assert other.state.optimizer.lr == rate


def test_all_seen_classes_compete_unless_only_the_current_ones_may(tiny_stream: TaskStream):
    for competing in ("seen", "current"):
        terms, training = first_step(learned(Bare, tiny_stream, 1, competing=competing), tiny_stream.task(1))
        found = gradients(training, terms["cross_entropy"])
        assert found["head.weights.1"].any()
        assert found["head.weights.0"].any() == (competing == "seen")
        assert found["head.biases.0"].any() == (competing == "seen")


def test_efc_teaches_current_nodes_the_new_classes_and_replays_over_all(tiny_stream: TaskStream):
    terms, training = first_step(learned(EFC, tiny_stream, 1), tiny_stream.task(1))
    assert set(terms) == {"cross_entropy", "replay", "consolidation"}
    assert not gradients(training, terms["cross_entropy"])["head.weights.0"].any()
    assert gradients(training, terms["replay"])["head.weights.0"].any()
    assert terms["consolidation"].item() == pytest.approx(0, abs=1e-9)


def test_lwf_distils_nothing_at_the_first_step_and_something_later(tiny_stream: TaskStream):
    model = learned(LwF, tiny_stream, 1)
    terms, training = first_step(model, tiny_stream.task(1))
    found, whole = gradients(training, terms["distillation"]), gradients(training, terms["cross_entropy"])
    assert max(g.abs().max() for g in found.values()) < 1e-6 * max(g.abs().max() for g in whole.values())
    # What is left is the entropy of the softened outputs.
    before = model.compute.outputs(model.network, tiny_stream.task(1)).detach()
    assert terms["distillation"].item() == pytest.approx(output_distillation(before, before, 2.0).item())
    assert before.shape[1] == 2
    model = learn(model, tiny_stream.task(1))
    steps = begin_learning(model.config, model, tiny_stream.task(2), CPU).epochs()
    next(steps)
    epoch = next(steps)
    assert read_terms([epoch.terms])[0]["distillation"] > 0
    assert epoch.state.teacher.classifier.num_classes == 4


@pytest.mark.parametrize("batch", ["full", Sampling(nodes=20, fanouts=(4, 4))], ids=["whole", "in parts"])
@pytest.mark.parametrize("method", [LwF, POLO, EFC, IPAL, OnlineIPAL], ids=lambda m: m.name)
def test_no_gradient_reaches_the_network_before_the_task(method, batch, tiny_stream: TaskStream):
    training = begun(learned(method, tiny_stream, 1, batch=batch), tiny_stream.task(1))
    for part in training.batches(0):
        training.step(part)
    assert all(parameter.grad is not None for parameter in training.network.parameters())
    teacher = list(training.state.teacher.parameters())
    for part in training.batches(1):
        loss = sum(training.loss(part).values())
        assert torch.autograd.grad(loss, teacher, allow_unused=True) == (None,) * len(teacher)


def test_joint_starts_from_fresh_weights_on_all_the_data_so_far(tiny_stream: TaskStream):
    model = learned(Joint, tiny_stream, 1, epochs=20)
    training = begun(model, tiny_stream.task(1))
    weight = training.network.encoder.weights[0]
    assert not torch.equal(weight, model.network.encoder.weights[0])
    assert weight.abs().max() <= math.sqrt(6 / sum(weight.shape))  # as Glorot draws them
    assert not any(bias.any() for bias in training.network.encoder.biases)
    assert not training.optimizer.state
    model = learn(model, tiny_stream.task(1), tiny_stream.task(2))
    tasks = [tiny_stream.task(index) for index in range(3)]
    data = model.state.memory.data
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
    # All that is known is learned, as current classes.
    context = begun(learned(Joint, tiny_stream, 2), tasks[2]).context
    assert context.labels.tolist() == data.labels.tolist()
    assert context.current.tolist() == list(range(6))
