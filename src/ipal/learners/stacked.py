"""Learners that differ in numbers alone, as in gamma, take their steps as one computation.

Their parameters are stacked, and the loss of the method, as it is written for one learner, is mapped over them by
`torch.func.vmap`: a sparse product is one product with the columns of all, a dense one is batched. Random numbers are
drawn once for all, which are those that each would draw alone. What differs from learning alone is rounding.

Learners meet in a `Stack` when they begin a task, and are on their own again when it ends. Whoever drives them takes
one epoch of each in turn: the first that asks for a step takes it for all, the others find theirs done.
"""

import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from ipal.backend.adam import Adam
from ipal.backend.batches import Batch
from ipal.backend.cuda_graphs import Recorded, Recordings
from ipal.data.streams import Task
from ipal.learners.lesson import Lesson
from ipal.learners.state import laid_out
from ipal.learners.values import Terms

if TYPE_CHECKING:
    from ipal.learners.trained import TrainedLearner

APART = {"_before", "generator_", "network_", "optimizer_", "runtime_", "stack_", "_recordings"}
"""Attributes of a learner that are not looked through for tensors that its loss may use."""


@dataclasses.dataclass(eq=False)
class Seat:
    """A learner in the middle of a task."""

    learner: "TrainedLearner[Any]"
    batch: Batch
    lesson: Lesson
    terms: Terms | None = None
    """Of a step that another has asked for."""

    def values(self, lesson: Lesson) -> list[Any]:
        """What its loss may use beside its parameters."""
        return [lesson, {name: value for name, value in vars(self.learner).items() if name not in APART}]

    def is_like(self, other: "Seat") -> bool:
        """Whether both can take their steps as one."""
        mine, theirs = self.learner, other.learner
        return (
            self.batch.graph is other.batch.graph
            and stackable(mine) == stackable(theirs)
            and mine.labels_ == theirs.labels_
            and mine.choices() == theirs.choices()
            and mine.learning_rate_ == theirs.learning_rate_
            and torch.equal(mine.generator_.get_state(), theirs.generator_.get_state())
            and _steps(mine) == _steps(theirs)
            and _sizes(self.values(self.lesson)) == _sizes(other.values(other.lesson))
        )


def stackable(learner: "TrainedLearner[Any]") -> tuple[Any, ...]:
    """What learners of a stack must share of their settings: all but the numbers that the method names."""
    free = {name for name in learner.stackable if isinstance(getattr(learner, name), float)}
    return type(learner), {name: value for name, value in learner.settings().items() if name not in free}


