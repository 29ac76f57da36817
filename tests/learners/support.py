"""Learners that are small and quick, and a look at one step of theirs."""

from typing import Any

import torch
from torch import Tensor

from ipal.config import EncoderConfig, TrainConfig
from ipal.data.streams import Task, TaskStream
from ipal.learners import Analytic, Learner
from ipal.learners.trained import TrainedLearner

SMALL = EncoderConfig(hidden=16, width=8)
NARROW = 64
"""Columns of the closed form: on a small graph many only take longer."""


def make(method: type[Learner], *, epochs: int = 5, lr: float = 1e-2, **options: Any) -> Any:
    """A learner of a method; what it does not train, it is not told to.

    Without calibration, unless asked for.
    """
    shared = {"encoder": SMALL, "train": TrainConfig(epochs=epochs, lr_base=lr, lr_next=lr)}
    narrow = {"width": NARROW} if issubclass(method, Analytic) else {}
    options = {"calibration": 0, **narrow, **options}
    return method(**{**{name: shared[name] for name in shared.keys() & method.shared_settings()}, **options})


def learn(learner: Learner, *tasks: Task) -> Any:
    for task in tasks:
        for _ in learner.learn(task):
            pass
    return learner


def learned(method: type[Learner], stream: TaskStream, tasks: int, **options: Any) -> Any:
    return learn(make(method, **options), *(stream.task(index) for index in range(tasks)))


def first_step(learner: TrainedLearner[Any], task: Task) -> tuple[dict[str, Tensor], Any]:
    """The loss terms of the first step on a task, before anything is changed by it, and what was prepared."""
    learner.start(task)
    prepared = learner.prepare(task)
    (batch,) = learner.batches(task, 0)
    return learner.loss(batch, prepared), prepared


def gradients(learner: TrainedLearner[Any], term: Tensor) -> dict[str, Tensor]:
    """Of one term, by every parameter."""
    named = dict(learner.network_.named_parameters())
    found = torch.autograd.grad(
        term, list(named.values()), retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return dict(zip(named, found, strict=True))


def accuracy(learner: Learner, stream: TaskStream, index: int) -> float:
    """Share of a task's test nodes that are predicted right."""
    exam = stream.exams(index)[index]
    return float((learner.predict_graph(exam.graph)[exam.test.nodes] == exam.test.labels).mean())
