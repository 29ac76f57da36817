"""Runs that differ in numbers alone, as in gamma, take their steps as one computation.

The loss of the method, as it is written for one run, is mapped over all by `torch.func.vmap`: parameters, and tensors
and settings in which runs differ, are stacked. Random numbers are drawn once, which are those that each run would draw
alone. What differs from a run of its own is rounding. A method that cannot be mapped takes its steps alone.

Runs meet in a `Stack`, which is their executor, when they begin a task, and are on their own again when it ends.
Their driver takes one epoch of each in turn: the first that asks for a step takes it for all, the others find
theirs done.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ipal.backend.adam import Adam
from ipal.backend.batches import Batch
from ipal.backend.finite import StepTerms
from ipal.backend.operators import Operators
from ipal.data.task import Task
from ipal.engine.executors.recorded import Automatic, Recordings, Repeater
from ipal.engine.trainer import Steps, Training
from ipal.errors import NonFiniteError
from ipal.methods.base import Terms, Trained
from ipal.nn.network import Network
from ipal.state.snapshot import laid_out
from ipal.state.value import State, are_same, leaves, moment_tensors, network_tensors, outline, rebuilt

# ---------------------------------------------------------------------- runs as one


def float_settings(method: Trained) -> dict[str, float]:
    """The numbers among a method's settings in which runs may differ."""
    return {f.name: v for f in dataclasses.fields(method) if type(v := getattr(method, f.name)) is float}


def without_numbers(method: Trained) -> Trained:
    """The same for all methods that differ in numbers alone."""
    return replace(method, **dict.fromkeys(float_settings(method), 0.0))


def are_alike(methods: Sequence[Trained], states: Sequence[State]) -> bool:
    """Whether there are several runs of one method, and they differ in numbers alone."""
    if len(states) < 2 or any(state.network is None for state in states):
        return False
    kinds = [
        (without_numbers(method), state.classes, outline([state.memory, network_tensors(state.network)]))
        for method, state in zip(methods, states, strict=True)
    ]
    return all(kind == kinds[0] for kind in kinds)


class _Networks(nn.ModuleList):
    """Lets `functional_call` give networks other parameters while any function runs."""

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


class Mapped:
    """Several runs of one method as one, each with its networks and with further values beside them."""

    def __init__(
        self, methods: Sequence[Trained], networks: Sequence[Sequence[Network]], values: Sequence[Any]
    ) -> None:
        self._method, self._networks, self._first = methods[0], _Networks(networks[0]), values[0]
        own = [dict(_Networks(some).named_parameters()) for some in networks]
        # Rows of matrices side by side, as a sparse product with the columns of all reads them.
        self.dims = {name: min(1, parameter.dim() - 1) for name, parameter in own[0].items()}
        self.parameters = {name: side_by_side(own, name, dim) for name, dim in self.dims.items()}
        places = list(zip(*map(leaves, values), strict=True))
        same = are_same(places)
        self._different = {place: torch.stack(some) for place, some in enumerate(places) if not same[place]}
        device = next(iter(self.parameters.values())).device
        numbers = {name: [getattr(method, name) for method in methods] for name in float_settings(methods[0])}
        self.numbers = {name: torch.tensor(some, device=device) for name, some in numbers.items() if len(set(some)) > 1}

    def to_train(self) -> dict[str, nn.Parameter]:
        """The stacked parameters of the first network, which may be trained from here on."""
        found = {name: nn.Parameter(one) for name, one in self.parameters.items() if name.startswith("0.")}
        self.parameters = {**self.parameters, **found}
        return found

    def __call__(self, work: Callable[[Trained, Any], Any]) -> Any:
        """What `work` gives, from a method and the value beside it, stacked.

        The networks of the first run are those of each run in turn meanwhile.
        """

        def one(parameters: dict[str, Tensor], different: dict[int, Tensor], numbers: dict[str, Tensor]) -> Any:
            value = rebuilt(
                self._first, iter([different.get(place, own) for place, own in enumerate(leaves(self._first))])
            )
            call = partial(work, replace(self._method, **numbers), value)
            return torch.func.functional_call(self._networks, parameters, (call,))

        mapped = torch.func.vmap(one, in_dims=(self.dims, 0, 0), randomness="same")
        return mapped(self.parameters, self._different, self.numbers)


