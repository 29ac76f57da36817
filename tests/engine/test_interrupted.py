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
from torch_geometric.data import Data

import ipal
from ipal.data.streams import TaskStream
from ipal.errors import ConfigError, DataError, StoreError
from ipal.learners import EFC, IPAL, METHODS, NCM, PR, Analytic, Learner
from ipal.learners.state import State
from ipal.learners.trained import TrainedLearner
from tests.learning import learn, learned, make

EVERY_METHOD = pytest.mark.parametrize("method", list(METHODS.values()), ids=list(METHODS))
SOURCE = str(Path(ipal.__file__).parent)
POINTS = 12


def small(method: type[Learner]) -> Any:
    return make(method, epochs=2, **({"width": 16} if method is Analytic else {}))


def equal(a: State, b: State) -> bool:
    same = a.facts == b.facts and a.tensors.keys() == b.tensors.keys()
    return same and all(torch.equal(tensor, b.tensors[name]) for name, tensor in a.tensors.items())


def unfitted(learner: Learner) -> bool:
    return not learner.is_fitted and vars(learner) == learner.get_params()


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
def test_a_task_interrupted_at_any_line_was_never_begun(method: type[Learner], tiny_stream: TaskStream) -> None:
    def known(*more: int) -> Learner:
        return learn(small(method), *(tiny_stream.task(index) for index in (0, *more)))

    before = known().state()
    for learner in interrupted_everywhere(known, lambda learner: learn(learner, tiny_stream.task(1))):
        assert equal(learner.state(), before)
        assert learner.settings() == small(method).settings()
        assert not learner.is_learning
    assert equal(learn(learner, tiny_stream.task(2)).state(), known(2).state())


@EVERY_METHOD
def test_a_first_task_interrupted_at_any_line_leaves_the_learner_unfitted(
    method: type[Learner], tiny_stream: TaskStream
) -> None:
    first = interrupted_everywhere(lambda: small(method), lambda learner: learn(learner, tiny_stream.task(0)), points=6)
    for learner in first:
        assert unfitted(learner)
    assert equal(learn(learner, tiny_stream.task(1)).state(), learn(small(method), tiny_stream.task(1)).state())


