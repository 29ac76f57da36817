"""Dropout in a method: only while a step's loss is computed, and decided by the learner's own generator."""

from typing import Any

import pytest
import torch

from ipal.config import EncoderConfig
from ipal.data.streams import TaskStream
from ipal.learners import METHODS
from ipal.learners.state import State
from ipal.learners.trained import TrainedLearner
from tests.learning import SMALL, learned, make

TRAINED = [name for name, method in METHODS.items() if issubclass(method, TrainedLearner)]
two_methods = pytest.mark.parametrize("method", ["joint", "ipal"])


def dropping(share: float = 0.5) -> EncoderConfig:
    return SMALL.model_copy(update={"dropout": share})


def assert_same(a: State, b: State) -> None:
    assert a.tensors.keys() == b.tensors.keys()
    for name, tensor in a.tensors.items():
        assert torch.equal(tensor, b.tensors[name]), name


@two_methods
def test_the_seed_and_the_share_decide_what_is_dropped(method: str, tiny_stream: TaskStream) -> None:
    first, again, other, none = (
        learned(METHODS[method], tiny_stream, 2, encoder=dropping(share)) for share in (0.5, 0.5, 0.2, 0.0)
    )
    assert_same(first.state(), again.state())
    for learner in (other, none):
        assert not torch.equal(first.encoder_.weights[0], learner.encoder_.weights[0])


@pytest.mark.parametrize("method", TRAINED)
def test_interrupted_within_a_task_it_goes_on_to_the_same_bits(method: str, tiny_stream: TaskStream) -> None:
    whole = learned(METHODS[method], tiny_stream, 2, encoder=dropping())
    stopped = learned(METHODS[method], tiny_stream, 1, encoder=dropping())
    epochs = stopped.learn(tiny_stream.task(1))
    for _ in range(2):
        next(epochs)
    resumed = make(METHODS[method], encoder=dropping())
    resumed.restore(stopped.state())
    for _ in resumed.learn(tiny_stream.task(1), first_epoch=2):
        pass
    assert_same(whole.state(), resumed.state())


@two_methods
def test_predictions_drop_nothing(method: str, tiny_stream: TaskStream) -> None:
    learner = learned(METHODS[method], tiny_stream, 1, encoder=dropping())
    before = learner.state()
    graph = tiny_stream.test_splits(0)[0].graph
    assert torch.equal(learner.scores(graph), learner.scores(graph))
    assert_same(learner.state(), before)


@pytest.mark.parametrize("method", TRAINED)
def test_the_network_is_in_training_mode_in_the_loss_of_a_step_and_nowhere_else(
    method: str, tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make(METHODS[method], encoder=dropping(), epochs=2)
    seen: dict[str, set[bool]] = {}

    def watched(name: str) -> Any:
        hook = getattr(learner, name)

        def call(*arguments: Any) -> Any:
            seen.setdefault(name, set()).update(module.training for module in learner.network_.modules())
            if learner.previous_ is not None:
                assert not learner.previous_["encoder"].training
            return hook(*arguments)

        return call

    hooks = ("begin_task", "prepare", "loss", "adjust_gradients", "end_task")
    for name in hooks:
        monkeypatch.setattr(learner, name, watched(name))
    for index in range(2):
        for _ in learner.learn(tiny_stream.task(index)):
            assert not any(module.training for module in learner.network_.modules())
    assert seen == {name: {name == "loss"} for name in hooks}


def test_training_mode_does_not_outlive_a_loss_that_is_interrupted(
    tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learned(METHODS["joint"], tiny_stream, 1, encoder=dropping())

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(learner, "loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(learner.learn(tiny_stream.task(1)))
    assert not learner.encoder_.training
