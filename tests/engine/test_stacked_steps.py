"""Runs of one shape are computed as one: each gets what it gets alone, but for rounding."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from ipal.config import EncoderConfig, ProtocolConfig
from ipal.data.datasets import load
from ipal.data.streams import TaskStream
from ipal.engine.executors.stacked import Stack, are_alike
from ipal.errors import NonFiniteError
from ipal.estimator.model import Model, begin_learning
from ipal.estimator.settings import LearnerConfig
from ipal.evaluation.evaluate import evaluate
from ipal.methods.bare import Bare
from ipal.methods.ipal import IPAL
from ipal.methods.lwf import LwF
from ipal.state.value import are_same, network_tensors, outline
from tests.learning import CPU, config, learn

ENCODER = EncoderConfig(hidden=8, width=8)


@pytest.fixture(scope="module")
def stream() -> TaskStream:
    data = load("synthetic:nodes=240,classes=6,features=12")
    return TaskStream(data.graph, data.y, (2, 2, 2), ProtocolConfig(), seed=0)


def learned(stream: TaskStream, configs: Sequence[LearnerConfig], tasks: int = 2) -> list[Model]:
    """Each by itself."""
    return [learn(one, *map(stream.task, range(tasks))) for one in configs]


def ipals(**settings: Any) -> list[LearnerConfig]:
    common: Any = {"encoder": ENCODER, "epochs": 3, **settings}
    return [config(IPAL, gamma=gamma, **common) for gamma in (0.1, 0.4, 30.0)]


def lwfs() -> list[LearnerConfig]:
    return [config(LwF, strength=strength, encoder=ENCODER, epochs=3) for strength in (0.1, 1.0)]


def alike(models: Sequence[Model]) -> bool:
    return are_alike([model.method for model in models], [model.state for model in models])  # type: ignore[misc]


# ---------------------------------------------------------------------- tests


@pytest.mark.parametrize("made", [ipals, lwfs])
def test_models_tested_together_score_as_each_alone(made: Any, stream: TaskStream) -> None:
    models = learned(stream, made())
    assert alike(models)
    found = evaluate(models, stream.test_splits(1), "micro")
    for model, together in zip(models, found, strict=True):
        alone = evaluate([model], stream.test_splits(1), "micro")[0]
        assert together == alone


# ---------------------------------------------------------------------- values of several runs as one


def test_tensors_are_the_same_if_all_are_equal() -> None:
    one, nan = torch.ones(2), torch.tensor([1.0, torch.nan])
    places = [(one, one.clone()), (one, 2 * one), (nan, nan), (nan, nan.clone()), (one, one)]
    assert are_same(places) == [True, False, True, False, True]
    assert are_same([]) == []


def test_values_with_one_outline_differ_in_numbers_of_tensors_alone(stream: TaskStream) -> None:
    one, other, task = torch.ones(2), torch.zeros(2), stream.task(0)
    same = {"a": [one, 3.0], "task": task}
    assert outline(same) == outline({"a": [other, 3.0], "task": task})
    for differs in ({"a": [one[:1], 3.0]}, {"a": [one, 4.0]}, {"a": (one, 3.0)}, {"task": replace(task)}):
        assert outline(same) != outline({**same, **differs})


# ---------------------------------------------------------------------- steps


def stacked(stack: Stack, stream: TaskStream, configs: Sequence[LearnerConfig], tasks: int = 2) -> list[Model]:
    """All take one epoch in turn."""
    models: list[Model | None] = [None] * len(configs)
    for task in (stack.shared(stream.task(index)) for index in range(tasks)):
        begun = [begin_learning(one, model, task, CPU, stack) for one, model in zip(configs, models, strict=True)]
        under_way = {place: learning.epochs() for place, learning in enumerate(begun)}
        while under_way:
            for place, epochs in tuple(under_way.items()):
                try:
                    next(epochs)
                except StopIteration as end:
                    models[place] = begun[place].finish(end.value)
                    del under_way[place]
    return models  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class Choosing(Bare):
    """A method with a number that decides in the open, where nothing can be mapped."""

    number: float = 0.0

    name = "choosing"
    title = "Choosing"

    def loss(self, *arguments: Any) -> Any:
        terms = super().loss(*arguments)
        return {name: (2 if float(self.number) > 0.5 else 1) * term.square() for name, term in terms.items()}


@dataclass(frozen=True, kw_only=True)
class Adjusting(Bare):
    """A method with a number that is no part of the loss, and still makes a difference."""

    number: float = 0.0

    name = "adjusting"
    title = "Adjusting"

    def adjust_gradients(self, network: Any, *_: Any) -> None:
        for parameter in network.parameters():
            parameter.grad += self.number


@pytest.mark.parametrize("method", [Choosing, Adjusting])
def test_a_method_that_cannot_be_mapped_takes_the_steps_of_each_alone(method: Any, stream: TaskStream) -> None:
    configs, stack = [config(method, number=number, epochs=3) for number in (0.0, 0.7)], Stack()
    together, alone = stacked(stack, stream, configs), learned(stream, configs)
    assert stack.largest == 0
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one.state.network.encoder.weights[0], other.state.network.encoder.weights[0])
    assert not torch.equal(alone[0].state.network.encoder.weights[0], alone[1].state.network.encoder.weights[0])


@dataclass(frozen=True, kw_only=True)
class Taught(Bare):
    """A method whose loss asks the network before the task itself."""

    number: float = 0.0

    name = "taught"
    title = "Taught"

    def loss(self, network: Any, memory: Any, batch: Any, context: Any, rng: Any) -> Any:
        terms = super().loss(network, memory, batch, context, rng)
        if context.teacher is None:
            return {name: (1 + self.number) * term for name, term in terms.items()}
        moved = network.encoder(batch.graph) - context.teacher.encoder(batch.graph)
        return {**terms, "held": moved.square().mean()}


def test_each_has_its_own_network_before_the_task(stream: TaskStream) -> None:
    configs, stack = [config(Taught, number=number, epochs=4) for number in (0.0, 5.0)], Stack()
    together, alone = stacked(stack, stream, configs), learned(stream, configs)
    assert stack.largest == 2
    for one, other in zip(together, alone, strict=True):
        for name, tensor in network_tensors(one.state.network).items():
            torch.testing.assert_close(tensor, network_tensors(other.state.network)[name], rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------- those who wait


def test_one_whose_numbers_are_lost_fails_alone() -> None:
    stack = Stack()

    def work(some: Any) -> list[int]:
        if 2 in some:
            raise NonFiniteError("lost")
        return list(some)

    first, second, third = (stack.waiting("a", own) for own in (1, 2, 3))
    with first as one, second as two, third as three:
        assert one.together(work) == 1
        with pytest.raises(NonFiniteError):
            two.together(work)
        assert three.together(work) == 3
