"""IPAL without boundaries: small batches in which classes come again and again, some with a single node."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ipal.config import Sampling
from ipal.data.datasets import Dataset
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.engine.trainer import finished
from ipal.errors import ConfigError, NonFiniteError, StoreError
from ipal.estimator import files
from ipal.estimator.model import Model, begin_learning
from ipal.estimator.settings import LearnerConfig
from ipal.methods.ipal import IPAL
from ipal.methods.ipal_online import OnlineIPAL
from ipal.methods.shared.prototypes import PrototypeMemory, pooled_mean
from ipal.nn import losses
from ipal.state.snapshot import Snapshot
from tests.learning import CPU, SMALL, begun, config, first_step, learn

FREE = {"gamma": 1.0, "node_weights": "uniform"}
PLAIN = {"boundary": False, "replay": False, "distillation": "none"}


def batch(data: Dataset, *groups: tuple[int, int, int]) -> Task:
    """Nodes `begin` to `end` of each class, on a graph of their own."""
    nodes = np.sort(np.concatenate([np.flatnonzero(data.y == label)[begin:end] for label, begin, end in groups]))
    return Task(data.graph.induced(nodes), np.arange(len(nodes)), data.y[nodes])


@pytest.fixture
def stream(tiny: Dataset) -> list[Task]:
    """Classes 0 and 1; class 1 with one node, and 2; then 0 and 2 once more."""
    return [
        batch(tiny, (0, 0, 8), (1, 0, 8)),
        batch(tiny, (1, 8, 9), (2, 0, 6)),
        batch(tiny, (0, 8, 12), (2, 6, 12)),
    ]


def free(**options: Any) -> LearnerConfig:
    return config(OnlineIPAL, **{**FREE, **options})


def prototypes(model: Model) -> PrototypeMemory:
    memory: PrototypeMemory = model.state.memory.prototypes
    return memory


def embedded(model: Model, task: Task) -> torch.Tensor:
    """Training nodes, by the network that predicts."""
    return model.compute.embeddings(model.network, task)


def equal(one: Snapshot, other: Snapshot) -> bool:
    same = one.facts == other.facts and one.tensors.keys() == other.tensors.keys()
    return same and all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())


# ---------------------------------------------------------------------- the loss


def test_a_node_is_compared_with_what_is_remembered_of_its_class_and_not_with_itself(stream: list[Task]) -> None:
    model = learn(free(**PLAIN), stream[0])
    memory = prototypes(model)
    terms, training = first_step(model, stream[1])
    f = embedded(model, stream[1])
    one, two = (torch.from_numpy(stream[1].labels == label) for label in (1, 2))
    # Class 1: eight nodes are remembered, one is here. Class 2 is new. Class 0 is remembered alone.
    mu = torch.stack([(8 * memory.mean[1] + f[one][0]) / 9, f[two].mean(dim=0), memory.mean[0]])
    expected = F.cross_entropy(losses.cosine(f, mu) / training.method.tau, two.long())
    assert training.context.current.tolist() == [1, 2]
    assert terms["contrast"].item() == pytest.approx(expected.item(), rel=1e-4)


def test_in_a_mini_batch_a_remembered_class_without_a_node_still_has_its_prototype(stream: list[Task]) -> None:
    model = learn(free(), stream[0])
    f = embedded(model, stream[1])
    here = torch.from_numpy(np.flatnonzero(stream[1].labels == 2)[:2])  # no node of class 1
    mu, absent = begun(model, stream[1]).context.prototypes(f[here], here)
    assert torch.equal(mu[0], prototypes(model).mean[1])
    assert absent.tolist() == [False, False, False]
    here = torch.from_numpy(np.flatnonzero(stream[0].labels == 1)[:1])
    _, absent = begun(free(), stream[0]).context.prototypes(f[:1], here)
    assert absent.tolist() == [True, False], "of class 0 nothing is known, and no node is there"


def test_all_remembered_prototypes_are_held_by_the_share_of_classes_that_are_not_there(
    stream: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, held = learn(free(gamma=3.0), stream[0]), []

    def distil(self: Any, f: Any, before: Any, context: Any, rng: Any) -> torch.Tensor:
        held.append(context.held.mean)
        return torch.tensor(10.0)

    monkeypatch.setattr(IPAL, "_distil", distil)
    terms, _ = first_step(model, stream[1])
    torch.testing.assert_close(held[0], prototypes(model).mean, rtol=0, atol=0)
    assert terms["distillation"].item() == pytest.approx(3.0 * 10.0 / 2), "one of two remembered classes is not there"
    assert "distillation" not in first_step(model, stream[0])[0], "both are there"


# ---------------------------------------------------------------------- the encoder that follows


def test_the_encoder_is_the_mean_of_the_trained_weights_over_all_nodes(stream: list[Task]) -> None:
    model, sizes, weights = free(), [], []
    for task in stream:
        model = learn(model, task)
        sizes.append(len(task.nodes))
        weights.append(model.state.network.tensors()["encoder.weights.0"])
    expected = sum(size * weight for size, weight in zip(sizes, weights, strict=True)) / sum(sizes)
    torch.testing.assert_close(model.network.tensors()["encoder.weights.0"], expected)
    assert not torch.allclose(weights[-1], expected, atol=1e-4)


def test_momentum_says_how_much_of_the_encoder_stays(stream: list[Task]) -> None:
    model = learn(free(momentum=0.75), stream[0])
    before = model.network.tensors()
    torch.testing.assert_close(before, model.state.network.tensors(), rtol=0, atol=0)
    model = learn(model, stream[1])
    fast = model.state.network.tensors()
    expected = {name: 0.75 * slow + 0.25 * fast[name] for name, slow in before.items()}
    torch.testing.assert_close(model.network.tensors(), expected)
    with pytest.raises(ConfigError, match="momentum"):
        free(momentum=1.0)


def test_training_goes_on_from_the_trained_weights_and_the_encoder_is_the_teacher(stream: list[Task]) -> None:
    model = learn(free(), *stream[:2])
    training = begun(model, stream[2])
    torch.testing.assert_close(training.network.tensors(), model.state.network.tensors(), rtol=0, atol=0)
    torch.testing.assert_close(training.state.teacher.tensors(), model.network.tensors(), rtol=0, atol=0)
    assert torch.equal(training.context.before, embedded(model, stream[2]))


# ---------------------------------------------------------------------- the memory


def test_a_remembered_class_moves_as_its_own_nodes_do_and_another_as_all_do(stream: list[Task]) -> None:
    first, task = learn(free(), stream[0]), stream[1]
    second = learn(first, task)
    old, new, before, f = prototypes(first), prototypes(second), embedded(first, task), embedded(second, task)
    one, two = (torch.from_numpy(task.labels == label) for label in (1, 2))
    weights = losses.proximity_softmax(losses.cosine(before, old.mean))[:, :1]
    torch.testing.assert_close(new.mean[:1], losses.compensate(old.mean[:1], f, before, weights, 1.0))
    moved = old.mean[1] + (f - before)[one][0]
    pooled = pooled_mean(moved[None], torch.tensor([8]), f[one], torch.tensor([1]))
    torch.testing.assert_close(new.mean[1], pooled[0])
    torch.testing.assert_close(new.mean[2], f[two].mean(dim=0))
    assert new.count.tolist() == [8, 9, 6]


@pytest.mark.parametrize("kind", ["pagerank", "uniform"])
def test_untrained_prototypes_do_not_depend_on_the_order_of_batches(kind: str, stream: list[Task]) -> None:
    one, other = (learn(free(epochs=0, node_weights=kind), *tasks) for tasks in (stream, stream[::-1]))
    order = [list(other.labels).index(label) for label in one.labels]
    torch.testing.assert_close(prototypes(one).mean, prototypes(other).mean[order], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(prototypes(one).variance, prototypes(other).variance[order], rtol=1e-4, atol=1e-5)


def test_with_new_classes_alone_the_first_task_is_that_of_the_paper(tiny_stream: TaskStream) -> None:
    """With one rate for all tasks, what differs is what is done with the tasks before."""
    one, other = (learn(made, tiny_stream.task(0)) for made in (free(), config(IPAL, **FREE)))
    assert torch.equal(prototypes(one).mean, other.state.memory.mean)
    torch.testing.assert_close(one.network.tensors(), other.network.tensors(), rtol=0, atol=0)


def test_an_embedding_too_large_to_be_squared_is_not_remembered(tiny: Dataset) -> None:
    """Of one node there is no variance that would say so."""
    task = batch(tiny, (0, 0, 1))
    huge = Task(Graph(task.graph.x * np.float32(1e25), task.graph.edges), task.nodes, task.labels)
    with pytest.raises(NonFiniteError, match=r"prototypes\.squared_lengths"):
        learn(free(epochs=0), huge)


# ---------------------------------------------------------------------- every way to learn


VARIANTS: list[dict[str, Any]] = [
    {},
    {"batch": Sampling(nodes=3, fanouts=(4, 4))},
    {"encoder": SMALL.model_copy(update={"dropout": 0.5}), "momentum": 0.5},
    {"products": "raw", "distillation": "ipad-printed", "compensation": "printed"},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_stopped_between_two_batches_or_two_epochs_it_goes_on_to_the_same_bits(
    options: dict[str, Any], stream: list[Task], tmp_path: Path
) -> None:
    made = free(**options)

    def reloaded(model: Model) -> Model:
        files.checkpoint(model).save(tmp_path / "saved")
        return files.restored(made, Snapshot.load(tmp_path / "saved"), CPU, whole=False, source="it")

    whole, model = files.checkpoint(learn(made, *stream)), None
    for number, task in enumerate(stream):
        learning = begin_learning(made, model, task, CPU)
        epochs = learning.epochs()
        _, _, halfway = next(epochs), next(epochs), next(epochs)
        again = begin_learning(made, reloaded(replace(learning.model, state=halfway.state)), task, CPU, first_epoch=2)
        epochs.close()
        model = again.finish(finished(again.epochs()))
        assert equal(files.checkpoint(learn(model, *stream[number + 1 :])), whole)
        model = reloaded(model)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"memory.slow.encoder.weights.0": None}, "missing"),
        ({"memory.slow.encoder.weights.0": torch.zeros(2, 2)}, "shape"),
        ({"memory.slow.more": torch.zeros(1)}, "not part of it"),
    ],
)
def test_a_model_with_other_weights_that_predict_is_refused(
    change: dict[str, Any], said: str, stream: list[Task]
) -> None:
    refused(learn(free(), *stream[:2]), change, said)


def refused(model: Model, change: dict[str, Any], said: str) -> None:
    saved = files.snapshot(model)
    tensors = {name: tensor for name, tensor in {**saved.tensors, **change}.items() if tensor is not None}
    with pytest.raises(StoreError, match=said):
        files.restored(model.config, Snapshot(tensors, saved.facts), CPU, whole=True, source="it")


# ---------------------------------------------------------------------- streams of many batches


def test_shuffled_batches_are_learned(tiny: Dataset) -> None:
    tasks = [batch(tiny, *((label, at, at + 2) for label in range(6))) for at in range(0, 20, 2)]
    held_out = np.concatenate([np.flatnonzero(tiny.y == label)[20:] for label in range(6)])
    assert np.mean(learn(free(), *tasks).predict_graph(tiny.graph).labels[held_out] == tiny.y[held_out]) > 0.9
