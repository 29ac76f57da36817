"""Learners that differ in numbers alone, as in gamma, take their steps as one computation.

The loss of the method, as it is written for one learner, is mapped over all (see mapped.py). Random numbers are drawn
once, which are those that each would draw alone. What differs from learning alone is rounding.

Learners meet in a `Stack` when they begin a task, and are on their own again when it ends. Whoever drives them takes
one epoch of each in turn: the first that asks for a step takes it for all, the others find theirs done.
"""

import dataclasses
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ipal.backend.adam import Adam
from ipal.backend.batches import Batch
from ipal.backend.cuda_graphs import Recorded, Recordings
from ipal.data.streams import Task
from ipal.errors import NonFiniteError
from ipal.learners.lesson import Lesson
from ipal.learners.mapped import (
    Mapped,
    are_same,
    embedded,
    numbers_of,
    settings_of,
    shadow,
    side_by_side,
    sizes_in,
    tensors_in,
    values_of,
)
from ipal.learners.state import laid_out
from ipal.learners.values import Terms

if TYPE_CHECKING:
    from ipal.learners.trained import TrainedLearner

T = TypeVar("T")


@dataclasses.dataclass(eq=False)
class Seat:
    """A learner in the middle of a task."""

    learner: "TrainedLearner[Any]"
    batch: Batch
    lesson: Lesson
    terms: Terms | None = None
    """Of a step that another has asked for."""

    def kind(self) -> tuple[Any, ...]:
        """The same for all that can take their steps as one."""
        learner = self.learner
        return (
            id(self.batch.graph),
            settings_of(learner),
            learner.labels_,
            learner.learning_rate_,
            learner.generator_.get_state().numpy().tobytes(),
            _steps(learner),
            sizes_in(values_of(learner, self.lesson)),
        )


@dataclasses.dataclass(eq=False)
class Waiting(Generic[T]):
    """A learner that waits for others, so that something is done for all of them at once."""

    learner: "TrainedLearner[Any]"
    what: Hashable
    """It waits to have done: the same for all that may do it together."""
    beside: Any
    """What it needs for that."""
    present: list["Waiting[T]"]
    """All who wait."""
    found: list[T] = dataclasses.field(default_factory=list)
    """What another has had done for it."""

    def together(self, work: Callable[[Sequence["Waiting[T]"]], Sequence[T]]) -> T:
        """What `work` gives for this learner; asked by the first, it is done for all that wait for the same."""
        if not self.found:
            some = [other for other in self.present if other.what == self.what and not other.found]
            try:
                results = work(some)
            except NonFiniteError:  # of one of them; that one alone is to fail
                some, results = [self], work([self])
            for one, result in zip(some, results, strict=True):
                one.found.append(result)
        return self.found[0]


