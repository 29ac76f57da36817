"""Methods that train a network by steps: the encoder, its optimiser, and the one training loop.

Such a method says what it adds through hooks:

    begin_task(task)          its state changes once, when a task starts
    prepare(task)             what follows from its state and the task alone, and is not kept
    loss(batch, prepared)     named terms; their sum is minimised; only here is the network in training mode
    adjust_gradients(prepared)  a last look at the gradients before a step
    end_task(task, prepared)  its state changes once, when a task is learned
"""

import copy
import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import partial
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from ipal.backend.adam import Adam
from ipal.backend.batches import Batch, sampled, whole_task
from ipal.backend.cuda_graphs import Recorded, Recordings, can_record
from ipal.backend.distributed import team
from ipal.backend.finite import check_tensors, check_terms, read_terms
from ipal.config import EncoderConfig, Sampling, TrainConfig
from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.errors import ConfigError
from ipal.learners.base import Learner, Look, Terms
from ipal.learners.checks import Shapes, check_shapes, require
from ipal.learners.facts import Facts, TrainedFacts
from ipal.nn.embed import embeddings
from ipal.nn.encoder import GCN, layer_sizes
from ipal.system.tracing import is_listening, span, spanned

Prepared = TypeVar("Prepared")


@dataclass(kw_only=True, eq=False)
class TrainedLearner(Learner, Generic[Prepared]):
    """A learner with an encoder that is trained by steps."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    """The network that makes embeddings."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """The optimisation."""
    batch: Literal["full"] | Sampling = "full"
    """full: the whole task is one batch. Or mini-batches, as {nodes: 2000, fanouts: [10, 25]}."""

    keeps: ClassVar[dict[str, str]] = Learner.keeps | {
        "encoder": "encoder weights",
        "optimizer": "optimiser moments",
        "previous": "network as it was before the task, only while a task is being learned",
    }
    only_while_learning: ClassVar[frozenset[str]] = frozenset({"optimizer", "previous"})
    schema: ClassVar[type[Facts]] = TrainedFacts
    looks_back: ClassVar[bool] = False
    """Whether a frozen copy of the network is at hand while a later task is learned."""
    looks_at_whole_tasks: ClassVar[bool] = False
    """Whether the end of a task is computed on its graph as a whole, whatever the batches are."""
    recordable: ClassVar[bool] = True
    """Whether a step never waits for what it computed: only then can a GPU repeat it by itself."""

    def __post_init__(self) -> None:
        if self.batch != "full" and len(self.batch.fanouts) != self.encoder.layers:
            raise ConfigError(
                f"protocol.batch.fanouts names {len(self.batch.fanouts)} fan-out(s) for {self.encoder.layers} layers: "
                "give one for each, as [10, 25].",
                "protocol.batch.fanouts",
            )

    # ------------------------------------------------------------------ hooks

    def begin_task(self, task: Task) -> None:
        """Change the state once, when a task starts."""

    @abstractmethod
    def prepare(self, task: Task) -> Prepared:
        """What the steps of this task need and what follows from state and task alone."""

    @abstractmethod
    def loss(self, batch: Batch, prepared: Prepared) -> Terms:
        """Named terms whose sum is minimised."""

    def adjust_gradients(self, prepared: Prepared) -> None:
        """Change the gradients of the parameters, between the backward pass and the step."""

    def end_task(self, task: Task, prepared: Prepared) -> None:
        """Change the state once, when a task is learned."""

    # ------------------------------------------------------------------ network and optimiser

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.learning_rate_: float | None = None  # none has been needed yet: no task has begun
        self.previous_: nn.ModuleDict | None = None
        self._has_stepped = False
        self._recordings = Recordings()
        self.renew_network()

    def renew_network(self) -> None:
        """Fresh weights and a fresh optimiser."""
        self.network_ = nn.ModuleDict({"encoder": GCN(self.num_features_, self.encoder, self.generator_)}).eval()
        self.renew_optimizer()

    @spanned("optimiser")
    def renew_optimizer(self) -> None:
        """An optimiser of all parameters there are, without moments."""
        rate = self.learning_rate_ or self.train.lr_base
        self.optimizer_ = Adam(self.network_.parameters(), rate, self.train.weight_decay)

    # ------------------------------------------------------------------ the one training loop

    @property
    def epochs(self) -> int:
        return self.train.epochs

    def teach(self, task: Task, first_epoch: int) -> Iterator[Terms]:
        with span("preparation"):
            prepared = self.prepare(task)
        recorded: Recorded | None = None
        unread: list[Terms] = []
        try:
            for epoch in range(first_epoch, self.epochs):
                if recorded is None and self._is_repetitive:
                    (batch,) = self.batches(task, epoch)
                    recorded = self._recordings.record(partial(self._step, batch, prepared), self.generator_)
                terms = recorded() if recorded else self._epoch(task, epoch, prepared)
                unread.append(terms)
                yield terms
        finally:
            if recorded:
                self.optimizer_.zero_grad()  # gradients are in the recording's memory
                recorded.close()
        team().broadcast_tensors(list(self.network_.parameters()))
        # Before anything is remembered of it. Whoever reads the terms meanwhile finds the same, earlier.
        check_terms(read_terms(unread), first_epoch, self.epochs)
        check_tensors(dict(self.network_.named_parameters()), self.keeps, f"epoch {self.epochs} of {self.epochs}")
        with torch.no_grad(), span("end of task"):
            self.end_task(task, prepared)
        self.previous_ = None

    @property
    def _is_repetitive(self) -> bool:
        """Whether every step is the same sequence of operations on the same memory of a GPU."""
        if is_listening() or team().size > 1:  # a recording has no parts, and talks to nobody
            return False
        if not self.recordable or self.batch != "full" or self.generator_.device.type != "cuda" or not can_record():
            return False
        # What is made at a first step, as the optimiser's moments, is no part of the next.
        return self._has_stepped and all(parameter in self.optimizer_.state for parameter in self.network_.parameters())

    def _epoch(self, task: Task, epoch: int, prepared: Prepared) -> Terms:
        """All steps of an epoch; terms are means over its steps."""
        steps = [self._step(batch, prepared) for batch in self.batches(task, epoch)]
        if len(steps) == 1:
            return steps[0]
        names = dict.fromkeys(name for terms in steps for name in terms)
        return {name: torch.stack([terms[name] for terms in steps if name in terms]).mean() for name in names}

    def _step(self, batch: Batch, prepared: Prepared) -> Terms:
        """One step of the optimiser."""
        if self.generator_.device.type == "cuda":
            team().barrier()  # GPUs would wait forever for one that is gone
        terms = self._training_loss(batch, prepared)
        self.optimizer_.zero_grad()
        with span("backward"):
            torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        with span("adjusting gradients"):
            self.adjust_gradients(prepared)
        with span("optimiser"):
            self.optimizer_.step()
        self._has_stepped = True
        return {name: term.detach() for name, term in terms.items()}

    @spanned("loss")
    def _training_loss(self, batch: Batch, prepared: Prepared) -> Terms:
        """The loss in training mode, which is left even when the loss is interrupted."""
        self.network_.train()
        try:
            return self.loss(batch, prepared)
        finally:
            self.network_.eval()

    def batches(self, task: Task, epoch: int) -> Iterable[Batch]:
        """One epoch of a task."""
        if self.batch == "full":
            return [whole_task(task, self.generator_.device)]
        return sampled(task, self.batch, self._sampling_seed(epoch), self.generator_.device)

    def _sampling_seed(self, epoch: int) -> int:
        """Follows from the state between two epochs, and leaves it as it is: batches do not change other draws."""
        parts = (self.generator_.get_state().numpy().tobytes(), f"{len(self.labels_)} {epoch}".encode())
        return int.from_bytes(hashlib.sha256(b"".join(parts)).digest()[:7])

    def start(self, task: Task) -> None:
        super().start(task)
        if self.looks_back and self.learning_rate_ is not None:
            self.previous_ = copy.deepcopy(self.network_).requires_grad_(False)
        self.learning_rate_ = self.train.lr_base if self.learning_rate_ is None else self.train.lr_next
        if self.train.moments == "reset":
            self.renew_optimizer()
        self.begin_task(task)
        for group in self.optimizer_.param_groups:
            group["lr"] = self.learning_rate_

    # ------------------------------------------------------------------ embeddings

    @property
    def encoder_(self) -> GCN:
        return cast(GCN, self.network_["encoder"])

    @property
    def reach(self) -> int:
        return self.encoder.layers

    def represent(self, graph: Graph) -> Tensor:
        return embeddings(self.encoder_, graph, self.generator_.device)

    @abstractmethod
    def scores_of(self, f: Tensor) -> Tensor:
        """Nodes x known classes from the nodes' embeddings, higher is likelier."""

    def scores(self, graph: Graph) -> Tensor:
        return self.scores_of(self.represent(graph))

    def look(self, graph: Graph) -> Look:
        with torch.no_grad():
            f = self.represent(self.checked(graph))
            return Look(self.likeliest(self.scores_of(f)), f)

    def training_embeddings(self, task: Task, network: nn.ModuleDict | None = None) -> Tensor:
        """Embeddings of a task's training nodes, without gradient; by the network itself or by another."""
        return embeddings(cast(GCN, (network or self.network_)["encoder"]), task, self.generator_.device)

    def seen_before(self, batch: Batch, whole: Tensor) -> Tensor:
        """Embeddings of a batch's nodes by the previous network; `whole` are those of all training nodes.

        In a mini-batch both networks look at the same sample: what differs is what was learned, not what was drawn.
        """
        if isinstance(batch.positions, slice):
            return whole
        assert self.previous_ is not None, "there was a network before"
        with torch.no_grad():
            embeddings: Tensor = self.previous_["encoder"](batch.graph)
        return embeddings

    # ------------------------------------------------------------------ state as a value

    def tensors(self) -> dict[str, Tensor]:
        tensors = {name: parameter.detach() for name, parameter in self.network_.named_parameters()}
        for name, parameter in self.network_.named_parameters():
            for key, value in self.optimizer_.state.get(parameter, {}).items():
                tensors[f"optimizer.{name}.{key}"] = value
        if self.previous_ is not None:
            tensors |= dict(self.previous_.named_parameters(prefix="previous"))
        return super().tensors() | tensors

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        device = self.generator_.device
        check_shapes(tensors, ((name, tuple(weight.shape)) for name, weight in self.network_.named_parameters()))
        self.previous_ = None
        if any(key.startswith("previous.") for key in tensors):
            self.previous_ = self.frozen_network({k[9:]: v for k, v in tensors.items() if k.startswith("previous.")})
        for name, parameter in self.network_.named_parameters():
            parameter.data.copy_(tensors[name])
            prefix = f"optimizer.{name}."
            moments = {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
            if moments:
                self.optimizer_.state[parameter] = {k: v.clone().to(device) for k, v in moments.items()}
        super().load_tensors(tensors)

    def shapes(self, facts: Mapping[str, Any]) -> Shapes:
        yield from super().shapes(facts)
        for layer, (fan_in, fan_out) in enumerate(layer_sizes(facts["num_features"], self.encoder)):
            yield f"encoder.weights.{layer}", (fan_in, fan_out)
            yield f"encoder.biases.{layer}", (fan_out,)

    def check(self, whole: bool) -> None:
        super().check(whole)
        require(not whole or self.previous_ is None, "it stopped in the middle of a task")
        for parameter, moments in self.optimizer_.state.items():
            sizes = {"step": (), "exp_avg": tuple(parameter.shape), "exp_avg_sq": tuple(parameter.shape)}
            holds = sizes == {name: tuple(moment.shape) for name, moment in moments.items()}
            holds = holds and all(moment.dtype == parameter.dtype for moment in moments.values())
            require(
                holds and moments["step"] >= 0 and (moments["exp_avg_sq"] >= 0).all(),
                "its optimiser's moments are not those of its weights",
            )

    def frozen_network(self, tensors: Mapping[str, Tensor]) -> nn.ModuleDict:
        """A network with these weights, not to be trained."""
        network = copy.deepcopy(self.network_).requires_grad_(False)
        for name, parameter in network.named_parameters():
            parameter.copy_(tensors[name])
        return network

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "learning_rate": self.learning_rate_}

    def load_facts(self, facts: Mapping[str, Any]) -> None:
        super().load_facts(facts)
        self.learning_rate_ = facts["learning_rate"]
        for group in self.optimizer_.param_groups:
            group["lr"] = self.learning_rate_
