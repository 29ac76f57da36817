"""Learners of one shape are computed as one: each gets what it gets alone, but for rounding."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig, ProtocolConfig, Sampling, TrainConfig
from ipal.data.datasets import load
from ipal.data.streams import TaskStream
from ipal.errors import NonFiniteError
from ipal.evaluation.evaluate import evaluate, evaluate_all
from ipal.learners import LwF
from ipal.learners.ipal import IPAL
from ipal.learners.mapped import Mapped, are_alike, are_same, changes, looking
from ipal.learners.stacked import Stack
from ipal.learners.trained import TrainedLearner

SMALL: dict[str, Any] = {"train": TrainConfig(epochs=3), "calibration": 0.0}
ENCODER = EncoderConfig(hidden=8, width=8)


@pytest.fixture(scope="module")
def stream() -> TaskStream:
    data = load("synthetic:nodes=240,classes=6,features=12")
    return TaskStream(data.graph, data.y, (2, 2, 2), ProtocolConfig(), seed=0)


def learned(stream: TaskStream, learners: Sequence[TrainedLearner[Any]], tasks: int = 2) -> Any:
    """Each by itself."""
    for index in range(tasks):
        for learner in learners:
            for _ in learner.learn(stream.task(index)):
                pass
    return learners


def ipals(**settings: Any) -> list[IPAL]:
    return [IPAL(gamma=gamma, encoder=ENCODER, **{**SMALL, **settings}) for gamma in (0.1, 0.4, 30.0)]


def lwfs() -> list[LwF]:
    return [LwF(strength=strength, encoder=ENCODER, **SMALL) for strength in (0.1, 1.0)]


@pytest.mark.parametrize("made", [ipals, lwfs])
def test_exams_taken_together_are_those_of_each_alone(made: Any, stream: TaskStream) -> None:
    learners = learned(stream, made())
    assert are_alike(learners)
    found = evaluate_all(learners, stream.test_splits(1), "micro", looking(learners))
    for learner, together in zip(learners, found, strict=True):
        alone = evaluate(learner, stream.test_splits(1), "micro")
        assert together.row == alone.row
        assert together.clouds.keys() == alone.clouds.keys()
        for name, cloud in alone.clouds.items():
            torch.testing.assert_close(tuple(together.clouds[name]), tuple(cloud), rtol=1e-4, atol=1e-5)


def test_those_that_are_not_alike_look_one_by_one(stream: TaskStream) -> None:
    one, other = learned(stream, [*ipals()[:1], *ipals(k=3)[:1]])
    assert not are_alike([one, other])
    assert not are_alike([one])
    graph, nodes = stream.test_splits(1)[0].graph, torch.arange(5)
    for learner, look in zip([one, other], looking([one, other])(graph, nodes), strict=True):
        alone = learner.look(graph, nodes)
        assert look.labels.tolist() == alone.labels.tolist()
        assert torch.equal(look.scores, alone.scores)


def test_those_with_attention_are_not_mapped(stream: TaskStream) -> None:
    gat = EncoderConfig(kind="gat", hidden=8, width=8)
    learners = [IPAL(gamma=gamma, encoder=gat, **SMALL) for gamma in (0.1, 0.4)]
    assert not are_alike(learned(stream, learners, tasks=1))


def test_mini_batches_are_no_obstacle_to_exams(stream: TaskStream) -> None:
    learners = learned(stream, ipals(batch=Sampling(nodes=20)), tasks=1)
    assert are_alike(learners)


def test_what_is_mapped_has_the_tensors_and_numbers_of_each(stream: TaskStream) -> None:
    learners = learned(stream, ipals())
    beside = [torch.full((2,), float(place)) for place in range(3)]
    found = Mapped(learners, beside)(lambda one, own: (one.gamma + own, one.memory_.mean, one.memory_.count))
    for place, (numbers, mean, count) in enumerate(zip(*found, strict=True)):
        assert numbers.tolist() == pytest.approx([learners[place].gamma + place] * 2)
        assert torch.equal(mean, learners[place].memory_.mean)
        assert torch.equal(count, learners[place].memory_.count)


def test_tensors_are_the_same_if_all_are_equal() -> None:
    one, nan = torch.ones(2), torch.tensor([1.0, torch.nan])
    places = [(one, one.clone()), (one, 2 * one), (nan, nan), (nan, nan.clone()), (one, one)]
    assert are_same(places) == [True, False, True, False, True]
    assert are_same([]) == []


@pytest.mark.parametrize("common", [{}, {"products": "raw", "compensation": "printed"}], ids=str)
def test_the_end_of_a_task_is_that_of_each_alone(common: dict[str, Any], stream: TaskStream) -> None:
    learners = learned(stream, ipals(**common), tasks=1)
    for learner in learners:
        learner.start(stream.task(1))
        learner.encoder_.weights[0].data *= 1 + learner.gamma / 100
    task, lessons = stream.task(1), [learner.prepare(stream.task(1)) for learner in learners]
    known = [learner.memory_ for learner in learners]
    found = changes(learners, lessons, lambda one, lesson: one.end_task(task, lesson))
    assert [learner.memory_ for learner in learners] == known  # they are as they were
    for learner, lesson, changed in zip(learners, lessons, found, strict=True):
        assert changed.keys() == {"memory_"}
        with torch.no_grad():
            learner.end_task(task, lesson)
        for name in ("mean", "variance", "count"):
            together, alone = (getattr(memory, name) for memory in (changed["memory_"], learner.memory_))
            torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
            assert together.is_contiguous()


def test_changes_of_those_that_are_not_alike_are_found_one_by_one(stream: TaskStream) -> None:
    learners = [*ipals()[:1], *ipals(k=3)[:1]]
    task, lessons = stream.task(0), []
    for learner in learners:
        learner.runtime_ = Runtime.of()
        learner.start(task)
        lessons.append(learner.prepare(task))
    found = changes(learners, lessons, lambda one, lesson: one.end_task(task, lesson))
    for learner, lesson, changed in zip(learners, lessons, found, strict=True):
        assert len(learner.memory_) == 0
        with torch.no_grad():
            learner.end_task(task, lesson)
        assert torch.equal(changed["memory_"].mean, learner.memory_.mean)


def test_those_who_wait_for_the_same_have_it_done_at_once() -> None:
    stack, asked = Stack(), list[list[int]]()
    one, other, third = (stack.waiting(None, what, own) for own, what in ((1, "a"), (2, "a"), (3, "b")))  # type: ignore[arg-type]

    def work(some: Any) -> list[int]:
        asked.append([one.beside for one in some])
        return [10 * one.beside for one in some]

    with one as first, third as last:
        with other as second:
            assert second.together(work) == 20
        assert first.together(work) == 10
        assert last.together(work) == 30
        assert asked == [[1, 2], [3]]
    with stack.waiting(None, "a", 4) as late:  # type: ignore[arg-type]
        assert late.together(work) == 40


def test_one_whose_numbers_are_lost_fails_alone() -> None:
    stack = Stack()

    def work(some: Any) -> list[int]:
        if any(one.beside == 2 for one in some):
            raise NonFiniteError("lost")
        return [one.beside for one in some]

    first, second, third = (stack.waiting(None, "a", own) for own in (1, 2, 3))  # type: ignore[arg-type]
    with first as one, second as two, third as three:
        assert one.together(work) == 1
        with pytest.raises(NonFiniteError):
            two.together(work)
        assert three.together(work) == 3