def side_by_side(values: Sequence[Mapping[str, Tensor]], name: str, dim: int) -> Tensor:
    """The tensors of one name, stacked."""
    return torch.stack([value[name].detach() for value in values], dim=dim)


# ---------------------------------------------------------------------- where runs meet


@dataclass(eq=False)
class Seat:
    """A run in the middle of a task; takes its steps with others, or alone."""

    stack: "Stack"
    training: Training
    batch: Batch
    terms: StepTerms | None = None
    """Of a step that another has asked for."""
    alone: Steps | None = None
    """Where there is no other."""

    def kind(self) -> tuple[Any, ...]:
        """The same for all that can take their steps as one."""
        training, state = self.training, self.training.state
        moments = moment_tensors(training.network, training.optimizer)
        return (
            id(self.batch.graph),
            without_numbers(training.method),
            training.setup,
            state.classes,
            state.learning_rate,
            state.generator.get_state().numpy().tobytes(),
            [float(moment) for name, moment in moments.items() if name.endswith(".step")],
            outline([state.memory, training.context]),
        )

    def take(self, terms: StepTerms) -> None:
        """A step was taken for it."""
        self.terms = terms

    def epoch(self, epoch: int) -> StepTerms:
        """The step of an epoch."""
        if self.alone is None and self.terms is None and not self.stack.step(self):
            self.stack.leave(self)
            self.alone = self.stack.one_by_one(self.training)
        if self.alone is not None:
            return self.alone.epoch(epoch)
        terms, self.terms = self.terms, None
        assert terms is not None, "it was taken"
        return terms

    def close(self) -> None:
        self.stack.leave(self)
        if self.alone is not None:
            self.alone.close()


@dataclass(eq=False)
class Waiting:
    """A run that waits for others, so that something is done for all of them at once."""

    what: Hashable
    """It waits to have done: the same for all that may do it together."""
    value: Any
    """What it needs for that."""
    present: list["Waiting"]
    """All who wait."""
    found: list[Any] = field(default_factory=list)
    """What another has had done for it."""

    def together(self, work: Callable[[Sequence[Any]], Sequence[Any]]) -> Any:
        """What `work` gives for this run's value; asked by the first, it is done for all that wait for the same."""
        if not self.found:
            some = [other for other in self.present if other.what == self.what and not other.found]
            try:
                results = work([one.value for one in some])
            except NonFiniteError:  # of one of them; that one alone is to fail
                some, results = [self], work([self.value])
            for one, result in zip(some, results, strict=True):
                one.found.append(result)
        return self.found[0]


class Stack:
    """An executor that several runs share."""

    def __init__(self) -> None:
        self.largest = 0
        """The most runs that have taken their steps as one."""
        self.one_by_one = Automatic()
        """Executes the steps of runs that are alone."""
        self._seats: list[Seat] = []
        self._waiting: list[Waiting] = []
        self._group: _Group | None = None
        self._recordings = Recordings()
        self._task: Task | None = None

    def shared(self, task: Task) -> Task:
        """One object for all runs that are handed the same task: what is derived of it is made once."""
        mine, parts = self._task, (task.nodes, task.labels)
        if mine and mine.graph is task.graph and all(map(np.array_equal, parts, (mine.nodes, mine.labels))):
            return mine
        self._task = task
        return task

    def __call__(self, training: Training) -> Steps:
        """A run begins a task.

        Mini-batches differ in shape; attention, and what a method does to gradients, are written for one run.
        """
        setup, needs = training.setup, training.network.encoder.needs
        adjusts = type(training.method).adjust_gradients is not Trained.adjust_gradients
        if setup.batch != "full" or "attention" in needs or adjusts:
            return self.one_by_one(training)
        (batch,) = training.batches(0)
        self._seats.append(Seat(self, training, batch))
        return self._seats[-1]

    @contextmanager
    def waiting(self, what: Hashable, value: Any) -> Iterator[Waiting]:
        """Wait for others: the driver lets the run pause inside, until the others have come as far."""
        one = Waiting(what, value, self._waiting)
        self._waiting.append(one)
        try:
            yield one
        finally:
            self._waiting.remove(one)

    def step(self, seat: Seat) -> bool:
        """One step of all that take theirs with this one; False where there is no other."""
        if self._group is None:
            kind = seat.kind()
            alike = [other for other in self._seats if other.terms is None and (other is seat or other.kind() == kind)]
            self._group = _formed(alike, self._recordings) if len(alike) > 1 else None
            if self._group is None:
                return False
            self.largest = max(self.largest, len(alike))
        if seat not in self._group.seats:
            return False
        self._group.step()
        return True

    def leave(self, seat: Seat) -> None:
        """A run goes on alone, or ends its task."""
        if seat in self._seats:
            self._seats.remove(seat)
        if self._group and seat in self._group.seats:
            self._group.part()
            self._group = None