@pytest.mark.parametrize("method", [IPAL, EFC, PR], ids=lambda method: method.name)
@pytest.mark.parametrize("hook", ["start", "begin_task", "prepare", "loss", "adjust_gradients", "end_task"])
def test_a_hook_that_fails_leaves_the_learner_as_it_was(
    method: type[Learner], hook: str, tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learn(small(method), tiny_stream.task(0))
    before, probabilities = learner.state(), learner.scores(tiny_stream.task(0).graph)

    def failing(self: Any, *arguments: Any) -> Any:
        original(self, *arguments)
        raise DataError("in the middle")

    original = getattr(method, hook)
    with monkeypatch.context() as patched:
        patched.setattr(method, hook, failing)
        with pytest.raises(DataError, match="in the middle"):
            learn(learner, tiny_stream.task(1))
    assert equal(learner.state(), before)
    assert torch.equal(learner.scores(tiny_stream.task(0).graph), probabilities)
    never = learn(small(method), tiny_stream.task(0), tiny_stream.task(2))
    assert equal(learn(learner, tiny_stream.task(2)).state(), never.state())


TRAINED = [method for method in METHODS.values() if issubclass(method, TrainedLearner)]


@pytest.mark.parametrize("method", TRAINED, ids=lambda method: method.name)
def test_a_generator_that_is_closed_or_left_behind_was_never_started(
    method: type[Learner], tiny_stream: TaskStream, tmp_path: Path
) -> None:
    learner = learn(small(method), tiny_stream.task(0))
    before = learner.state()
    epochs = learner.learn(tiny_stream.task(1))
    next(epochs)
    assert learner.is_learning
    assert not equal(learner.state(), before)
    with pytest.raises(ConfigError, match="being learned"):
        learner.save(tmp_path / "m")
    epochs.close()
    assert equal(learner.state(), before)
    # Somebody who holds on to a task half learned, and begins another.
    left = learner.learn(tiny_stream.task(1))
    next(left)
    never = learn(small(method), tiny_stream.task(0), tiny_stream.task(2)).state()
    assert equal(learn(learner, tiny_stream.task(2)).state(), never)
    left.close()
    assert equal(learner.state(), never)


@pytest.mark.parametrize("method", [IPAL, EFC, Analytic], ids=lambda method: method.name)
def test_a_signal_at_any_time_leaves_a_task_whole_or_out(method: type[Learner], tiny_stream: TaskStream) -> None:
    learner = learn(small(method), tiny_stream.task(0))
    before, after = learner.state(), learn(small(method), tiny_stream.task(0), tiny_stream.task(1)).state()

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
                learn(learner, tiny_stream.task(1))
                armed = False
            except KeyboardInterrupt:
                armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            found = learner.state()
            assert equal(found, before) or equal(found, after)
            if equal(found, after):
                learner = learn(small(method), tiny_stream.task(0))
    finally:
        signal.signal(signal.SIGALRM, handler)


@EVERY_METHOD
def test_a_refused_first_task_leaves_the_learner_unfitted(method: type[Learner], tiny_stream: TaskStream) -> None:
    task = tiny_stream.task(0)
    learner = small(method)
    with pytest.raises(DataError, match="No node"):
        learn(learner, type(task)(task.graph, task.nodes[:0], task.labels[:0]))
    assert unfitted(learner)
    learn(learner, task)
    before = learner.state()
    words = np.array(["a", "b"])[np.arange(len(task.nodes)) % 2]
    with pytest.raises(DataError, match="of one kind"):
        learn(learner, type(task)(task.graph, task.nodes, words))
    assert equal(learner.state(), before)


def test_forgetting_and_merging_interrupted_at_any_line_change_nothing(tiny_stream: TaskStream) -> None:
    def model(*tasks: int) -> Analytic:
        known = make(Analytic, width=16, steps=1, sums="per-class")
        return learn(known, *(tiny_stream.task(index) for index in tasks))

    other = model(2)
    before, others = model(0, 1).state(), other.state()
    task = tiny_stream.task(0)
    data = Data(x=torch.from_numpy(task.graph.x), edge_index=torch.from_numpy(task.graph.edges))
    data.y = torch.from_numpy(tiny_stream.y[tiny_stream.task_of == 0])
    data.train_mask, data.forget_mask = torch.zeros(2, task.graph.num_nodes, dtype=torch.bool)
    data.train_mask[task.nodes] = True
    data.forget_mask[task.nodes[:3]] = True
    for action in (
        lambda one: one.forget_class(0),
        lambda one: one.forget_rows(data),
        lambda one: one.forget_nodes(data),
        lambda one: one.merged(other),
    ):
        for learner in interrupted_everywhere(lambda: model(0, 1), action, points=20):
            assert equal(learner.state(), before)
            assert equal(other.state(), others)
    assert equal(learner.forget_class(0).state(), model(0, 1).forget_class(0).state())


@EVERY_METHOD
def test_a_state_that_does_not_fit_leaves_the_learner_as_it_was(method: type[Learner], tiny_stream: TaskStream) -> None:
    learner = learn(small(method), tiny_stream.task(0))
    before = learner.state()
    other = learn(small(method), tiny_stream.task(0), tiny_stream.task(1)).state()
    with pytest.raises(StoreError, match="does not fit"):
        learner.restore(State({**other.tensors, "more": torch.zeros(1)}, other.facts))
    assert equal(learner.state(), before)
    learner.restore(other)
    assert equal(learner.state(), other)


def test_learned_alike_after_an_interruption_also_with_dropout(tiny_stream: TaskStream) -> None:
    """The network draws from the learner's own generator, also after both were copied."""
    dropping = ipal.EncoderConfig(hidden=16, width=8, dropout=0.5)
    learner = learned(IPAL, tiny_stream, 1, encoder=dropping)
    epochs = learner.learn(tiny_stream.task(1))
    next(epochs)
    del epochs
    assert learner.encoder_.generator is learner.generator_
    again = learned(IPAL, tiny_stream, 2, encoder=dropping)
    assert equal(learn(learner, tiny_stream.task(1)).state(), again.state())


def test_gradients_are_on_again_after_an_interruption_that_left_them_off(
    tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        torch.set_grad_enabled(False)  # as torch.no_grad() does, before a signal comes
        raise KeyboardInterrupt

    monkeypatch.setattr(NCM, "absorb", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            learn(NCM(), tiny_stream.task(0))
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