class Stack:
    """Where learners meet that take their steps as one."""

    def __init__(self) -> None:
        self.largest = 0
        """The most that have taken their steps as one."""
        self._seats: list[Seat] = []
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
            alike = [other for other in self._seats if other.terms is None and (other is seat or seat.is_like(other))]
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

    @staticmethod
    def holds(seats: Sequence[Seat]) -> bool:
        """Whether all that they compute with is the same, and no number in which they differ is a part of the loss."""
        members = [[seat.values(seat.lesson), seat.learner.network_, _moments(seat.learner)] for seat in seats]
        if not all(_equal(some) for some in zip(*map(_tensors, members), strict=True)):
            return False
        seat = seats[0]
        numbers = {name: some[0].requires_grad_() for name, some in _numbers(seats).items()}
        if not numbers:
            return True
        one = object.__new__(type(seat.learner))
        one.__dict__ = {**vars(seat.learner), **numbers}
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
        # Rows of matrices side by side, as a sparse product with the columns of all reads them.
        self._dims = {name: min(1, parameter.dim() - 1) for name, parameter in self._own[0].items()}
        self._parameters = {name: nn.Parameter(_side_by_side(self._own, name, dim)) for name, dim in self._dims.items()}
        assert leader.learning_rate_ is not None, "a task has begun"
        self._optimizer = Adam(self._parameters.values(), leader.learning_rate_, leader.train.weight_decay)
        for name, parameter in self._parameters.items():
            self._take(name, parameter)
        values = [seat.values(lesson) for seat, lesson in zip(seats, self._lessons(), strict=True)]
        self._first = values[0]
        # What is the same for all is not stacked.
        members = [list(_tensors(some)) for some in values]
        different = [place for place, some in enumerate(zip(*members, strict=True)) if not _equal(some)]
        self._different = {place: torch.stack([some[place] for some in members]) for place in different}
        self._numbers = _numbers(seats)

    def _take(self, name: str, parameter: nn.Parameter) -> None:
        """Make the parameters and moments of the learners parts of the stacked ones."""
        dim, state = self._dims[name], self._optimizer.state_of(parameter)
        states = [seat.learner.optimizer_.state for seat in self.seats]
        if moments := [known[own[name]] for known, own in zip(states, self._own, strict=True) if own[name] in known]:
            state |= {key: _side_by_side(moments, key, dim) for key in ("exp_avg", "exp_avg_sq")}
            state["step"] = moments[0]["step"].clone()
        for place, (known, own) in enumerate(zip(states, self._own, strict=True)):
            own[name].data = parameter.data.select(dim, place)
            known[own[name]] = {key: value.select(dim, place) if value.dim() else value for key, value in state.items()}

    def _lessons(self) -> list[Lesson]:
        """Lessons with embeddings of the network before the task that are computed as those of the network itself.

        Where nothing was learned yet, both are then the same to the bit: how far they are apart is a norm, whose
        gradient would make a direction of the smallest difference.
        """
        lessons = [seat.lesson for seat in self.seats]
        before = [lesson.before for lesson in lessons if lesson.before]
        if not before:
            return lessons
        networks = [dict(one.network.named_parameters()) for one in before]
        stacked = {name: _side_by_side(networks, name, self._dims[name]) for name in networks[0]}
        graph, network = self.seats[0].batch.graph, before[0].network

        def embedded(parameters: dict[str, Tensor]) -> Tensor:
            found: Tensor = _replaced(network, iter(parameters.values()))["encoder"](graph)
            return found

        with torch.no_grad():
            dims = {name: self._dims[name] for name in stacked}
            embeddings = torch.func.vmap(embedded, in_dims=(dims,), randomness="same")(stacked)
        made = [dataclasses.replace(one, embeddings=rows) for one, rows in zip(before, embeddings, strict=True)]
        return [dataclasses.replace(lesson, before=one) for lesson, one in zip(lessons, made, strict=True)]

    def _step(self) -> Terms:
        mapped = torch.func.vmap(self._loss, in_dims=(self._dims, 0, 0), randomness="same")
        terms: Terms = mapped(self._parameters, self._different, self._numbers)
        self._optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return {name: term.detach() for name, term in terms.items()}

    def _loss(self, parameters: dict[str, Tensor], different: dict[int, Tensor], numbers: dict[str, Tensor]) -> Terms:
        """The loss of one learner, which is the first with the tensors and numbers of another."""
        seat = self.seats[0]
        shared = enumerate(_tensors(self._first))
        lesson, attributes = _replaced(self._first, iter([different.get(place, tensor) for place, tensor in shared]))
        one = object.__new__(type(seat.learner))
        network = _replaced(seat.learner.network_, iter(parameters.values()))
        one.__dict__ = {**vars(seat.learner), **attributes, **numbers, "network_": network}
        return one.training_loss(seat.batch, lesson)


def _numbers(seats: Sequence[Seat]) -> dict[str, Tensor]:
    """The settings in which learners differ, as tensors."""
    learners = [seat.learner for seat in seats]
    found = {name: [getattr(learner, name) for learner in learners] for name in learners[0].stackable}
    device = learners[0].generator_.device
    return {name: torch.tensor(some, device=device) for name, some in found.items() if len(set(some)) > 1}


def _side_by_side(values: Sequence[Mapping[str, Tensor]], name: str, dim: int) -> Tensor:
    return torch.stack([value[name].detach() for value in values], dim=dim)


def _moments(learner: "TrainedLearner[Any]") -> list[dict[str, Tensor]]:
    """Of every parameter; nothing of one that has taken no step."""
    return [learner.optimizer_.state.get(parameter, {}) for parameter in learner.network_.parameters()]


def _steps(learner: "TrainedLearner[Any]") -> list[float]:
    """How many steps each parameter has taken."""
    return [float(state["step"]) if state else 0.0 for state in _moments(learner)]


def _sizes(value: Any) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in _tensors(value)]


def _equal(tensors: Sequence[Tensor]) -> bool:
    return all(tensor is tensors[0] or torch.equal(tensor, tensors[0]) for tensor in tensors)


def _parts(value: Any) -> dict[Any, Any] | None:
    """What a value is made of, where it may hold tensors; None where it is looked at as a whole."""
    if isinstance(value, nn.Module):
        return dict(value._parameters) | dict(value._modules)
    if type(value) in (list, tuple):
        return dict(enumerate(value))
    if type(value) is dict:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, in a fixed order."""
    if isinstance(value, Tensor):
        yield value
    else:
        for part in (_parts(value) or {}).values():
            yield from _tensors(part)


def _replaced(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same value with other tensors, in the order of `_tensors`."""
    if isinstance(value, Tensor):
        return next(tensors)
    parts = _parts(value)
    if parts is None:
        return value
    found = {name: _replaced(part, tensors) for name, part in parts.items()}
    if all(found[name] is part for name, part in parts.items()):
        return value
    if type(value) is dict:
        return found
    if type(value) in (list, tuple):
        return type(value)(found.values())
    if isinstance(value, nn.Module):
        own, below = ({name: found[name] for name in names} for names in (value._parameters, value._modules))
        found = {"_parameters": own, "_modules": below}
    made = object.__new__(type(value))
    vars(made).update({**vars(value), **found})
    return made
