"""The one training loop: Algorithm 1 of the IPAL paper, for every method.

State is a value. A task is learned in whole or not at all, because the old value is still there.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ipal.backend.adam import Adam
from ipal.backend.batches import Batch, sampled, whole_task
from ipal.backend.finite import StepTerms, check_tensors, check_terms, read_terms
from ipal.backend.runtime import Runtime
from ipal.config import EncoderConfig, Sampling, TestGraph, TrainConfig
from ipal.data.labels import Label, Labels
from ipal.data.task import Task
from ipal.methods.base import Method, Space, TaskContext, Terms, Trained
from ipal.nn.compute import GraphCompute
from ipal.nn.encoders import ENCODERS
from ipal.nn.network import Network, root_mean_square
from ipal.state.value import State, copied, flatten, moment_tensors, network_tensors

MEANINGS = {"encoder": "encoder weights", "head": "classifier weights", "optimizer": "optimiser moments"}


@dataclass(frozen=True)
class Setup:
    """What tasks are learned with, besides the method."""

    runtime: Runtime
    num_features: int
    seed: int
    encoder: EncoderConfig
    train: TrainConfig
    batch: Literal["full"] | Sampling = "full"
    test_graph: TestGraph = "both"


class Epoch(NamedTuple):
    """Where learning pauses: loss terms of the epoch just done, and the state in progress."""

    terms: StepTerms | None
    """None before the first epoch."""
    state: State


# ---------------------------------------------------------------------- before the first task


def initial_state(method: Method, setup: Setup) -> State:
    """The state before the first task."""
    generator = torch.Generator(setup.runtime.device).manual_seed(setup.seed)
    if not isinstance(method, Trained):
        return State((), method.init(space(setup, setup.num_features)), generator)
    network = fresh_network(method, setup, generator)
    optimizer = Adam(network.parameters(), method.learning_rate(setup.train, is_first=True), setup.train.weight_decay)
    return State((), method.init(space(setup, network.encoder.width)), generator, network, optimizer)


def space(setup: Setup, width: int, device: torch.device | None = None) -> Space:
    """What a method's memory is made for; on the meta device it takes no memory."""
    runtime = setup.runtime
    device = device or runtime.device
    return Space(setup.num_features, width, GraphCompute(runtime), device, setup.seed, setup.test_graph)


def fresh_network(method: Trained, setup: Setup, generator: torch.Generator) -> Network:
    """A network with fresh weights."""
    encoder = ENCODERS.find(setup.encoder.kind)(setup.num_features, setup.encoder, generator)
    return Network(encoder, method.head(encoder.width)).eval()


# ---------------------------------------------------------------------- a task begins


def with_classes(classes: tuple[Label, ...], labels: Labels) -> tuple[Label, ...]:
    """Known classes, and after them the new ones among some labels, in ascending order."""
    known = set(classes)
    return (*classes, *(label for label in np.unique(labels).tolist() if label not in known))


def numbered(task: Task, classes: tuple[Label, ...]) -> Task:
    """A task with class numbers as labels; made once for all learners that know the same classes."""

    def made() -> Task:
        number = {label: index for index, label in enumerate(classes)}
        names, place = np.unique(task.labels, return_inverse=True)  # there may be millions of labels, but few names
        numbers = np.array([number[name] for name in names.tolist()], dtype=np.int64)
        return Task(task.graph, task.nodes, numbers[place], task.origin)

    return task.derived("numbered", classes, made, most=1)


def begin_task(method: Method, state: State, task: Task, setup: Setup) -> State:
    """The state in which a task is learned: new classes are known, the network is ready to be trained."""
    new = dataclasses.replace(copied(state), classes=with_classes(state.classes, task.labels))
    if state.network is None or not isinstance(method, Trained):
        return new
    assert new.network is not None, "it was copied"
    is_first, train, afresh = state.learning_rate is None, setup.train, method.starts_afresh()
    network = fresh_network(method, setup, new.generator) if afresh else new.network
    rate = method.learning_rate(train, is_first=is_first or afresh)
    optimizer = new.optimizer
    if optimizer is None or network is not new.network or train.moments == "reset":
        optimizer = Adam(network.parameters(), rate, train.weight_decay)
    if train.relative:
        rate *= root_mean_square(network.encoder.parameters())
    head, more = network.head, list[nn.Parameter]()
    if head is not None and len(new.classes) > head.num_classes:
        more = head.grow(len(new.classes) - head.num_classes, new.generator)
    optimizer.go_on(more, rate)
    teacher = None if is_first else method.predictor(state.network, state.memory)
    return dataclasses.replace(new, network=network, optimizer=optimizer, learning_rate=rate, teacher=teacher)


def task_context(state: State, task: Task, runtime: Runtime) -> TaskContext:
    """What every method gets of a task whose labels are class numbers."""

    def classes() -> tuple[Tensor, Tensor, Tensor]:
        labels = torch.from_numpy(task.labels).to(runtime.device)
        current = torch.unique(labels)
        known = torch.arange(len(state.classes), device=labels.device)
        return labels, current, known[~torch.isin(known, current)]

    made = task.derived("classes", (runtime.device, len(state.classes)), classes, most=1)
    return TaskContext(task, *made, state.teacher, GraphCompute(runtime))


