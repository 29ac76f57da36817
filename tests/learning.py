"""Models that are small and quick, and a look at one step of theirs."""

from typing import Any

import torch
from torch import Tensor

from ipal.backend.runtime import Runtime
from ipal.closed_form.method import Analytic
from ipal.config import EncoderConfig, TrainConfig
from ipal.data.streams import TaskStream
from ipal.data.task import Task
from ipal.engine.trainer import Training, begin_task, finished, numbered, task_context
from ipal.estimator.model import Model, begin_learning, empty_model
from ipal.estimator.settings import LearnerConfig, learner_config, shared_settings
from ipal.methods.base import Method, Terms, Trained

SMALL = EncoderConfig(hidden=16, width=8)
NARROW = 64
"""Columns of the closed form: on a small graph many only take longer."""
CPU = Runtime.of("cpu")


def config(method: type[Method], *, epochs: int = 5, lr: float = 1e-2, **options: Any) -> LearnerConfig:
    """The settings of a small learner of a method; without calibration, unless asked for."""
    shared = {"encoder": SMALL, "train": TrainConfig(epochs=epochs, lr_base=lr, lr_next=lr)}
    narrow = {"width": NARROW} if issubclass(method, Analytic) else {}
    used = {name: shared[name] for name in shared.keys() & set(shared_settings(method))}
    return learner_config(method, {**used, "calibration": 0, **narrow, **options})


def learn(start: LearnerConfig | Model, *tasks: Task, runtime: Runtime = CPU) -> Model:
    """What is learned from tasks, by one that has learned nothing, or by a model."""
    model = start if isinstance(start, Model) else None
    settings = start.config if isinstance(start, Model) else start
    for task in tasks:
        learning = begin_learning(settings, model, task, model.runtime if model else runtime)
        model = learning.finish(finished(learning.epochs()))
    assert model is not None, "there are tasks"
    return model


def learned(method: type[Method], stream: TaskStream, tasks: int, **options: Any) -> Model:
    """What a small learner has learned after some tasks of a stream."""
    return learn(config(method, **options), *(stream.task(index) for index in range(tasks)))


def begun(start: LearnerConfig | Model, task: Task, runtime: Runtime = CPU) -> Training:
    """A task that has begun, before its first step."""
    model = start if isinstance(start, Model) else empty_model(start, task.graph, runtime)
    state, method = begin_task(model.method, model.state, task, model.setup), model.method
    assert isinstance(method, Trained), "it takes steps"
    task = method.training_task(state.memory, numbered(task, state.classes))
    context = method.prepare(state.memory, task_context(state, task, model.runtime))
    return Training(method, state, context, model.setup)


def first_step(start: LearnerConfig | Model, task: Task) -> tuple[Terms, Training]:
    """The loss terms of the first step on a task, before anything is changed by it, and the task that has begun."""
    training = begun(start, task)
    (batch,) = training.batches(0)
    return training.loss(batch), training


def gradients(training: Training, term: Tensor) -> dict[str, Tensor]:
    """Of one term, by every parameter."""
    named = dict(training.network.named_parameters())
    found = torch.autograd.grad(
        term, list(named.values()), retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return dict(zip(named, found, strict=True))


def accuracy(model: Model, stream: TaskStream, index: int) -> float:
    """Share of a task's test nodes that are predicted right."""
    split = stream.test_splits(index)[index]
    return float((model.predict_graph(split.graph).labels[split.test.nodes] == split.test.labels).mean())
