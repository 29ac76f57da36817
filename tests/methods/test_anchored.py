"""EWC, MAS and TWP: what they hold in place, and by which importance."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.engine.trainer import Training, numbered
from ipal.estimator.model import Model
from ipal.estimator.open_world import calibration
from ipal.methods.bare import Bare
from ipal.methods.classifier import node_cross_entropy
from ipal.methods.ewc import EWC
from ipal.methods.mas import MAS, length_gradient
from ipal.methods.shared.anchored import Anchor, quadratic_pull
from ipal.methods.twp import TWP
from ipal.nn.per_node_gradients import network_importance
from tests.learning import CPU, begun, config, first_step, gradients, learn, learned

ANCHORED = pytest.mark.parametrize(
    ("method", "options"),
    [(EWC, {"strength": 1e4}), (MAS, {"strength": 10.0}), (TWP, {"loss_strength": 1e3, "topology_strength": 1e3})],
    ids=["ewc", "mas", "twp"],
)


def anchor(model: Model) -> Anchor:
    memory = model.state.memory
    return memory if isinstance(memory, Anchor) else memory.anchor


def outputs(model: Model, task: Task) -> Tensor:
    return model.compute.outputs(model.state.network, numbered(task, model.labels))


def term(training: Training, name: str) -> Tensor:
    (batch,) = training.batches(0)
    return training.loss(batch)[name]


@ANCHORED
def test_the_first_task_pulls_nowhere_and_the_second_pulls_nothing_at_first(method, options, tiny_stream: TaskStream):
    terms, _ = first_step(config(method, **options), tiny_stream.task(0))
    assert "pull" not in terms
    terms, training = first_step(learned(method, tiny_stream, 1, **options), tiny_stream.task(1))
    assert terms["pull"].item() == 0.0
    assert not any(part.any() for part in gradients(training, terms["pull"]).values())
    with torch.no_grad():
        training.network.encoder.weights[0].add_(0.1)
    assert term(training, "pull") > 0


@ANCHORED
def test_what_is_important_stays_nearer_to_its_anchor_than_without_a_pull(method, options, tiny_stream: TaskStream):
    if method is TWP:
        options = {**options, "beta": 0.0}  # so that both learn the first task alike
    held, free = learned(method, tiny_stream, 1, **options), learned(Bare, tiny_stream, 1)
    values, importance = free.network.tensors(), anchor(held).importance
    assert all(torch.equal(anchor(held).values[name], values[name]) for name in importance)
    later = [learn(model, tiny_stream.task(1)) for model in (free, held)]
    far, near = (quadratic_pull(model.network.tensors(), importance, values) for model in later)
    assert near < 0.2 * far


def test_ewc_sums_the_fisher_information_of_tasks_node_by_node(tiny_stream: TaskStream):
    start, expected = config(EWC, strength=1.0), dict[str, Tensor]()
    for task in (tiny_stream.task(index) for index in range(2)):
        start = model = learn(start, task)
        named = dict(model.network.named_parameters())
        likelihood, rows = (
            outputs(model, task).log_softmax(dim=1),
            torch.from_numpy(numbered(task, model.labels).labels),
        )
        for index, row in enumerate(rows):
            parts = torch.autograd.grad(likelihood[index, row], list(named.values()), retain_graph=True)
            for name, part in zip(named, parts, strict=True):
                expected[name] = expected.get(name, 0) + part.square() / len(rows)
    for name, value in expected.items():
        torch.testing.assert_close(anchor(model).importance[name], value, rtol=1e-3, atol=1e-3 * value.max().item())


@pytest.mark.parametrize("method", [EWC, TWP], ids=lambda m: m.name)
def test_every_old_task_pulls_to_where_it_was_learned(method, tiny_stream: TaskStream):
    start = config(method, **({"strength": 1.0} if method is EWC else {"loss_strength": 1.0, "topology_strength": 1.0}))
    tasks, before = [], dict[str, Tensor]()  # importance and network of each, by themselves
    for index in range(2):
        start = model = learn(start, tiny_stream.task(index))
        own = {name: value - before.get(name, 0) for name, value in anchor(model).importance.items()}
        tasks.append((own, model.network.tensors()))
        before = anchor(model).importance
    training = begun(model, tiny_stream.task(2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in training.network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    got = gradients(training, term(training, "pull"))
    theta = dict(training.network.named_parameters())
    half = 0.5 if method is EWC else 1.0
    apart = gradients(training, half * sum(quadratic_pull(theta, own, values) for own, values in tasks))
    for name, value in apart.items():
        torch.testing.assert_close(got[name], value, rtol=1e-3, atol=1e-4 * value.abs().max().item() + 1e-12)


def test_ewc_by_batch_is_the_squared_gradient_of_the_mean_and_another_quantity(tiny_stream: TaskStream):
    task = tiny_stream.task(0)
    model, per_node = (learned(EWC, tiny_stream, 1, fisher=kind) for kind in ("batch", "per-node"))
    named, batch, single = dict(model.network.named_parameters()), anchor(model).importance, anchor(per_node).importance
    loss = F.cross_entropy(outputs(model, task), torch.from_numpy(numbered(task, model.labels).labels))
    for name, part in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
        torch.testing.assert_close(batch[name], part.square())
        # A mean of squares is never below the square of the mean.
        assert (single[name] >= batch[name] * 0.999 - 1e-12).all()
    assert single["head.biases.0"].sum() > 2 * batch["head.biases.0"].sum()


def test_mas_importance_is_the_mean_over_the_nodes_of_all_tasks(tiny_stream: TaskStream):
    tasks = [tiny_stream.task(index) for index in range(2)]
    few = np.arange(0, len(tasks[1].nodes), 3)  # of another size, so that weights matter
    tasks[1] = Task(tasks[1].graph, tasks[1].nodes[few], tasks[1].labels[few])
    start, own = config(MAS, strength=0.1), []
    for task in tasks:
        start = model = learn(start, task)
        slopes = length_gradient(outputs(model, task).detach())
        own.append(network_importance(model.network, numbered(task, model.labels), slopes, torch.abs, CPU))
    first, second = (len(task.nodes) for task in tasks)
    for name, value in anchor(model).importance.items():
        before = own[0].get(name, torch.zeros(()))
        torch.testing.assert_close(value, ((first * before + second * own[1][name]) / (first + second)).detach())
    assert model.state.memory.nodes == first + second
    # The anchor is where the network is now, whatever its way there.
    assert all(torch.equal(anchor(model).values[name], value) for name, value in model.network.tensors().items())


def test_twp_importance_is_the_size_of_both_gradients(tiny_stream: TaskStream):
    task = tiny_stream.task(0)
    model = learned(TWP, tiny_stream, 1, loss_strength=3.0, topology_strength=5.0)
    again = begun(model, task)  # the same network, and the task once more
    encoder = again.network.encoder
    loss = node_cross_entropy(
        again.context.compute.outputs(again.network, again.context.task), slice(None), again.context
    )
    by_loss = gradients(again, loss)
    # Attention by full matrices.
    a = torch.from_numpy(task.graph.normalised.toarray())
    h = a @ torch.from_numpy(task.graph.x) @ encoder.weights[0] + encoder.biases[0]
    attention = (h @ h.tanh().T).masked_fill(a == 0, -torch.inf).softmax(dim=1)
    by_topology = gradients(again, attention.square().sum(dim=1).mean())
    for name, importance in anchor(model).importance.items():
        expected = 3 * by_loss[name].abs() + 5 * by_topology[name].abs()
        torch.testing.assert_close(importance, expected, rtol=1e-3, atol=1e-3 * expected.max().item())
    assert by_topology["encoder.weights.0"].any()


def test_twp_keeps_the_gradient_of_the_loss_small_in_earnest(tiny_stream: TaskStream):
    terms, training = first_step(config(TWP, beta=0.5), tiny_stream.task(0))
    sizes = [part.abs().sum() for part in gradients(training, terms["cross_entropy"]).values()]
    assert terms["minimal"].item() == pytest.approx(0.5 * sum(sizes).item(), rel=1e-5)
    # It pushes the parameters itself: a step down its own gradient makes it smaller.
    push = gradients(training, terms["minimal"])
    assert push["encoder.weights.0"].any()
    with torch.no_grad():
        for name, parameter in training.network.named_parameters():
            parameter.sub_(1e-3 * push[name])
    slope = sum(part.square().sum() for part in push.values()).item()
    assert terms["minimal"].item() - term(training, "minimal").item() == pytest.approx(1e-3 * slope, rel=0.1)


@ANCHORED
def test_the_copy_that_calibrates_leaves_the_importance_out_and_finds_the_same(
    method, options, tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(calibration, "FEWEST", 2)
    ended, end_task = [], method.end_task
    monkeypatch.setattr(method, "end_task", lambda *all_of: ended.append(len(all_of[3].labels)) or end_task(*all_of))
    without = learned(method, tiny_stream, 2, calibration=0.2, **options)
    first, second = (len(tiny_stream.task(index).nodes) for index in range(2))
    assert ended == [first, second]
    # So that copies compute it, too.
    monkeypatch.setattr("ipal.estimator.open_world.calibration.predicts_by_network_alone", lambda method: False)
    whole = learned(method, tiny_stream, 2, calibration=0.2, **options)
    assert [number for number in ended[2:] if number in (first, second)] == [first, second]
    copies = [number for number in ended[2:] if number not in (first, second)]
    assert len(copies) == 10, "five parts of each task are set aside in turn"
    assert all(number < first for number in copies[:5])
    assert all(number < second for number in copies[5:])
    assert len(without.calibration.count) > 0
    for name, value in vars(whole.calibration).items():
        torch.testing.assert_close(vars(without.calibration)[name], value, rtol=0, atol=0)
    for name, value in anchor(whole).importance.items():
        assert torch.equal(anchor(without).importance[name], value)
