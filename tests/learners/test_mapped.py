"""Learners of one shape are computed as one: each gets what it gets alone, but for rounding."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from ipal.config import EncoderConfig, ProtocolConfig, Sampling, TrainConfig
from ipal.data.datasets import load
from ipal.data.streams import TaskStream
from ipal.errors import NonFiniteError
from ipal.evaluation.evaluate import evaluate, evaluate_all
from ipal.learners import LwF
from ipal.learners.ipal import IPAL
from ipal.learners.mapped import Mapped, are_alike, are_same, looking
from ipal.learners.stacked import Stack
from ipal.learners.trained import TrainedLearner

SMALL: dict[str, Any] = {"train": TrainConfig(epochs=3), "passes": 0, "calibration": 0.0}
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
    found = evaluate_all(learners, stream.exams(1), "micro", looking(learners))
    for learner, together in zip(learners, found, strict=True):
        alone = evaluate(learner, stream.exams(1), "micro")
        assert together.row == alone.row
        assert together.clouds.keys() == alone.clouds.keys()
        for name, cloud in alone.clouds.items():
            torch.testing.assert_close(tuple(together.clouds[name]), tuple(cloud), rtol=1e-4, atol=1e-5)


def test_those_that_are_not_alike_look_one_by_one(stream: TaskStream) -> None:
    one, other = learned(stream, [*ipals()[:1], *ipals(k=3)[:1]])
    assert not are_alike([one, other])
    assert not are_alike([one])
    graph, nodes = stream.exams(1)[0].graph, torch.arange(5)
    for learner, look in zip([one, other], looking([one, other])(graph, nodes), strict=True):
        alone = learner.look(graph, nodes)
        assert look.labels.tolist() == alone.labels.tolist()
        assert torch.equal(look.scores, alone.scores)


def test_a_further_pass_gives_each_a_graph_of_its_own(stream: TaskStream) -> None:
    learners = learned(stream, ipals(), tasks=1)
    assert are_alike(learners)
    learners[1].second_pass_ = {"passes": 1, "sharpness": 1.0}
    assert not are_alike(learners)


def test_attention_is_not_mapped(stream: TaskStream) -> None:
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


def test_those_who_wait_for_the_same_have_it_done_at_once() -> None:
    stack, asked = Stack(), list[list[int]]()
    one, other, third = (stack.waiting(learner, what) for learner, what in ((1, "a"), (2, "a"), (3, "b")))  # type: ignore[arg-type]

    def work(learners: Any) -> list[int]:
        asked.append(learners)
        return [10 * learner for learner in learners]

    with one as first, third as last:
        with other as second:
            assert second.together(work) == 20
        assert first.together(work) == 10
        assert last.together(work) == 30
        assert asked == [[1, 2], [3]]
    with stack.waiting(4, "a") as late:  # type: ignore[arg-type]
        assert late.together(work) == 40


def test_one_whose_numbers_are_lost_fails_alone() -> None:
    stack = Stack()

    def work(learners: Any) -> list[int]:
        if 2 in learners:
            raise NonFiniteError("lost")
        return list(learners)

    with stack.waiting(1, "a") as first, stack.waiting(2, "a") as second, stack.waiting(3, "a") as third:  # type: ignore[arg-type]
        assert first.together(work) == 1
        with pytest.raises(NonFiniteError):
            second.together(work)
        assert third.together(work) == 3
