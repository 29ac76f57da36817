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
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ipal.backend.adam import Adam
from ipal.backend.batches import Batch
from ipal.backend.cuda_graphs import Recorded, Recordings, can_record
from ipal.data.task import Task
from ipal.engine.executors.recorded import Automatic, never_waits, runs_ahead
from ipal.engine.trainer import Steps, Training
from ipal.errors import NonFiniteError
from ipal.methods.base import Terms, Trained
from ipal.nn.network import Network
from ipal.state.snapshot import laid_out
from ipal.state.value import State, are_same, leaves, outline, rebuilt

T = TypeVar("T")


# ---------------------------------------------------------------------- runs as one


class _Call(nn.Module):
    """Lets `functional_call` hand a network with other parameters to any function."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, work: Callable[[Network], Any]) -> Any:
        return work(self.network)


def called(network: Network, parameters: Mapping[str, Tensor], work: Callable[[Network], Any]) -> Any:
    """What a function gives for a network with these parameters."""
    named = {f"network.{name}": parameter for name, parameter in parameters.items()}
    return torch.func.functional_call(_Call(network), named, (work,))


def float_settings(method: Trained) -> dict[str, float]:
    """The numbers among a method's settings in which runs may differ."""
    return {f.name: v for f in dataclasses.fields(method) if type(v := getattr(method, f.name)) is float}


def differing(methods: Sequence[Trained]) -> dict[str, list[float]]:
    """The numbers in which methods differ."""
    found = {name: [getattr(method, name) for method in methods] for name in float_settings(methods[0])}
    return {name: values for name, values in found.items() if len(set(values)) > 1}


def without_numbers(method: Trained) -> Trained:
    """The same for all methods that differ in numbers alone."""
    return replace(method, **dict.fromkeys(float_settings(method), 0.0))


class Mapped:
    """Several networks of one method as one, each with further values beside it."""

    def __init__(self, methods: Sequence[Trained], networks: Sequence[Network], values: Sequence[Any]) -> None:
        own = [dict(network.named_parameters()) for network in networks]
        # Rows of matrices side by side, as a sparse product with the columns of all reads them.
        self.dims = {name: min(1, parameter.dim() - 1) for name, parameter in own[0].items()}
        self.parameters = {name: side_by_side(own, name, dim) for name, dim in self.dims.items()}
        self._method, self._network, self._first = methods[0], networks[0], values[0]
        places = list(zip(*map(leaves, values), strict=True))
        # What they have in two places is stacked once, and what is the same for all is not.
        first = dict[tuple[int, ...], int]()
        self._where = [first.setdefault(tuple(map(id, some)), place) for place, some in enumerate(places)]
        once = [places[place] for place in first.values()]
        same = zip(first.values(), once, are_same(once), strict=True)
        self._different = {place: torch.stack(some) for place, some, equal in same if not equal}
        device = next(iter(self.parameters.values())).device
        self.numbers = {name: torch.tensor(some, device=device) for name, some in differing(methods).items()}

    def to_train(self) -> dict[str, nn.Parameter]:
        """The stacked parameters, which may be trained from here on."""
        found = {name: nn.Parameter(parameter) for name, parameter in self.parameters.items()}
        self.parameters = {**found}
        return found

    def __call__(self, work: Callable[[Trained, Network, Any], Any]) -> Any:
        """What `work` gives, from a method, a network and the value beside it, stacked."""

        def one(parameters: dict[str, Tensor], different: dict[int, Tensor], numbers: dict[str, Tensor]) -> Any:
            shared = zip(self._where, leaves(self._first), strict=True)
            value = rebuilt(self._first, iter([different.get(place, tensor) for place, tensor in shared]))
            method = replace(self._method, **numbers)
            return called(self._network, parameters, lambda network: work(method, network, value))

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
    terms: Terms | None = None
    """Of a step that another has asked for."""
    alone: Steps | None = None
    """Where there is no other."""
    ended: list[Any] = field(default_factory=list)
    """The memory after the task, where it was found together with those of others."""

    def kind(self) -> tuple[Any, ...]:
        """The same for all that can take their steps as one."""
        training, state = self.training, self.training.state
        return (
            id(self.batch.graph),
            without_numbers(training.method),
            training.setup,
            state.classes,
            state.learning_rate,
            state.generator.get_state().numpy().tobytes(),
            _steps(training),
            outline([state.memory, training.context]),
        )

    def take(self, terms: Terms) -> None:
        """A step was taken for it."""
        self.terms = terms

    def epoch(self, epoch: int) -> Terms:
        """The step of an epoch."""
        if self.alone is None and self.terms is None and not self.stack.step(self):
            self.stack.leave(self)
            self.alone = self.stack.one_by_one(self.training)
        if self.alone is not None:
            return self.alone.epoch(epoch)
        terms, self.terms = self.terms, None
        return terms or {}

    def end(self) -> Any:
        """The memory after the task."""
        if self.alone is None and not self.ended:
            self.stack.end(self)
        return self.ended.pop() if self.ended else self.training.end()

    def close(self) -> None:
        if self.alone is not None:
            self.alone.close()
        else:
            self.stack.leave(self)


