"""IPAL without boundaries: small batches in which classes come again and again, some with a single node."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ipal import ConfigError, StoreError
from ipal.config import EncoderConfig, Sampling, TrainConfig, run_config
from ipal.data.datasets import Dataset
from ipal.data.streams import Task, TaskStream
from ipal.learners import IPAL
from ipal.learners.saved import of_state
from ipal.learners.state import State
from ipal.nn import losses
from ipal.nn.encoders import ENCODERS
from ipal.nn.prototypes import PrototypeMemory, pooled_mean, weighted_mean
from ipal.runs.resolved import check_settings
from tests.learning import SMALL, first_step, learn, make

FREE = {"task_free": True, "gamma": 1.0, "node_weights": "uniform"}
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


def free(**options: Any) -> IPAL:
    learner: IPAL = make(IPAL, **{**FREE, **options})
    return learner


def equal(one: State, other: State) -> bool:
    same = one.facts == other.facts and one.tensors.keys() == other.tensors.keys()
    return same and all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())


# ---------------------------------------------------------------------- the loss


def test_a_node_is_compared_with_what_is_remembered_of_its_class_and_not_with_itself(stream: list[Task]) -> None:
    learner = learn(free(**PLAIN), stream[0])
    memory = learner.memory_
    terms, lesson = first_step(learner, stream[1])
    f = learner.training_embeddings(stream[1])
    one, two = (torch.from_numpy(stream[1].labels == label) for label in (1, 2))
    # Class 1: eight nodes are remembered, one is here. Class 2 is new. Class 0 is remembered alone.
    mu = torch.stack([(8 * memory.mean[1] + f[one][0]) / 9, f[two].mean(dim=0), memory.mean[0]])
    expected = F.cross_entropy(losses.cosine(f, mu) / learner.tau, two.long())
    assert lesson.current.tolist() == [1, 2]
    assert terms["contrast"].item() == pytest.approx(expected.item(), rel=1e-4)


def test_in_a_mini_batch_a_remembered_class_without_a_node_still_has_its_prototype(stream: list[Task]) -> None:
    learner = learn(free(), stream[0])
    learner.start(stream[1])
    lesson = learner.prepare(stream[1])
    f = learner.training_embeddings(stream[1])
    here = torch.from_numpy(np.flatnonzero(stream[1].labels == 2)[:2])  # no node of class 1
    mu, absent = lesson.prototypes(f[here], here)
    assert torch.equal(mu[0], learner.memory_.mean[1])
    assert absent is not None
    assert absent.tolist() == [False, False, False]
    first = learn(free())
    first.start(stream[0])
    _, absent = first.prepare(stream[0]).prototypes(f[:1], torch.from_numpy(np.flatnonzero(stream[0].labels == 1)[:1]))
    assert absent is not None
    assert absent.tolist() == [True, False], "of class 0 nothing is known, and no node is there"


def test_all_remembered_prototypes_are_held_by_the_share_of_classes_that_are_not_there(
    stream: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learn(free(gamma=3.0), stream[0])
    held = []
    monkeypatch.setattr(IPAL, "_distill", lambda self, f, before, old: held.append(old.mean) or torch.tensor(10.0))
    terms, _ = first_step(learner, stream[1])
    assert torch.equal(held[0], learner.memory_.mean)
    assert terms["distillation"].item() == pytest.approx(3.0 * 10.0 / 2), "one of two remembered classes is not there"
    again = learn(free(gamma=3.0), stream[0])
    assert "distillation" not in first_step(again, stream[0])[0], "both are there"


def test_samples_are_drawn_of_classes_that_are_not_there(stream: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    learner, asked, draw = learn(free(), *stream[:2]), [], PrototypeMemory.drawn

    def watched(memory: PrototypeMemory, *rest: Any) -> torch.Tensor:
        asked.append(memory.mean)
        return draw(memory, *rest)

    monkeypatch.setattr(PrototypeMemory, "drawn", watched)
    first_step(learner, stream[2])
    (mean,) = asked
    assert torch.equal(mean, learner.memory_.mean[[1]])


# ---------------------------------------------------------------------- the encoder that follows


def test_the_encoder_is_the_mean_of_the_trained_weights_over_all_nodes(stream: list[Task]) -> None:
    learner, sizes, weights = free(), [], []
    for task in stream:
        learn(learner, task)
        sizes.append(len(task.nodes))
        weights.append(learner.fast_["encoder.weights.0"])
    expected = sum(size * weight for size, weight in zip(sizes, weights, strict=True)) / sum(sizes)
    torch.testing.assert_close(learner.parameters()["encoder.weights.0"], expected)
    assert not torch.allclose(weights[-1], expected, atol=1e-4)


def test_momentum_says_how_much_of_the_encoder_stays(stream: list[Task]) -> None:
    learner = learn(free(momentum=0.75), stream[0])
    before = learner.parameters()
    torch.testing.assert_close(before, learner.fast_, rtol=0, atol=0)
    learn(learner, stream[1])
    expected = {name: 0.75 * slow + 0.25 * learner.fast_[name] for name, slow in before.items()}
    torch.testing.assert_close(learner.parameters(), expected)


def test_training_goes_on_from_the_trained_weights_and_the_encoder_is_the_teacher(stream: list[Task]) -> None:
    learner = learn(free(), *stream[:2])
    slow, fast = learner.parameters(), learner.fast_
    learner.start(stream[2])
    torch.testing.assert_close(learner.parameters(), fast, rtol=0, atol=0)
    assert learner.previous_ is not None
    torch.testing.assert_close(dict(learner.previous_.named_parameters()), slow, rtol=0, atol=0)
    lesson = learner.prepare(stream[2])
    assert lesson.before is not None
    teacher = learn(free(), *stream[:2]).training_embeddings(stream[2])
    assert torch.equal(lesson.before.embeddings, teacher)


def test_every_batch_has_the_rate_of_later_tasks(stream: list[Task]) -> None:
    train = TrainConfig(epochs=1, lr_base=0.5, lr_next=1e-3)
    learner = learn(free(train=train), stream[0])
    assert learner.learning_rate_ == 1e-3
    assert [group["lr"] for group in learner.optimizer_.param_groups] == [1e-3]


def test_without_epochs_there_is_no_second_set_of_weights(stream: list[Task]) -> None:
    learner = learn(free(epochs=0), *stream)
    assert learner.fast_ == {}
    assert not [item for item in learner.memory_report()["items"] if item["kind"] == "fast"]


def test_the_memory_report_lists_the_weights_that_are_trained(stream: list[Task]) -> None:
    items = {item["kind"]: item for item in learn(free(), *stream).memory_report()["items"]}
    assert items["fast"]["bytes"] == items["encoder"]["bytes"]


# ---------------------------------------------------------------------- the memory


def test_a_remembered_class_moves_as_its_own_nodes_do_and_another_as_all_do(stream: list[Task]) -> None:
    learner = learn(free(), stream[0])
    memory, task = learner.memory_, stream[1]
    before = learner.training_embeddings(task)
    learn(learner, task)
    f = learner.training_embeddings(task)
    one, two = (torch.from_numpy(task.labels == label) for label in (1, 2))
    weights = losses.proximity_softmax(losses.cosine(before, memory.mean))[:, :1]
    torch.testing.assert_close(learner.memory_.mean[:1], losses.compensate(memory.mean[:1], f, before, weights, 1.0))
    moved = memory.mean[1] + (f - before)[one][0]
    pooled = pooled_mean(moved[None], torch.tensor([8]), f[one], torch.tensor([1]))
    torch.testing.assert_close(learner.memory_.mean[1], pooled[0])
    torch.testing.assert_close(learner.memory_.mean[2], f[two].mean(dim=0))
    assert learner.memory_.count.tolist() == [8, 9, 6]


def test_without_compensation_nothing_moves_but_by_pooling(stream: list[Task]) -> None:
    learner = learn(free(compensation="none"), stream[0])
    first = learner.memory_.mean[0]
    assert torch.equal(learn(learner, stream[1]).memory_.mean[0], first)


@pytest.mark.parametrize("kind", ["pagerank", "uniform"])
def test_untrained_prototypes_do_not_depend_on_the_order_of_batches(kind: str, stream: list[Task]) -> None:
    one, other = (learn(free(epochs=0, node_weights=kind), *tasks) for tasks in (stream, stream[::-1]))
    order = [other.labels_.index(label) for label in one.labels_]
    torch.testing.assert_close(one.memory_.mean, other.memory_.mean[order], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one.memory_.variance, other.memory_.variance[order], rtol=1e-4, atol=1e-5)


def test_with_new_classes_alone_the_first_task_is_that_of_the_paper(tiny_stream: TaskStream) -> None:
    """With one rate for all tasks, what differs is what is done with the tasks before."""
    task = tiny_stream.task(0)
    one, other = learn(free(), task), learn(free(task_free=False), task)
    assert torch.equal(one.memory_.mean, other.memory_.mean)
    torch.testing.assert_close(one.parameters(), other.parameters(), rtol=0, atol=0)


# ---------------------------------------------------------------------- every way to learn


@pytest.mark.parametrize("kind", list(ENCODERS))
def test_every_encoder_learns_small_batches(kind: str, stream: list[Task]) -> None:
    learner = learn(free(encoder=EncoderConfig(kind=kind, hidden=16, width=8, heads=2)), *stream)
    scores = learner.scores(stream[0].graph)
    assert scores.shape == (len(stream[0].nodes), 3)
    assert torch.isfinite(scores).all()


VARIANTS: list[dict[str, Any]] = [
    {},
    {"batch": Sampling(nodes=3, fanouts=(4, 4))},
    {"encoder": SMALL.model_copy(update={"dropout": 0.5})},
    {"train": TrainConfig(epochs=5, moments="reset")},
    {"momentum": 0.5},
    {"distillation": "fd"},
    {"products": "raw", "distillation": "ipad-printed", "compensation": "printed"},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_stopped_between_two_batches_or_two_epochs_it_goes_on_to_the_same_bits(
    options: dict[str, Any], stream: list[Task], tmp_path: Path
) -> None:
    whole = learn(free(**options), *stream).state()
    stopped = learn(free(**options), *stream[:2])
    stopped.state().save(tmp_path / "between")
    again = free(**options)
    again.restore(State.load(tmp_path / "between"))
    assert equal(learn(again, stream[2]).state(), whole)
    for number in range(len(stream)):
        halfway = learn(free(**options), *stream[:number])
        epochs = halfway.learn(stream[number])
        next(epochs), next(epochs)
        halfway.state().save(tmp_path / "halfway")
        epochs.close()
        again = free(**options)
        again.restore(State.load(tmp_path / "halfway"))
        for _ in again.learn(stream[number], first_epoch=2):
            pass
        assert equal(learn(again, *stream[number + 1 :]).state(), whole)


def test_a_batch_that_is_interrupted_was_never_begun(stream: list[Task]) -> None:
    learner = learn(free(), *stream[:2])
    before = learner.state()
    epochs = learner.learn(stream[2])
    next(epochs)
    epochs.close()
    assert equal(learner.state(), before)


def test_a_model_predicts_with_its_encoder_and_goes_on_learning(stream: list[Task], tmp_path: Path) -> None:
    learner = learn(free(), *stream[:2])
    learner.save(tmp_path / "m", moments=True)
    loaded = IPAL.load(tmp_path / "m")
    assert loaded.task_free is True
    assert torch.equal(loaded.scores(stream[2].graph), learner.scores(stream[2].graph))
    assert equal(learn(loaded, stream[2]).state(), learn(learner, stream[2]).state())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fast.encoder.weights.0": None}, "fast|missing"),
        ({"fast.encoder.weights.0": torch.zeros(2, 2)}, "shape"),
        ({"fast.more": torch.zeros(1)}, "not part of it"),
    ],
)
def test_a_model_with_other_trained_weights_is_refused(
    change: dict[str, Any], said: str, stream: list[Task], tmp_path: Path
) -> None:
    state = learn(free(), *stream[:2]).state()
    tensors = {name: tensor for name, tensor in {**state.tensors, **change}.items() if tensor is not None}
    with pytest.raises(StoreError, match=said):
        of_state(IPAL, State(tensors, state.facts), tmp_path / "m", "cpu")


def test_a_model_without_its_trained_weights_is_refused(stream: list[Task], tmp_path: Path) -> None:
    state = learn(free(), *stream[:2]).state()
    tensors = {name: tensor for name, tensor in state.tensors.items() if not name.startswith("fast.")}
    with pytest.raises(StoreError, match="trained further are missing"):
        of_state(IPAL, State(tensors, state.facts), tmp_path / "m", "cpu")


# ---------------------------------------------------------------------- settings and models


def test_models_and_configurations_of_earlier_versions_are_what_they_were(stream: list[Task], tmp_path: Path) -> None:
    learner = learn(make(IPAL, gamma=1.0), *stream[:2])
    assert {"task_free", "momentum"} & learner.settings().keys() == set()
    assert not [name for name in learner.state().tensors if name.startswith("fast")]
    learner.save(tmp_path / "m")
    assert IPAL.load(tmp_path / "m").task_free is False
    plain, told, other = (
        check_settings(run_config({"dataset": "digits", "ipal": settings}))
        for settings in ({}, {"task_free": False, "momentum": None}, {"task_free": True})
    )
    assert "task_free" not in plain.settings
    assert plain.digest == told.digest != other.digest
    assert other.settings["task_free"] is True
    with pytest.raises(ConfigError, match="momentum"):
        IPAL(momentum=1.0)


def test_what_is_kept_does_not_grow_along_the_stream(tiny: Dataset) -> None:
    tasks = [batch(tiny, *((label, at, at + 2) for label in range(6))) for at in range(0, 20, 2)]
    learner = learn(free(epochs=1), tasks[0])
    first = learner.memory_report()
    last = learn(learner, *tasks[1:]).memory_report()
    assert (last["bytes"], last["items"]) == (first["bytes"], first["items"])
    assert last["nodes_behind_class"] == {str(label): 20 for label in range(6)}


def test_shuffled_batches_are_learned(tiny: Dataset) -> None:
    tasks = [batch(tiny, *((label, at, at + 2) for label in range(6))) for at in range(0, 20, 2)]
    learner = learn(free(), *tasks)
    held_out = np.concatenate([np.flatnonzero(tiny.y == label)[20:] for label in range(6)])
    assert np.mean(learner.predict_graph(tiny.graph)[held_out] == tiny.y[held_out]) > 0.9


def test_the_weights_of_a_drift_are_those_of_the_classs_own_nodes(stream: list[Task]) -> None:
    learner = learn(free(), stream[0])
    learner.start(stream[1])
    lesson = learner.prepare(stream[1])
    given = torch.full((len(stream[1].nodes), 2), 0.125)
    found = lesson.drift_weights(given)
    assert torch.equal(found[:, 0], given[:, 0])
    assert found[:, 1].tolist() == (stream[1].labels == 1).astype(float).tolist()
    f = torch.arange(2.0 * len(stream[1].nodes)).reshape(-1, 2)
    torch.testing.assert_close((found.T @ f)[1:], weighted_mean(f, lesson.weights)[:1])