class Stack:
    """Where learners meet that take their steps as one."""

    def __init__(self) -> None:
        self.largest = 0
        """The most that have taken their steps as one."""
        self._seats: list[Seat] = []
        self._waiting: list[Waiting[Any]] = []
        self._together: _Group | None = None
        self._recordings = Recordings()
        self._task: Task | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def shared(self, task: Task) -> Task:
        """One object for all learners that are handed the same task: what is derived of it is made once."""
        mine = self._task
        parts = (task.nodes, task.labels)
        if mine and mine.graph is task.graph and all(map(np.array_equal, parts, (mine.nodes, mine.labels))):
            return mine
        self._task = task
        return task

    @contextmanager
    def waiting(self, learner: "TrainedLearner[Any]", what: Hashable, beside: Any = None) -> Iterator[Waiting[Any]]:
        """Wait for others: whoever drives the learner lets it pause inside, until the others have come as far."""
        one = Waiting[Any](learner, what, beside, self._waiting)
        self._waiting.append(one)
        try:
            yield one
        finally:
            self._waiting.remove(one)

    def epochs(
        self, learner: "TrainedLearner[Any]", task: Task, lesson: Lesson, first_epoch: int
    ) -> Generator[Terms, None, None]:
        """The epochs of a task; empty terms first, while other learners prepare it. Alone, if there is no other."""
        (batch,) = learner.batches(task, first_epoch)
        seat = Seat(learner, batch, lesson)
        self._seats.append(seat)
        try:
            yield {}
            for epoch in range(first_epoch, learner.epochs):
                if seat.terms is None and not self._step(seat):
                    self._seats.remove(seat)
                    yield from learner.epochs_alone(task, lesson, epoch)
                    return
                terms, seat.terms = seat.terms, None
                yield terms or {}
        finally:
            self._leave(seat)

    def _step(self, seat: Seat) -> bool:
        """One step of all that take theirs with this one; False where there is no other."""
        if self._together is None:
            kind = seat.kind()
            alike = [other for other in self._seats if other.terms is None and (other is seat or other.kind() == kind)]
            if len(alike) < 2:
                return False
            self._together = (_Same if _Same.holds(alike) else _Together)(alike, self._recordings)
            self.largest = max(self.largest, len(alike))
        if seat not in self._together.seats:
            return False
        self._together.step()
        return True

    def _leave(self, seat: Seat) -> None:
        if seat in self._seats:
            self._seats.remove(seat)
        if self._together and seat in self._together.seats:
            self._together.part()
            self._together = None


class _Group:
    """Learners that take their steps as one, until they part."""

    def __init__(self, seats: Sequence[Seat], recordings: Recordings) -> None:
        self.seats = seats
        self._recordings, self._steps = recordings, 0
        self._recorded: Recorded | None = None
        self._leader = seats[0].learner
        self._optimizer = self._leader.optimizer_
        self._own = [dict(seat.learner.network_.named_parameters()) for seat in seats]
        self._generators = [seat.learner.generator_ for seat in seats]
        for seat in seats:
            seat.learner.generator_ = self._leader.generator_  # all draw the same, and may be saved between two steps

    def step(self) -> None:
        """One step of all; each finds its terms at its seat."""
        assert all(seat.terms is None for seat in self.seats), "they take one epoch each in turn"
        # Not the first step, which makes what later ones find.
        if self._recorded is None and self._steps and self._leader.is_repetitive:
            self._recorded = self._recordings.record(self._step, self._leader.generator_)
        terms = self._recorded() if self._recorded else self._step()
        self._steps += 1
        parts = {name: term.expand(len(self.seats)).unbind() for name, term in terms.items()}
        for place, seat in enumerate(self.seats):
            seat.terms = {name: some[place] for name, some in parts.items()}

    def _step(self) -> Terms:
        raise NotImplementedError

    def part(self) -> None:
        """Give every learner its parameters, moments and random state in memory of its own."""
        if self._recorded:
            self._optimizer.zero_grad()  # gradients are in the recording's memory
            self._recorded.close()
        drawn = self._leader.generator_.get_state()
        for seat, own, generator in zip(self.seats, self._own, self._generators, strict=True):
            seat.learner.generator_ = generator
            if seat.learner is not self._leader:
                generator.set_state(drawn)
            for parameter in own.values():
                parameter.data = laid_out(parameter.data)
                state = seat.learner.optimizer_.state[parameter]
                seat.learner.optimizer_.state[parameter] = {key: laid_out(value) for key, value in state.items()}


