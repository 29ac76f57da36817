"""Dropout in a method: only while a step's loss is computed, and decided by the learner's own generator."""

from typing import Any

import pytest
import torch

from ipal.config import EncoderConfig
from ipal.data.streams import TaskStream
from ipal.engine.trainer import finished
from ipal.estimator import files
from ipal.estimator.model import Model, begin_learning
from ipal.estimator.registry import METHODS
from ipal.methods.base import Trained
from tests.learning import CPU, SMALL, begun, config, learned

TRAINED = [name for name, method in METHODS.items() if issubclass(method, Trained)]
two_methods = pytest.mark.parametrize("method", ["joint", "ipal"])


def dropping(share: float = 0.5) -> EncoderConfig:
    return SMALL.model_copy(update={"dropout": share})


def assert_same(a: Model, b: Model) -> None:
    ours, theirs = files.checkpoint(a).tensors, files.checkpoint(b).tensors
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@two_methods
def test_the_seed_and_the_share_decide_what_is_dropped(method: str, tiny_stream: TaskStream) -> None:
    first, again, other, none = (
        learned(METHODS[method], tiny_stream, 2, encoder=dropping(share)) for share in (0.5, 0.5, 0.2, 0.0)
    )
    assert_same(first, again)
    for model in (other, none):
        assert not torch.equal(first.network.encoder.weights[0], model.network.encoder.weights[0])


@two_methods
def test_interrupted_within_a_task_it_goes_on_to_the_same_bits(method: str, tiny_stream: TaskStream) -> None:
    whole = learned(METHODS[method], tiny_stream, 2, encoder=dropping())
    settings, task = config(METHODS[method], encoder=dropping()), tiny_stream.task(1)
    stopped = begin_learning(settings, learned(METHODS[method], tiny_stream, 1, encoder=dropping()), task, CPU)
    epochs = stopped.epochs()
    for _ in range(3):  # before the first epoch, and after two
        next(epochs)
    saved = files.checkpoint(stopped.model)
    restored = files.restored(settings, saved, CPU, whole=False, source="it")
    resumed = begin_learning(settings, restored, task, CPU, first_epoch=2)
    assert_same(whole, resumed.finish(finished(resumed.epochs())))


@pytest.mark.parametrize("method", TRAINED)
def test_the_network_is_in_training_mode_in_the_loss_of_a_step_and_nowhere_else(
    method: str, tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, seen = METHODS[method], dict[str, set[bool]]()

    def watched(name: str) -> Any:
        hook = getattr(kind, name)

        def call(self: Any, network: Any, memory: Any, *arguments: Any) -> Any:
            seen.setdefault(name, set()).update(module.training for module in network.modules())
            context = arguments[1] if name == "loss" else arguments[0]
            if context.teacher is not None:
                assert not context.teacher.encoder.training
            return hook(self, network, memory, *arguments)

        return call

    hooks = ("loss", "adjust_gradients", "end_task")
    for name in hooks:
        monkeypatch.setattr(kind, name, watched(name))
    model = None
    for index in range(2):
        learning = begin_learning(config(kind, encoder=dropping(), epochs=2), model, tiny_stream.task(index), CPU)
        epochs = learning.epochs()
        while True:
            try:
                _, state = next(epochs)
            except StopIteration as end:
                model = learning.finish(end.value)
                break
            assert not any(module.training for module in state.network.modules())
    assert seen == {name: {name == "loss"} for name in hooks}


def test_training_mode_does_not_outlive_a_loss_that_is_interrupted(
    tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = begun(learned(METHODS["joint"], tiny_stream, 1, encoder=dropping()), tiny_stream.task(1))

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(METHODS["joint"], "loss", interrupted)
    (batch,) = training.batches(0)
    with pytest.raises(KeyboardInterrupt):
        training.step(batch)
    assert not training.network.encoder.training
