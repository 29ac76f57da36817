"""A task is learned in whole or not at all: interrupted anywhere, a learner is what it was before."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import ipal
from ipal.closed_form.method import Analytic
from ipal.data.streams import TaskStream
from ipal.errors import DataError
from ipal.estimator import files
from ipal.estimator.learner import Learner
from ipal.estimator.model import Model, begin_learning
from ipal.estimator.registry import METHODS
from ipal.methods.base import Method, Trained
from ipal.methods.efc import EFC
from ipal.methods.ipal import IPAL
from ipal.methods.ncm import NCM
from ipal.methods.pr import PR
from tests.estimator.test_estimator import data_of, make
from tests.learning import CPU, SMALL, learn, learned

EVERY_METHOD = pytest.mark.parametrize("method", list(METHODS.values()), ids=list(METHODS))
SOURCE = str(Path(ipal.__file__).parent)
POINTS = 8


def small(method: type[Method], **options: Any) -> Learner:
    more: Any = {"train": {"epochs": 2}, "encoder": SMALL} if issubclass(method, Trained) else {}
    more |= {"width": 16} if method is Analytic else {}
    return make(method, calibration=0.0, **more, **options)


def taught(learner: Learner, stream: TaskStream, *tasks: int) -> Learner:
    for index in tasks:
        learner.partial_fit(data_of(stream, index))
    return learner


def equal(a: Model | Learner, b: Model | Learner) -> bool:
    """All that is kept, and needed to go on, is the same to the bit."""
    left, right = (files.checkpoint(one.model_ if isinstance(one, Learner) else one) for one in (a, b))
    same = left.facts == right.facts and left.tensors.keys() == right.tensors.keys()
    return same and all(torch.equal(tensor, right.tensors[name]) for name, tensor in left.tensors.items())


class Interruption:
    """Counts the lines of the package that are run, and raises at one of them."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.lines = at, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                raise KeyboardInterrupt
        return self


@contextmanager
def traced(at: int | None = None) -> Iterator[Interruption]:
    interruption, before = Interruption(at), sys.gettrace()
    sys.settrace(interruption)
    try:
        yield interruption
    finally:
        sys.settrace(before)


def interrupted_everywhere(
    known: Callable[[], Any], action: Callable[[Any], object], points: int = POINTS
) -> Iterator[Any]:
    """A learner on which something was begun and interrupted, at one line after the other."""
    learner, other, first, second = known(), known(), known(), known()
    action(first)  # it lives on, so that the caches of graphs stay filled
    with traced() as whole:
        action(second)
    for one in (learner, other):  # from now on their own caches are filled too, and lines are the same every time
        with traced(whole.lines - 5), pytest.raises(KeyboardInterrupt):
            action(one)
    yield learner
    with traced() as whole:
        action(other)
    for at in [1, *np.sort(np.random.default_rng(0).integers(2, whole.lines - 4, points)).tolist()]:
        with traced(at), pytest.raises(KeyboardInterrupt):
            action(learner)
        yield learner


@EVERY_METHOD
def test_a_task_interrupted_at_any_line_was_never_begun(method: type[Method], tiny_stream: TaskStream) -> None:
    def known(*more: int) -> Learner:
        return taught(small(method), tiny_stream, 0, *more)

    before, task = known(), data_of(tiny_stream, 1)
    for learner in interrupted_everywhere(known, lambda learner: learner.partial_fit(task)):
        assert equal(learner, before)
        assert learner.get_params() == small(method).get_params()
    assert equal(taught(learner, tiny_stream, 2), known(2))


@pytest.mark.parametrize("method", [IPAL, EFC, Analytic], ids=lambda method: method.name)
def test_a_first_task_interrupted_at_any_line_leaves_the_learner_unfitted(
    method: type[Method], tiny_stream: TaskStream
) -> None:
    task = data_of(tiny_stream, 0)
    first = interrupted_everywhere(lambda: small(method), lambda learner: learner.partial_fit(task), points=6)
    for learner in first:
        assert not learner.__sklearn_is_fitted__()
    assert equal(taught(learner, tiny_stream, 1), taught(small(method), tiny_stream, 1))


