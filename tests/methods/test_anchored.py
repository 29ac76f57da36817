"""EWC, MAS and TWP: what they hold in place, and by which importance."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ipal.backend.runtime import Runtime
from ipal.data.streams import Task, TaskStream
from ipal.learners import EWC, MAS, TWP, Bare
from ipal.learners.anchored import quadratic_pull
from ipal.learners.mas import length_gradient
from ipal.learners.open_world import calibration
from ipal.nn.per_node_gradients import network_importance
from tests.learning import first_step, gradients, learn, learned, make

HERE = Runtime.of()

ANCHORED = pytest.mark.parametrize(
    ("method", "options"),
    [(EWC, {"strength": 1e4}), (MAS, {"strength": 10.0}), (TWP, {"loss_strength": 1e3, "topology_strength": 1e3})],
    ids=["ewc", "mas", "twp"],
)


def parameters(learner: Bare) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in learner.network_.named_parameters()}


def pull(learner: EWC | MAS | TWP, task: Task) -> torch.Tensor:
    (batch,) = learner.batches(task, 0)
    return learner.loss(batch, learner.prepare(task))["pull"]


@ANCHORED
def test_the_first_task_pulls_nowhere_and_the_second_pulls_nothing_at_first(method, options, tiny_stream: TaskStream):
    learner = make(method, **options)
    terms, _ = first_step(learner, tiny_stream.task(0))
    assert "pull" not in terms
    learn(learner, tiny_stream.task(0))
    terms, _ = first_step(learner, tiny_stream.task(1))
    assert terms["pull"].item() == 0.0
    assert not any(part.any() for part in gradients(learner, terms["pull"]).values())
    with torch.no_grad():
        learner.encoder_.weights[0].add_(0.1)
    assert pull(learner, tiny_stream.task(1)) > 0


@ANCHORED
def test_what_is_important_stays_nearer_to_its_anchor_than_without_a_pull(method, options, tiny_stream: TaskStream):
    held, free = make(method, **options), make(Bare)
    if method is TWP:
        held.beta = 0.0  # so that both learn the first task alike
    for learner in (held, free):
        learn(learner, tiny_stream.task(0))
    anchor, importance = parameters(free), held.importance_
    assert all(torch.equal(held.anchor_[name], anchor[name]) for name in importance)
    for learner in (held, free):
        learn(learner, tiny_stream.task(1))
    far, near = (quadratic_pull(parameters(learner), importance, anchor) for learner in (free, held))
    assert near < 0.2 * far


@ANCHORED
def test_importance_is_of_every_parameter_and_never_negative(method, options, tiny_stream: TaskStream):
    learner = learned(method, tiny_stream, 2, **options)
    names = [name for name, _ in learner.network_.named_parameters()]
    assert list(learner.importance_) == names
    assert set(learner.anchor_) == set(names)
    assert not any(value.requires_grad for value in learner.parameters().values())
    for name, parameter in learner.network_.named_parameters():
        assert learner.importance_[name].shape == parameter.shape
        assert (learner.importance_[name] >= 0).all()
        assert learner.importance_[name].any()


def test_ewc_sums_the_fisher_information_of_tasks_node_by_node(tiny_stream: TaskStream):
    tasks = [tiny_stream.task(index) for index in range(2)]
    learner = make(EWC, strength=1.0)
    expected: dict[str, torch.Tensor] = {}
    for task in tasks:
        learn(learner, task)
        named = dict(learner.network_.named_parameters())
        likelihood = learner.training_outputs(task).log_softmax(dim=1)
        rows = learner.rows(task.labels)
        for index, row in enumerate(rows):
            parts = torch.autograd.grad(likelihood[index, row], list(named.values()), retain_graph=True)
            for name, part in zip(named, parts, strict=True):
                expected[name] = expected.get(name, 0) + part.square() / len(rows)
    for name, value in expected.items():
        torch.testing.assert_close(learner.importance_[name], value, rtol=1e-3, atol=1e-3 * value.max().item())


@pytest.mark.parametrize("method", [EWC, TWP], ids=lambda m: m.name)
def test_every_old_task_pulls_to_where_it_was_learned(method, tiny_stream: TaskStream):
    options = {"strength": 1.0} if method is EWC else {"loss_strength": 1.0, "topology_strength": 1.0}
    learner = make(method, **options)
    tasks = []  # importance and network of each, by themselves
    for index in range(2):
        before = dict(learner.importance_) if index else {}
        learn(learner, tiny_stream.task(index))
        own = {name: value - before.get(name, 0) for name, value in learner.importance_.items()}
        tasks.append((own, parameters(learner)))
    learner.start(tiny_stream.task(2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in learner.network_.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    got = gradients(learner, pull(learner, tiny_stream.task(2)))
    theta = dict(learner.network_.named_parameters())
    half = 0.5 if method is EWC else 1.0
    apart = gradients(learner, half * sum(quadratic_pull(theta, own, anchor) for own, anchor in tasks))
    for name, value in apart.items():
        torch.testing.assert_close(got[name], value, rtol=1e-3, atol=1e-4 * value.abs().max().item() + 1e-12)


def test_ewc_by_batch_is_the_squared_gradient_of_the_mean_and_another_quantity(tiny_stream: TaskStream):
    task = tiny_stream.task(0)
    batch, per_node = (learned(EWC, tiny_stream, 1, fisher=kind) for kind in ("batch", "per-node"))
    named = dict(batch.network_.named_parameters())
    loss = F.cross_entropy(batch.training_outputs(task), batch.rows(task.labels))
    for name, part in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
        torch.testing.assert_close(batch.importance_[name], part.square())
        # A mean of squares is never below the square of the mean.
        assert (per_node.importance_[name] >= batch.importance_[name] * 0.999 - 1e-12).all()
    assert per_node.importance_["head.biases.0"].sum() > 2 * batch.importance_["head.biases.0"].sum()


def test_mas_importance_is_the_mean_over_the_nodes_of_all_tasks(tiny_stream: TaskStream):
    tasks = [tiny_stream.task(index) for index in range(2)]
    few = np.arange(0, len(tasks[1].nodes), 3)  # of another size, so that weights matter
    tasks[1] = Task(tasks[1].graph, tasks[1].nodes[few], tasks[1].labels[few])
    learner = make(MAS, strength=0.1)
    own = []
    for task in tasks:
        learn(learner, task)
        outputs = learner.training_outputs(task).detach()
        own.append(network_importance(learner.network_, task, length_gradient(outputs), torch.abs, HERE))
    first, second = (len(task.nodes) for task in tasks)
    for name, value in learner.importance_.items():
        before = own[0].get(name, torch.zeros(()))
        torch.testing.assert_close(value, ((first * before + second * own[1][name]) / (first + second)).detach())
    assert learner.facts()["nodes"] == learner.nodes_ == first + second
    # The anchor is where the network is now, whatever its way there.
    assert all(torch.equal(learner.anchor_[name], value) for name, value in parameters(learner).items())


def test_twp_importance_is_the_size_of_both_gradients(tiny_stream: TaskStream):
    task = tiny_stream.task(0)
    learner = learned(TWP, tiny_stream, 1, loss_strength=3.0, topology_strength=5.0)
    encoder = learner.encoder_
    loss = learner.prepare(task).cross_entropy(learner.training_outputs(task), slice(None))
    by_loss = gradients(learner, loss)
    # Attention by full matrices.
    a = torch.from_numpy(task.graph.normalised.toarray())
    h = a @ torch.from_numpy(task.graph.x) @ encoder.weights[0] + encoder.biases[0]
    attention = (h @ h.tanh().T).masked_fill(a == 0, -torch.inf).softmax(dim=1)
    by_topology = gradients(learner, attention.square().sum(dim=1).mean())
    for name, importance in learner.importance_.items():
        expected = 3 * by_loss[name].abs() + 5 * by_topology[name].abs()
        torch.testing.assert_close(importance, expected, rtol=1e-3, atol=1e-3 * expected.max().item())
    assert by_topology["encoder.weights.0"].any()


def test_twp_keeps_the_gradient_of_the_loss_small_in_earnest(tiny_stream: TaskStream):
    learner = make(TWP, beta=0.5)
    terms, _ = first_step(learner, tiny_stream.task(0))
    sizes = [part.abs().sum() for part in gradients(learner, terms["cross_entropy"]).values()]
    assert terms["minimal"].item() == pytest.approx(0.5 * sum(sizes).item(), rel=1e-5)
    # It pushes the parameters itself: a step down its own gradient makes it smaller.
    push = gradients(learner, terms["minimal"])
    assert push["encoder.weights.0"].any()
    (batch,) = learner.batches(tiny_stream.task(0), 0)
    prepared = learner.prepare(tiny_stream.task(0))
    with torch.no_grad():
        for name, parameter in learner.network_.named_parameters():
            parameter.sub_(1e-3 * push[name])
    lower = learner.loss(batch, prepared)["minimal"]
    slope = sum(part.square().sum() for part in push.values()).item()
    assert terms["minimal"].item() - lower.item() == pytest.approx(1e-3 * slope, rel=0.1)


@ANCHORED
def test_the_copy_that_calibrates_leaves_the_importance_out_and_finds_the_same(
    method, options, tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(calibration, "FEWEST", 2)
    ended = []
    end_task = method.end_task
    monkeypatch.setattr(method, "end_task", lambda *all_of: ended.append(all_of[0].is_trial) or end_task(*all_of))
    without = learned(method, tiny_stream, 2, calibration=0.2, **options)
    assert ended == [False, False]
    monkeypatch.setattr(method, "ends_for_later_tasks", False)
    whole = learned(method, tiny_stream, 2, calibration=0.2, **options)
    assert ended[2:] == [True, False, True, False]
    assert len(without.calibration_.count) > 0
    for name, value in vars(whole.calibration_).items():
        torch.testing.assert_close(vars(without.calibration_)[name], value, rtol=0, atol=0)
    assert all(torch.equal(without.importance_[name], value) for name, value in whole.importance_.items())


def test_a_method_of_ones_own_says_anew_whether_its_end_of_a_task_matters_to_later_tasks_alone():
    class Own(EWC):
        def end_task(self, task, lesson):
            super().end_task(task, lesson)

    class Same(EWC):
        pass

    assert EWC.ends_for_later_tasks
    assert Same.ends_for_later_tasks
    assert not Own.ends_for_later_tasks