# ---------------------------------------------------------------------- Algorithm 1


def fit_task(
    method: Method,
    state: State,
    task: Task,
    setup: Setup,
    executor: "Executor | None" = None,
    first_epoch: int = 0,
    *,
    ends: bool = True,
) -> Generator[Epoch, None, State]:
    """Algorithm 1: learn a task that has begun (`begin_task`), one epoch at a time; returns the state after it.

    Between two epochs the state is complete: saved there, restored, and continued with `first_epoch`, learning ends
    in the same numbers. Without `ends`, only the network is trained.
    """
    epochs = setup.train.epochs
    task = numbered(task, state.classes)
    if isinstance(method, Trained):
        task = method.training_task(state.memory, task)
    context = method.prepare(state.memory, task_context(state, task, setup.runtime))
    if state.network is not None and isinstance(method, Trained):
        unread, training = [], Training(method, state, context, setup)
        with closing(executor(training) if executor else training) as steps:
            yield Epoch(None, state)
            for epoch in range(first_epoch, epochs):  # lines 2 to 8
                unread.append(steps.epoch(epoch))
                yield Epoch(unread[-1], state)
        check_terms(read_terms(unread), first_epoch, epochs)
        check_tensors(network_tensors(state.network), MEANINGS, f"epoch {epochs} of {epochs}")
        if not ends:
            return state
    state = _ended(method, state, context)  # lines 9 and 10
    _check_finite(method, state)
    return state


@torch.no_grad()
def _ended(method: Method, state: State, context: Any) -> State:
    """The state after a task, whose memory holds it."""
    memory = method.end_task(state.network, state.memory, context, state.generator)
    return dataclasses.replace(state, memory=memory, teacher=None)


def _check_finite(method: Method, state: State) -> None:
    """Refuse a task that ended in NaN or infinite numbers."""
    kept = flatten(state.memory, "memory", "finite_parts") | network_tensors(state.network)
    kept |= moment_tensors(state.network, state.optimizer)
    check_tensors(kept, {**MEANINGS, "memory": f"what {method.title} keeps of the classes"})


# ---------------------------------------------------------------------- steps


@dataclass(frozen=True, eq=False)
class Training:
    """One task being learned: takes its steps one by one, or is what an executor takes steps of."""

    method: Trained
    state: State
    context: Any
    setup: Setup

    @property
    def network(self) -> Network:
        assert self.state.network is not None, "it is trained"
        return self.state.network

    @property
    def optimizer(self) -> Adam:
        assert self.state.optimizer is not None, "it is trained"
        return self.state.optimizer

    def epoch(self, epoch: int) -> StepTerms:
        """All steps of an epoch; terms are means over them."""
        steps = [self.step(batch) for batch in self.batches(epoch)]
        if len(steps) == 1:
            return steps[0]
        found = [dict(zip(one.names, one.values, strict=True)) for one in steps]
        names = dict.fromkeys(name for terms in found for name in terms)
        means = {name: torch.stack([terms[name] for terms in found if name in terms]).mean() for name in names}
        return StepTerms.of(means)

    def close(self) -> None:
        """Nothing is left open."""

    def step(self, batch: Batch) -> StepTerms:
        """One step of the optimiser."""
        terms = StepTerms.of(self.loss(batch))
        self.optimizer.zero_grad()
        terms.values.sum().backward()  # type: ignore[no-untyped-call]
        self.method.adjust_gradients(self.network, self.state.memory, self.context)
        self.optimizer.step()
        return terms._replace(values=terms.values.detach())

    def loss(self, batch: Batch) -> Terms:
        """The loss in training mode, which is left even when the loss is interrupted."""
        self.network.train()
        try:
            return self.method.loss(self.network, self.state.memory, batch, self.context, self.state.generator)
        finally:
            self.network.eval()

    def batches(self, epoch: int) -> Iterable[Batch]:
        """The batches of an epoch: the whole task at once, or some nodes at a time."""
        task, setup, needs = self.context.task, self.setup, self.network.encoder.needs
        if setup.batch == "full":
            return [whole_task(task, setup.runtime, needs)]
        return sampled(task, setup.batch, self.sampling_seed(epoch), setup.runtime, needs)

    def sampling_seed(self, epoch: int) -> int:
        """Follows from the state between two epochs, and leaves it as it is: batches do not change other draws."""
        drawn, known = self.state.generator.get_state().numpy().tobytes(), len(self.state.classes)
        return int.from_bytes(hashlib.sha256(drawn + f"{known} {epoch}".encode()).digest()[:7])


class Steps(Protocol):
    """Takes the steps of one task."""

    def epoch(self, epoch: int) -> StepTerms:
        """All steps of an epoch; terms are means over them."""

    def close(self) -> None: ...


Executor = Callable[[Training], Steps]
"""How steps are executed: as CUDA graphs (recorded.py), as one with those of other runs (stacked.py)."""


def finished(learning: Generator[Any, None, Any], each: Callable[[Any], object] = bool) -> Any:
    """What a generator returns, after all its pauses, of which `each` is told."""
    while True:
        try:
            each(next(learning))
        except StopIteration as end:
            return end.value