@dataclass(eq=False)
class Waiting(Generic[T]):
    """A run that waits for others, so that something is done for all of them at once."""

    what: Hashable
    """It waits to have done: the same for all that may do it together."""
    value: Any
    """What it needs for that."""
    present: list["Waiting[T]"]
    """All who wait."""
    found: list[T] = field(default_factory=list)
    """What another has had done for it."""

    def together(self, work: Callable[[Sequence[Any]], Sequence[T]]) -> T:
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
        self._waiting: list[Waiting[Any]] = []
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
    def waiting(self, what: Hashable, value: Any) -> Iterator[Waiting[Any]]:
        """Wait for others: the driver lets the run pause inside, until the others have come as far."""
        one = Waiting[Any](what, value, self._waiting)
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
            if len(alike) < 2:
                return False
            self._group = _made(alike, self._recordings)
            if self._group is None:
                return False
            self.largest = max(self.largest, len(alike))
        if seat not in self._group.seats:
            return False
        self._group.step()
        return True

    def end(self, seat: Seat) -> None:
        """The end of the task for all that have taken their steps with this one, where it can be mapped."""
        if self._group and seat in self._group.seats:
            self._group.end()

    def leave(self, seat: Seat) -> None:
        """A run goes on alone, or ends its task."""
        if seat in self._seats:
            self._seats.remove(seat)
        if self._group and seat in self._group.seats:
            self._group.part()
            self._group = None


def _made(seats: Sequence[Seat], recordings: Recordings) -> "_Group | None":
    """Runs that take their steps as one; None where the method cannot be mapped."""
    generator = seats[0].training.state.generator
    drawn = generator.get_state()
    try:
        together = _Together(seats, recordings)
        reads_numbers = together.tried()
    except Exception:  # a loss that is wrong, and not only for one run, says so in a step alone
        return None
    finally:
        generator.set_state(drawn)
    return together.taken() if reads_numbers or not _are_same(seats) else _Same(seats, recordings)


def _are_same(seats: Sequence[Seat]) -> bool:
    """Whether all tensors that runs compute with are the same."""
    trainings = [seat.training for seat in seats]
    members = [
        [one.state.memory, one.context, dict(one.network.named_parameters()), _moments(one)] for one in trainings
    ]
    return all(are_same(list(zip(*map(leaves, members), strict=True))))


