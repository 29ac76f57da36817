"""Learning rates that are multiplied by the size of the encoder's weights as a task begins."""

from typing import Any

import pytest

from ipal.config import EncoderConfig, TrainConfig
from ipal.data.streams import TaskStream
from ipal.learners import EWC, IPAL, Joint
from ipal.learners.trained import TrainedLearner
from ipal.nn.weight_size import root_mean_square
from tests.learning import SMALL, learn


def relative(method: type[TrainedLearner[Any]], **options: Any) -> Any:
    train = TrainConfig(epochs=2, lr_base=0.5, lr_next=0.25, relative=True)
    return method(**{"encoder": SMALL, "train": train, "calibration": 0.0, **options})


def size(learner: Any) -> float:
    return root_mean_square(learner.encoder_.parameters())


@pytest.mark.parametrize("method", [IPAL, EWC])
def test_each_task_begins_with_a_rate_for_the_weights_of_then(
    method: type[TrainedLearner[Any]], tiny_stream: TaskStream
) -> None:
    learner = relative(method)
    learner.initialise(tiny_stream.task(0).graph.num_features)
    first = size(learner)
    learn(learner, tiny_stream.task(0))
    assert learner.learning_rate_ == 0.5 * first
    second = size(learner)
    assert second != first
    learn(learner, tiny_stream.task(1))
    assert learner.learning_rate_ == 0.25 * second
    assert {group["lr"] for group in learner.optimizer_.param_groups} == {0.25 * second}, "of the head, too"


def test_a_network_that_is_drawn_anew_has_the_rate_of_its_first_weights(tiny_stream: TaskStream) -> None:
    learner = relative(Joint)
    learner.train = learner.train.model_copy(update={"epochs": 0})
    for index in range(2):
        learn(learner, tiny_stream.task(index))
        assert learner.learning_rate_ == 0.5 * size(learner)


def test_without_boundaries_all_batches_have_the_later_rate(tiny_stream: TaskStream) -> None:
    learner = relative(IPAL, task_free=True)
    learner.initialise(tiny_stream.task(0).graph.num_features)
    first = size(learner)
    assert learn(learner, tiny_stream.task(0)).learning_rate_ == 0.25 * first


def test_wider_networks_take_smaller_steps(tiny_stream: TaskStream) -> None:
    rates = []
    for width in (16, 64):
        learner = relative(IPAL, encoder=EncoderConfig(kind="linear", layers=2, hidden=width, width=width))
        rates.append(learn(learner, tiny_stream.task(0)).learning_rate_)
    assert rates[0] > rates[1]
    # The identity of n features has n of n times n weights that are one.
    features = tiny_stream.task(0).graph.num_features
    square = EncoderConfig(kind="linear", layers=2, hidden=features, width=features)
    found = learn(relative(IPAL, encoder=square), tiny_stream.task(0)).learning_rate_
    assert found == pytest.approx(0.5 / features**0.5)


def test_rates_are_as_they_are_set_unless_they_are_relative(tiny_stream: TaskStream) -> None:
    plain = IPAL(encoder=SMALL, train=TrainConfig(epochs=1), calibration=0.0)
    assert learn(plain, tiny_stream.task(0)).learning_rate_ == 1e-3
    assert learn(plain, tiny_stream.task(1)).learning_rate_ == 1e-4


def test_a_task_goes_on_with_the_rate_it_began_with(tiny_stream: TaskStream) -> None:
    tasks = [tiny_stream.task(index) for index in range(2)]
    learner = learn(relative(IPAL), tasks[0])
    begun = learner.learn(tasks[1])
    next(begun)
    rate, again = learner.learning_rate_, relative(IPAL)
    again.restore(learner.state())
    for _ in again.learn(tasks[1], first_epoch=1):
        assert {group["lr"] for group in again.optimizer_.param_groups} == {rate}
    assert again.learning_rate_ == rate != 0.25 * size(again)
