"""One value with all that a run computes with: whoever has it, in whatever thread, computes with the same."""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from ipal.backend.operators import operators
from ipal.backend.runtime import Runtime
from ipal.closed_form.method import Analytic
from ipal.config import ProtocolConfig
from ipal.data.graph import Graph
from ipal.data.streams import TaskStream
from ipal.estimator import files
from ipal.estimator.learners import learner_class
from ipal.methods.base import Method
from ipal.methods.ipal import IPAL
from ipal.nn import embed
from ipal.nn.compute import GraphCompute
from ipal.system.memory_budget import Budget
from tests.estimator.test_estimator import data_of
from tests.learning import config, learn


def here(work: Callable[[], object]) -> object:
    return work()


def in_a_thread(work: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


@pytest.mark.parametrize("call", [here, in_a_thread])
def test_a_budget_holds_in_every_thread(call: Callable[..., object], tiny_stream: TaskStream) -> None:
    graph, short = tiny_stream.graph, Runtime.of(budget=Budget(1000))
    assert isinstance(graph.x, np.ndarray)
    stream = TaskStream(Graph(graph.x.copy(), graph.edges), tiny_stream.y, None, ProtocolConfig(), seed=0)
    part = call(lambda: stream.within(short.budget).task(0).graph.x)
    assert isinstance(part, np.memmap)
    assert call(lambda: embed.fits(graph, short.budget)) is False
    assert isinstance(call(lambda: GraphCompute(short).propagated(stream.graph, 2, 0.1)), np.memmap)
    assert short.budget.taken <= 500


def test_runtimes_on_one_device_share_what_is_derived_of_a_graph(tiny_stream: TaskStream) -> None:
    task = tiny_stream.task(0)
    first = operators(task, Runtime.of())
    assert operators(task, Runtime.of(threads=2, budget=Budget(1))) is first


@pytest.mark.parametrize("method", [IPAL, Analytic], ids=lambda method: method.name)
def test_a_learner_makes_its_runtime_itself_and_keeps_the_one_it_is_given(
    method: type[Method], tiny_stream: TaskStream
) -> None:
    settings, runtime = config(method, epochs=2), Runtime.of(threads=1, budget=Budget(10**12))
    learner = learner_class(method)(**settings.given).partial_fit(data_of(tiny_stream, 0))
    assert learner.model_.runtime == Runtime.of("cpu")
    plain, given = (learn(settings, tiny_stream.task(0), runtime=one) for one in (Runtime.of(), runtime))
    assert given.runtime is runtime
    assert learner_class(method)._of(given).partial_fit(data_of(tiny_stream, 1)).model_.runtime is runtime
    state, same = files.checkpoint(given), files.checkpoint(plain)
    assert state.facts == same.facts, "it is no part of the state"
    assert all(torch.equal(tensor, same.tensors[name]) for name, tensor in state.tensors.items())


def test_a_runtime_elsewhere_is_another_one() -> None:
    ours = Runtime.of(budget=Budget(7), threads=3)
    assert pickle.loads(pickle.dumps(ours)) == Runtime.of()
    assert copy.deepcopy(ours) is ours