# ---------------------------------------------------------------------- those that take their steps as one


def _formed(seats: Sequence[Seat], recordings: Recordings) -> "_Group | None":
    """Runs that take their steps as one; None where the method cannot be mapped."""
    generator = seats[0].training.state.generator
    drawn = generator.get_state()
    try:
        group = _Group(seats, recordings)
        reads_numbers = group.tried()
    except Exception:  # a loss that is wrong, and not only for one run, says so in a step alone
        return None
    finally:
        generator.set_state(drawn)
    group.begin(is_shared=not reads_numbers and _are_same(seats))
    return group


def _are_same(seats: Sequence[Seat]) -> bool:
    """Whether all tensors that runs compute with are the same."""
    trainings = [seat.training for seat in seats]
    moments = [moment_tensors(one.network, one.optimizer) for one in trainings]
    values = [
        [one.state.memory, one.context, network_tensors(one.network), own]
        for one, own in zip(trainings, moments, strict=True)
    ]
    return all(are_same(list(zip(*map(leaves, values), strict=True))))


class _Group:
    """Runs that take their steps as one, until they part: their parameters are stacked.

    Runs that compute the very same, as with other gammas in a first task, share that of the first instead.
    """

    def __init__(self, seats: Sequence[Seat], recordings: Recordings) -> None:
        self.seats, self._recordings = seats, recordings
        trainings = [seat.training for seat in seats]
        self._first, self._batch = trainings[0], seats[0].batch
        methods, contexts = [one.method for one in trainings], _looking_back(trainings, self._batch.graph)
        networks = [[one.network, *filter(None, [one.context.teacher])] for one in trainings]
        values = [[one.state.memory, context] for one, context in zip(trainings, contexts, strict=True)]
        self._mapped = Mapped(methods, networks, values)
        self._weights = self._mapped.to_train()
        self._own = [dict(zip(self._weights, one.network.parameters(), strict=True)) for one in trainings]
        rate = self._first.state.learning_rate
        assert rate is not None, "a task has begun"
        self._adam = Adam(self._weights.values(), rate, self._first.setup.train.weight_decay)
        self._repeater: Repeater | None = None
        self._is_shared = False
        self._tried: tuple[StepTerms, Tensor] | None = None
        """Terms of the first step, and the random state after it; its gradients are at the weights."""

    def tried(self) -> bool:
        """Differentiate the loss for the first step; says whether a number in which the runs differ is a part of it."""
        numbers = list(self._mapped.numbers.values())
        for number in numbers:
            number.requires_grad_()
        self._tried = self.differentiated(), self._first.state.generator.get_state()
        reads = any(number.grad is not None for number in numbers)
        for number in numbers:
            number.requires_grad_(False)
        return reads

    def differentiated(self) -> StepTerms:
        """The terms of all runs, whose gradients are left at the weights."""
        terms = StepTerms.of(self.loss())
        self._adam.zero_grad()
        terms.values.sum().backward()  # type: ignore[no-untyped-call]
        return terms._replace(values=terms.values.detach())

    def loss(self) -> Terms:
        """The terms of all runs, stacked."""
        first = self._first

        def terms(method: Trained, value: Any) -> Terms:
            memory, context = value
            return method.loss(first.network, memory, self._batch, context, first.state.generator)

        first.network.train()
        try:
            found: Terms = self._mapped(terms)
            return found
        finally:
            first.network.eval()

    def begin(self, *, is_shared: bool) -> None:
        """Stack what the runs learn, or let them share what the first one does."""
        first, self._is_shared = self._first, is_shared
        (self.share if is_shared else self.stack)()
        kind, optimizer = (first.state.teacher is None, is_shared), first.optimizer if is_shared else self._adam
        self._repeater = Repeater(optimizer, first.state.generator, self._recordings, kind)

    def stack(self) -> None:
        """Make the parameters and moments of the runs parts of the stacked ones."""
        states = [seat.training.optimizer.state for seat in self.seats]
        for name, weight in self._weights.items():
            dim, state = self._mapped.dims[name], self._adam.state_of(weight)
            pairs = [(known, own[name]) for known, own in zip(states, self._own, strict=True)]
            if moments := [known[parameter] for known, parameter in pairs if parameter in known]:
                state |= {key: side_by_side(moments, key, dim) for key in ("exp_avg", "exp_avg_sq")}
                state["step"] = moments[0]["step"].clone()
            for place, (known, parameter) in enumerate(pairs):
                parameter.data = weight.data.select(dim, place)
                known[parameter] = {key: one.select(dim, place) if one.dim() else one for key, one in state.items()}

    def share(self) -> None:
        """Make the parameters and moments of the first run those of all."""
        self._adam.zero_grad()  # of the step that was tried
        optimizer, (first, *others) = self._first.optimizer, self._own
        for name, parameter in first.items():
            state = optimizer.state_of(parameter)
            for seat, own in zip(self.seats[1:], others, strict=True):
                own[name].data = parameter.data
                seat.training.optimizer.state[own[name]] = state

    def step(self) -> None:
        """One step of all; each finds its terms at its seat."""
        assert self._repeater is not None, "they have begun"
        assert all(seat.terms is None for seat in self.seats), "they take one epoch each in turn"
        terms = self._repeater(partial(self._first.step, self._batch) if self._is_shared else self.stacked_step)
        drawn = self._first.state.generator.get_state()
        for place, seat in enumerate(self.seats):
            seat.take(terms if self._is_shared else StepTerms(*terms[:2], place))
            if place:  # all draw the same, and may be saved between two steps
                seat.training.state.generator.set_state(drawn)

    def stacked_step(self) -> StepTerms:
        """One step of the stacked parameters."""
        tried, self._tried = self._tried, None
        terms = tried[0] if tried else self.differentiated()
        if tried:
            self._first.state.generator.set_state(tried[1])
        self._adam.step()
        return terms

    def part(self) -> None:
        """Give every run its parameters and moments in memory of its own."""
        if self._repeater:
            self._repeater.close()
        for seat, own in zip(self.seats, self._own, strict=True):
            known = seat.training.optimizer.state
            for parameter in own.values():
                parameter.data = laid_out(parameter.data)
                known[parameter] = {key: laid_out(value) for key, value in known[parameter].items()}


def _looking_back(trainings: Sequence[Training], graph: Operators) -> list[Any]:
    """Contexts with the teachers' embeddings computed as those of the networks themselves.

    Where nothing was learned yet, both are then the same to the bit: how far they are apart is a norm, whose
    gradient would make a direction of the smallest difference.
    """
    contexts = [one.context for one in trainings]
    if any(context.before is None for context in contexts):
        return contexts
    encoder = contexts[0].teacher.encoder
    mapped = Mapped([one.method for one in trainings], [[one.teacher] for one in contexts], [None] * len(contexts))
    with torch.no_grad():
        found = mapped(lambda method, value: encoder(graph))
    return [replace(context, before=rows) for context, rows in zip(contexts, found, strict=True)]