class _Same(_Group):
    """Learners that compute the very same, as with other gammas in a first task: the first takes the steps of all."""

    def __init__(self, seats: Sequence[Seat], recordings: Recordings) -> None:
        super().__init__(seats, recordings)
        for name, parameter in self._own[0].items():
            state = self._optimizer.state_of(parameter)
            for seat, own in zip(seats[1:], self._own[1:], strict=True):
                own[name].data = parameter.data
                seat.learner.optimizer_.state[own[name]] = state
        before = [seat.lesson.before for seat in seats if seat.lesson.before]
        for one in before[1:]:
            one.embedded[:] = [before[0].embeddings]

    @staticmethod
    def holds(seats: Sequence[Seat]) -> bool:
        """Whether all that they compute with is the same, and no number in which they differ is a part of the loss."""
        learners = [seat.learner for seat in seats]
        known = [values_of(seat.learner, seat.lesson) for seat in seats]
        members = [[*some, one.network_, _moments(one)] for some, one in zip(known, learners, strict=True)]
        if not all(are_same(list(zip(*map(tensors_in, members), strict=True)))):
            return False
        seat = seats[0]
        numbers = {name: some[0].requires_grad_() for name, some in numbers_of(learners).items()}
        if not numbers:
            return True
        one = shadow(seat.learner, numbers)
        drawn = seat.learner.generator_.get_state()
        total = torch.stack(list(one.training_loss(seat.batch, seat.lesson).values())).sum()
        seat.learner.generator_.set_state(drawn)
        return all(one is None for one in torch.autograd.grad(total, list(numbers.values()), allow_unused=True))

    def _step(self) -> Terms:
        return self._leader.step(self.seats[0].batch, self.seats[0].lesson)


class _Together(_Group):
    """Learners whose parameters are stacked."""

    def __init__(self, seats: Sequence[Seat], recordings: Recordings) -> None:
        super().__init__(seats, recordings)
        leader = self._leader
        self._recall()
        self._mapped = Mapped([seat.learner for seat in seats], [seat.lesson for seat in seats])
        self._dims = self._mapped.dims
        self._parameters = {name: nn.Parameter(stacked) for name, stacked in self._mapped.parameters.items()}
        self._mapped.parameters = {**self._parameters}
        assert leader.learning_rate_ is not None, "a task has begun"
        self._optimizer = Adam(self._parameters.values(), leader.learning_rate_, leader.train.weight_decay)
        for name, parameter in self._parameters.items():
            self._take(name, parameter)

    def _take(self, name: str, parameter: nn.Parameter) -> None:
        """Make the parameters and moments of the learners parts of the stacked ones."""
        dim, state = self._dims[name], self._optimizer.state_of(parameter)
        states = [seat.learner.optimizer_.state for seat in self.seats]
        if moments := [known[own[name]] for known, own in zip(states, self._own, strict=True) if own[name] in known]:
            state |= {key: side_by_side(moments, key, dim) for key in ("exp_avg", "exp_avg_sq")}
            state["step"] = moments[0]["step"].clone()
        for place, (known, own) in enumerate(zip(states, self._own, strict=True)):
            own[name].data = parameter.data.select(dim, place)
            known[own[name]] = {key: value.select(dim, place) if value.dim() else value for key, value in state.items()}

    def _recall(self) -> None:
        """Embeddings of the networks before the task, computed as those of the networks themselves.

        Where nothing was learned yet, both are then the same to the bit: how far they are apart is a norm, whose
        gradient would make a direction of the smallest difference.
        """
        before = [seat.lesson.before for seat in self.seats if seat.lesson.before]
        if before:
            found = embedded([one.network for one in before], self.seats[0].batch.graph)
            for one, rows in zip(before, found, strict=True):
                one.embedded[:] = [rows]

    def _step(self) -> Terms:
        batch = self.seats[0].batch
        terms: Terms = self._mapped(lambda one, lesson: one.training_loss(batch, lesson))
        self._optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return {name: term.detach() for name, term in terms.items()}


def _moments(learner: "TrainedLearner[Any]") -> list[dict[str, Tensor]]:
    """Of every parameter, in the order of their names; nothing of one that has taken no step."""
    states = [learner.optimizer_.state.get(parameter, {}) for parameter in learner.network_.parameters()]
    return [dict(sorted(state.items())) for state in states]


def _steps(learner: "TrainedLearner[Any]") -> list[float]:
    """How many steps each parameter has taken."""
    states = _moments(learner)
    known = [state["step"] for state in states if state]
    taken = iter(torch.stack(known).tolist() if known else [])
    return [next(taken) if state else 0.0 for state in states]