class _Group:
    """Runs that take their steps as one, until they part."""

    def __init__(self, seats: Sequence[Seat], recordings: Recordings) -> None:
        self.seats, self._recordings = seats, recordings
        self._leader = seats[0].training
        self._steps, self._recorded = 0, None
        self._own = [dict(seat.training.network.named_parameters()) for seat in seats]

    _recorded: Recorded | None

    def step(self) -> None:
        """One step of all; each finds its terms at its seat."""
        assert all(seat.terms is None for seat in self.seats), "they take one epoch each in turn"
        # Not the first step, which makes what later ones find.
        if self._recorded is None and self._steps == 1 and self._can_record():
            self._recorded = self._recordings.record(self._step, self._leader.state.generator)
        terms = self._recorded() if self._recorded else self._step()
        self._steps += 1
        drawn = self._leader.state.generator.get_state()
        parts = {name: term.expand(len(self.seats)).unbind() for name, term in terms.items()}
        for place, seat in enumerate(self.seats):
            seat.take({name: some[place] for name, some in parts.items()})
            if seat.training is not self._leader:  # all draw the same, and may be saved between two steps
                seat.training.state.generator.set_state(drawn)

    def _can_record(self) -> bool:
        runtime = self._leader.setup.runtime
        on_gpu = runtime.device.type == "cuda" and can_record()
        return on_gpu and self._never_waits()

    def _never_waits(self) -> bool:
        return never_waits(self._leader, lambda: self.seats[0].batch)

    def _step(self) -> Terms:
        raise NotImplementedError

    @property
    def _optimizer(self) -> Adam:
        return self._leader.optimizer

    def end(self) -> None:
        """The memories after the task, each at its seat; none where the method's end of a task cannot be mapped."""
        trainings, kinds = [seat.training for seat in self.seats], list[Any]()
        generator, drawn = self._leader.state.generator, self._leader.state.generator.get_state()
        methods, networks = [one.method for one in trainings], [one.network for one in trainings]

        def ended(method: Trained, network: Network, value: Any) -> list[Tensor]:
            memory, context, taught = value
            end = partial(method.end_task, network, memory, context, generator)
            kinds.append(called(context.teacher, taught, lambda _: end()) if taught else end())
            return list(leaves(kinds[-1]))

        try:
            found = Mapped(methods, networks, self._values(self._with_contexts(trainings)))(ended)
        except Exception:  # one that is wrong says so alone
            found = []
        if not found or not torch.equal(generator.get_state(), drawn):
            generator.set_state(drawn)
            return
        for seat, some in zip(self.seats, zip(*found, strict=True), strict=True):
            seat.ended.append(rebuilt(kinds[-1], map(laid_out, some)))

    def _values(self, trainings: Sequence[Training]) -> list[Any]:
        """What may differ between runs: memory, context, and the teacher's parameters."""
        return [[one.state.memory, one.context, _parameters(one.context.teacher)] for one in trainings]

    def _with_contexts(self, trainings: Sequence[Training]) -> Sequence[Training]:
        """With what was found for all of them together."""
        return trainings

    def part(self) -> None:
        """Give every run its parameters and moments in memory of its own."""
        if self._recorded:
            self._optimizer.zero_grad()  # gradients are in the recording's memory
            self._recorded.close()
        for seat, own in zip(self.seats, self._own, strict=True):
            known = seat.training.optimizer.state
            for parameter in own.values():
                parameter.data = laid_out(parameter.data)
                known[parameter] = {key: laid_out(value) for key, value in known[parameter].items()}


class _Same(_Group):
    """Runs that compute the very same, as with other gammas in a first task: the first takes the steps of all."""

    def __init__(self, seats: Sequence[Seat], recordings: Recordings) -> None:
        super().__init__(seats, recordings)
        for name, parameter in self._own[0].items():
            state = self._optimizer.state_of(parameter)
            for seat, own in zip(seats[1:], self._own[1:], strict=True):
                own[name].data = parameter.data
                seat.training.optimizer.state[own[name]] = state

    def _step(self) -> Terms:
        return self._leader.step(self.seats[0].batch)


