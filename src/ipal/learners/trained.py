"""Methods that train a network by steps: the encoder, its optimiser, and the one training loop.

Such a method says what it adds through hooks:

    begin_task(task)          its state changes once, when a task starts
    prepare(task)             what follows from its state and the task alone, and is not kept
    loss(batch, prepared)     named terms; their sum is minimised; only here is the network in training mode
    adjust_gradients(prepared)  a last look at the gradients before a step
    end_task(task, prepared)  its state changes once, when a task is learned
"""

import copy
import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from ipal.config import EncoderConfig, TrainConfig
from ipal.encoder import GCN
from ipal.engine import Operators, operators
from ipal.graph import Graph
from ipal.learners.base import Learner, Terms
from ipal.streams import Task

Prepared = TypeVar("Prepared")


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """The nodes one step learns from: a whole task's, or a sample of them with its neighbourhood."""

    graph: Operators
    """Gives the embeddings of these nodes, in order."""
    positions: Tensor | slice
    """Which of the task's training nodes they are; a slice where they are all of them."""


@dataclass(kw_only=True, eq=False)
class TrainedLearner(Learner, Generic[Prepared]):
    """A learner with an encoder that is trained by steps."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    """The network that makes embeddings."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """The optimisation."""

    keeps: ClassVar[dict[str, str]] = Learner.keeps | {
        "encoder": "encoder weights",
        "optimizer": "optimiser moments",
        "previous": "network as it was before the task, only while a task is being learned",
    }
    looks_back: ClassVar[bool] = False
    """Whether a frozen copy of the network is at hand while a later task is learned."""

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
        self.renew_network()

    def renew_network(self) -> None:
        """Fresh weights and a fresh optimiser."""
        self.network_ = nn.ModuleDict({"encoder": GCN(self.num_features_, self.encoder, self.generator_)}).eval()
        self.renew_optimizer()

    def renew_optimizer(self) -> None:
        """An optimiser of all parameters there are, without moments."""
        rate = self.learning_rate_ or self.train.lr_base
        self.optimizer_ = torch.optim.Adam(
            self.network_.parameters(), lr=rate, weight_decay=self.train.weight_decay, fused=True
        )

    # ------------------------------------------------------------------ the one training loop

    @property
    def epochs(self) -> int:
        return self.train.epochs

    def teach(self, task: Task, first_epoch: int) -> Iterator[Terms]:
        prepared = self.prepare(task)
        batches = self.batches(task)
        for _ in range(first_epoch, self.epochs):
            for batch in batches:
                terms = self._training_loss(batch, prepared)
                self.optimizer_.zero_grad(set_to_none=True)
                torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
                self.adjust_gradients(prepared)
                self.optimizer_.step()
            yield {name: term.detach() for name, term in terms.items()}
        with torch.no_grad():
            self.end_task(task, prepared)
        self.previous_ = None

    def _training_loss(self, batch: Batch, prepared: Prepared) -> Terms:
        """The loss in training mode, which is left even when the loss is interrupted."""
        self.network_.train()
        try:
            return self.loss(batch, prepared)
        finally:
            self.network_.eval()

    def batches(self, task: Task) -> Iterable[Batch]:
        """One epoch of a task, each time it is gone through: here all training nodes at once."""
        return [Batch(operators(task, self.generator_.device), slice(None))]

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

    def represent(self, graph: Graph) -> Tensor:
        embeddings: Tensor = self.encoder_(operators(graph, self.generator_.device))
        return embeddings

    def training_embeddings(self, task: Task, network: nn.ModuleDict | None = None) -> Tensor:
        """Embeddings of a task's training nodes, without gradient; by the network itself or by another."""
        with torch.no_grad():
            embeddings: Tensor = (network or self.network_)["encoder"](operators(task, self.generator_.device))
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