@pytest.mark.parametrize("method", [IPAL, EFC, PR], ids=lambda method: method.name)
def test_a_task_half_learned_and_left_behind_was_never_begun(method: type[Method], tiny_stream: TaskStream) -> None:
    model, before = (learned(method, tiny_stream, 1, epochs=2) for _ in range(2))
    learning = begin_learning(model.config, model, tiny_stream.task(1), CPU)
    epochs = learning.epochs()
    next(epochs), next(epochs)
    assert not equal(learning.model, before)
    assert equal(model, before)
    # Somebody who holds on to it, and begins another.
    assert equal(learn(model, tiny_stream.task(2)), learn(before, tiny_stream.task(2)))
    epochs.close()
    assert equal(model, before)


# Python drops a signal that comes while it runs a finaliser, and says so: the task then ends as if none had come.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("method", [IPAL, EFC, Analytic], ids=lambda method: method.name)
def test_a_signal_at_any_time_leaves_a_task_whole_or_out(method: type[Method], tiny_stream: TaskStream) -> None:
    learner, before, after = (taught(small(method), tiny_stream, *tasks) for tasks in ((0,), (0,), (0, 1)))

    armed = False  # an alarm that comes late must not end the test

    def interrupt(*_: Any) -> None:
        if armed:
            raise KeyboardInterrupt

    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        for delay in np.geomspace(1e-4, 0.05, 15):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, delay)
                taught(learner, tiny_stream, 1)
                armed = False
            except KeyboardInterrupt:
                armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert equal(learner, before) or equal(learner, after)
            if equal(learner, after):
                learner = taught(small(method), tiny_stream, 0)
    finally:
        signal.signal(signal.SIGALRM, handler)


@pytest.mark.parametrize("method", [IPAL, Analytic], ids=lambda method: method.name)
def test_a_refused_task_leaves_the_learner_as_it_was(method: type[Method], tiny_stream: TaskStream) -> None:
    learner, task = small(method), data_of(tiny_stream, 0)
    nothing = task.clone()
    nothing.train_mask = torch.zeros_like(task.train_mask)
    with pytest.raises(DataError, match="No node"):
        learner.partial_fit(nothing)
    assert not learner.__sklearn_is_fitted__()
    before = learner.partial_fit(task).model_
    words = task.clone()
    words.y = np.array(["a", "b"])[task.y.numpy() % 2]
    with pytest.raises(DataError, match="of one kind"):
        learner.partial_fit(words)
    assert learner.model_ is before


def test_forgetting_and_merging_interrupted_at_any_line_change_nothing(tiny_stream: TaskStream) -> None:
    def known(*tasks: int) -> Learner:
        return taught(small(Analytic, steps=1), tiny_stream, *tasks)

    other, before, others = known(2), known(0, 1), known(2)
    graphs = data, _ = [data_of(tiny_stream, task) for task in (0, 1)]
    for graph in graphs:
        graph.forget_mask = torch.zeros_like(graph.train_mask)
    data.forget_mask[tiny_stream.task(0).nodes[:3]] = True
    for action in (
        lambda one: ipal.forget_class(one, 0, graphs),
        lambda one: ipal.forget_rows(one, graphs),
        lambda one: ipal.forget_nodes(one, graphs),
        lambda one: ipal.merge_models(one, other),
    ):
        for learner in interrupted_everywhere(lambda: known(0, 1), action, points=20):
            assert equal(learner, before)
            assert equal(other, others)
    assert equal(ipal.forget_class(learner, 0, graphs), ipal.forget_class(before, 0, graphs))


def test_gradients_are_on_again_after_an_interruption_that_left_them_off(
    tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        torch.set_grad_enabled(False)  # as torch.no_grad() does, before a signal comes
        raise KeyboardInterrupt

    monkeypatch.setattr(NCM, "end_task", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            ipal.NCM().partial_fit(data_of(tiny_stream, 0))
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