class _Together(_Group):
    """Runs whose parameters are stacked."""

    def __init__(self, seats: Sequence[Seat], recordings: Recordings) -> None:
        super().__init__(seats, recordings)
        trainings = [seat.training for seat in seats]
        self._contexts = self._recalled(trainings)
        values = self._values(self._with_contexts(trainings))
        self._mapped = Mapped([one.method for one in trainings], [one.network for one in trainings], values)
        stacked = self._mapped.to_train()
        rate = self._leader.state.learning_rate
        assert rate is not None, "a task has begun"
        self._stacked, self._adam = stacked, Adam(stacked.values(), rate, self._leader.setup.train.weight_decay)

    @property
    def _optimizer(self) -> Adam:
        return self._adam

    def tried(self) -> bool:
        """Compute the loss and its gradients once; says whether a number in which the runs differ is a part of it."""
        numbers = list(self._mapped.numbers.values())
        for number in numbers:
            number.requires_grad_()
        total = torch.stack(list(self.loss().values())).sum()
        weights = list(self._stacked.values())
        found = torch.autograd.grad(total, [*weights, *numbers], allow_unused=True)
        for number in numbers:
            number.requires_grad_(False)
        return any(gradient is not None for gradient in found[len(weights) :])

    def _with_contexts(self, trainings: Sequence[Training]) -> Sequence[Training]:
        return [replace(one, context=context) for one, context in zip(trainings, self._contexts, strict=True)]

    def taken(self) -> "_Together":
        """Make the parameters and moments of the runs parts of the stacked ones."""
        for name, parameter in self._stacked.items():
            dim, state = self._mapped.dims[name], self._adam.state_of(parameter)
            states = [seat.training.optimizer.state for seat in self.seats]
            pairs = list(zip(states, self._own, strict=True))
            if moments := [known[own[name]] for known, own in pairs if own[name] in known]:
                state |= {key: side_by_side(moments, key, dim) for key in ("exp_avg", "exp_avg_sq")}
                state["step"] = moments[0]["step"].clone()
            for place, (known, own) in enumerate(pairs):
                own[name].data = parameter.data.select(dim, place)
                parts = {key: value.select(dim, place) if value.dim() else value for key, value in state.items()}
                known[own[name]] = parts
        return self

    def _recalled(self, trainings: Sequence[Training]) -> list[Any]:
        """Contexts with the teachers' embeddings computed as those of the networks themselves.

        Where nothing was learned yet, both are then the same to the bit: how far they are apart is a norm, whose
        gradient would make a direction of the smallest difference.
        """
        contexts = [one.context for one in trainings]
        teachers = [one.teacher for one in contexts if one.teacher is not None]
        if len(teachers) < len(contexts):
            return contexts
        graph = self.seats[0].batch.graph
        mapped = Mapped([one.method for one in trainings], teachers, [None] * len(teachers))
        with torch.no_grad():
            found = mapped(lambda method, network, value: network.encoder(graph))
        return [replace(context, recalled=rows) for context, rows in zip(contexts, found, strict=True)]

    def loss(self) -> Terms:
        """The terms of all runs, stacked."""
        batch, generator, network = self.seats[0].batch, self._leader.state.generator, self._leader.network

        def terms(method: Trained, network: Network, value: Any) -> Terms:
            memory, context, taught = value

            def loss(_: object) -> Terms:
                return method.loss(network, memory, batch, context, generator)

            return called(context.teacher, taught, loss) if taught else loss(None)

        network.train()
        try:
            found: Terms = self._mapped(terms)
            return found
        finally:
            network.eval()

    def _step(self) -> Terms:
        terms = self.loss()
        self._adam.zero_grad()
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        self._adam.step()
        return {name: term.detach() for name, term in terms.items()}

    def _never_waits(self) -> bool:
        return runs_ahead(self.tried, self._leader.state.generator)


def _parameters(network: Network | None) -> dict[str, Tensor]:
    return {} if network is None else dict(network.named_parameters())


def _moments(training: Training) -> list[dict[str, Tensor]]:
    """Of every parameter, in the order of their names; nothing of one that has taken no step."""
    states = [training.optimizer.state.get(parameter, {}) for parameter in training.network.parameters()]
    return [dict(sorted(state.items())) for state in states]


def _steps(training: Training) -> list[float]:
    """How many steps each parameter has taken."""
    states = _moments(training)
    known = [state["step"] for state in states if state]
    taken = iter(torch.stack(known).tolist() if known else [])
    return [next(taken) if state else 0.0 for state in states]


# ---------------------------------------------------------------------- states that are alike


def are_alike(methods: Sequence[Trained], states: Sequence[State]) -> bool:
    """Whether there are several runs of one method, and they differ in numbers alone."""
    if len(states) < 2 or any(state.network is None for state in states):
        return False
    kinds = [without_numbers(method) for method in methods]
    outlines = [outline([state.memory, _parameters(state.network)]) for state in states]
    same = all(kind == kinds[0] for kind in kinds) and all(one == outlines[0] for one in outlines)
    return same and all(state.classes == states[0].classes for state in states)
