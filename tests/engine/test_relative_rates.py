"""Learning rates that are multiplied by the size of the encoder's weights as a task begins."""

from typing import Any

import pytest

from ipal.config import TrainConfig
from ipal.data.streams import TaskStream
from ipal.engine.trainer import finished
from ipal.estimator import files
from ipal.estimator.model import Model, begin_learning, empty_model
from ipal.estimator.settings import LearnerConfig
from ipal.methods.base import Trained
from ipal.methods.ewc import EWC
from ipal.methods.ipal import IPAL
from ipal.methods.ipal_online import OnlineIPAL
from ipal.methods.joint import Joint
from ipal.nn.network import root_mean_square
from tests.learning import CPU, config, learn


def relative(method: type[Trained], *, epochs: int = 2, **options: Any) -> LearnerConfig:
    train = TrainConfig(epochs=epochs, lr_base=0.5, lr_next=0.25, relative=True)
    return config(method, train=train, **options)


def size(model: Model) -> float:
    assert model.state.network is not None
    return root_mean_square(model.state.network.encoder.parameters())


def rates(model: Model) -> set[float]:
    assert model.state.optimizer is not None
    return {model.state.optimizer.lr}


@pytest.mark.parametrize("method", [IPAL, EWC])
def test_each_task_begins_with_a_rate_for_the_weights_of_then(method: type[Trained], tiny_stream: TaskStream) -> None:
    first = empty_model(relative(method), tiny_stream.task(0).graph, CPU)
    second = learn(relative(method), tiny_stream.task(0))
    assert second.state.learning_rate == 0.5 * size(first)
    assert size(second) != size(first)
    third = learn(second, tiny_stream.task(1))
    assert third.state.learning_rate == 0.25 * size(second)
    assert rates(third) == {0.25 * size(second)}, "of the head, too"


def test_a_network_that_is_drawn_anew_has_the_rate_of_its_first_weights(tiny_stream: TaskStream) -> None:
    model = learn(relative(Joint, epochs=0), tiny_stream.task(0))
    assert model.state.learning_rate == 0.5 * size(model)
    model = learn(model, tiny_stream.task(1))
    assert model.state.learning_rate == 0.5 * size(model)


def test_without_boundaries_all_batches_have_the_later_rate(tiny_stream: TaskStream) -> None:
    first = empty_model(relative(OnlineIPAL), tiny_stream.task(0).graph, CPU)
    assert learn(relative(OnlineIPAL), tiny_stream.task(0)).state.learning_rate == 0.25 * size(first)


def test_a_task_goes_on_with_the_rate_it_began_with(tiny_stream: TaskStream) -> None:
    tasks, settings = [tiny_stream.task(index) for index in range(2)], relative(IPAL)
    learning = begin_learning(settings, learn(settings, tasks[0]), tasks[1], CPU)
    epochs = learning.epochs()
    next(epochs), next(epochs)
    rate = learning.model.state.learning_rate
    saved = files.checkpoint(learning.model)
    again = begin_learning(
        settings, files.restored(settings, saved, CPU, whole=False, source="it"), tasks[1], CPU, first_epoch=1
    )
    assert rates(again.model) == {rate}
    model = again.finish(finished(again.epochs()))
    assert model.state.learning_rate == rate != 0.25 * size(model)
    assert rates(model) == {rate}
