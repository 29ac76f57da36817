"""Learners in other processes and threads: what they answer is what they answer here, bit for bit."""

import copy
import multiprocessing
import pickle
import threading
from collections.abc import Generator

import numpy as np
import pytest
import torch

import ipal
from ipal.data.streams import TaskStream
from ipal.engine.trainer import Epoch
from ipal.estimator import files
from ipal.estimator import learner as learner_module
from ipal.estimator.learner import Learner
from ipal.methods.base import Trained
from ipal.state.value import State
from tests.estimator.elsewhere import Own, answered
from tests.estimator.test_estimator import EVERY_METHOD, FEW, data_of, fitted, make, method_of


def quick(method: type[Learner], stream: TaskStream) -> Learner:
    """One task, in a few epochs."""
    short = {"train": FEW.model_copy(update={"epochs": 3})} if issubclass(method_of(method), Trained) else {}
    return fitted(method, stream, tasks=1, **short)


def assert_same(one: Learner, other: Learner) -> None:
    left, right = (files.snapshot(each.model_, moments=True) for each in (one, other))
    assert left.facts == right.facts
    assert left.tensors.keys() == right.tensors.keys()
    for name, tensor in left.tensors.items():
        assert torch.equal(tensor, right.tensors[name]), name


# ---------------------------------------------------------------------- processes


def test_fitted_learners_are_handed_to_a_spawned_process(tiny_stream: TaskStream) -> None:
    learners = {one.__name__: fitted(one, tiny_stream, tasks=1) for one in (ipal.NCM, ipal.EWC, ipal.Analytic)}
    learners["own"] = fitted(Own, tiny_stream, tasks=1)
    given = data_of(tiny_stream, 1)
    task = ipal.GraphData(**{name: values.numpy() for name, values in given.to_dict().items()})
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=answered, args=(learners, learners["NCM"].model_, task, answers), daemon=True)
    process.start()
    found, later, classes = answers.get() if answers._reader.poll(120) else pytest.fail("no answer")
    process.join()
    assert classes == tiny_stream.classes[0]
    for name, one in learners.items():
        assert np.array_equal(one.predict_proba(task), found[name]), name
        assert np.array_equal(one.partial_fit(task).predict_proba(task), later[name]), name


@EVERY_METHOD
def test_a_pickled_learner_goes_on_as_if_never_pickled(method: type[Learner], tiny_stream: TaskStream) -> None:
    one = quick(method, tiny_stream)
    other, copied = pickle.loads(pickle.dumps(one)), copy.deepcopy(one)
    assert type(other) is type(one)
    for again in (other, copied):
        assert_same(one, again)
        assert again.get_params() == one.get_params()
    for each in (one, other):
        each.partial_fit(data_of(tiny_stream, 1))
    assert_same(one, other)


def test_one_that_has_learned_nothing_and_a_model_alone(tiny_stream: TaskStream) -> None:
    assert repr(pickle.loads(pickle.dumps(ipal.IPAL(gamma=0.7)))) == "IPAL(gamma=0.7)"
    own = pickle.loads(pickle.dumps(make(Own, seed=3)))
    assert type(own) is ipal.learner_class(Own)
    assert own.get_params()["seed"] == 3
    model = fitted(ipal.SLDA, tiny_stream, tasks=1).model_
    assert pickle.loads(pickle.dumps(model)).labels == model.labels


# ---------------------------------------------------------------------- threads


class Lockstep:
    """Learning that stops after every epoch, and once all is learned, until somebody has predicted meanwhile."""

    def __init__(self) -> None:
        self.asks, self.answers = threading.Semaphore(0), threading.Semaphore(0)
        self.stops = 0

    def pause(self) -> None:
        self.stops += 1
        self.asks.release()
        assert self.answers.acquire(timeout=60)

    def finished(self, epochs: Generator[Epoch, None, State], each: object) -> State:
        while True:
            try:
                next(epochs)
            except StopIteration as end:
                self.pause()
                return end.value
            self.pause()


@EVERY_METHOD
def test_who_predicts_while_another_thread_learns_asks_the_model_before(
    method: type[Learner], tiny_stream: TaskStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, task = quick(method, tiny_stream), data_of(tiny_stream, 1)
    before, step = learner.model_, Lockstep()
    expected = learner.predict_proba(task), learner.embed(task), learner.predict(task)
    monkeypatch.setattr(learner_module, "finished", step.finished)
    thread = threading.Thread(target=learner.partial_fit, args=(task,), daemon=True)
    thread.start()
    seen = 0
    while thread.is_alive():
        if not step.asks.acquire(timeout=0.05):
            continue
        meanwhile = learner.predict_proba(task), learner.embed(task), learner.predict(task)
        assert learner.model_ is before
        assert all(np.array_equal(*pair) for pair in zip(expected, meanwhile, strict=True))
        seen += 1
        step.answers.release()
    assert seen == step.stops > learner.model_.config.epochs
    assert learner.model_ is not before
    assert len(learner.classes_) == 4
