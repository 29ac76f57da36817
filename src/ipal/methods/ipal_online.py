"""IPAL without task boundaries, for streams of small batches in which classes come again and again.

After the IPAL paper (see ipal.py) and Tarvainen & Valpola 2017, "Mean teachers are better role models". Differences
from IPAL, where every batch is a task:
- predictions, prototypes and the teacher come from a slow mean of the trained weights;
- in a step, the prototype of a class is the mean of what is remembered and of the batch's nodes;
- the distillation holds all remembered prototypes, weighted by the share of classes that the batch does not show;
- after every batch all remembered prototypes follow the drift in full, then the batch's nodes are pooled in.
With one batch a task and new classes in each, the last two are the paper's, but for beta. `beta` is not used, and
`train.lr_next` is the rate of all batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ipal.backend.checks import check_same, require
from ipal.config import TrainConfig
from ipal.methods.base import Batch, Network, Parameters, Space, TaskContext, Terms, extended
from ipal.methods.ipal import IPAL, IPALContext
from ipal.methods.shared.prototypes import HasPrototypes, PrototypeMemory, pooled_mean
from ipal.nn import losses as eq


def followed(slow: Tensor, theta: Tensor, momentum: float) -> Tensor:
    r"""Weights that follow others slowly.

    .. math:: \bar\theta' = m \bar\theta + (1 - m) \theta

    Source: Tarvainen & Valpola 2017, "Mean teachers are better role models". `slow` is the mean so far, m is
    `momentum`. With m = n / (n + n') it is the mean over all nodes, n so far and n' in the batch that gave `theta`.
    """
    return torch.lerp(theta, slow, momentum)


@dataclass(frozen=True, eq=False)
class OnlineMemory(HasPrototypes):
    """Prototypes, and the weights that predict."""

    slow: Parameters
    """slow mean of the trained weights, which predicts"""

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        self.prototypes.check(classes, parameters, whole)
        require(bool(self.slow) or not whole, "the weights that predict are missing")
        if self.slow:
            check_same(self.slow, parameters)


@dataclass(frozen=True, eq=False, kw_only=True)
class OnlineContext(IPALContext):
    """What the steps of a batch need."""

    known: PrototypeMemory
    """What is remembered of the current classes, to be pooled with their nodes."""

    def prototypes(self, f: Tensor, here: Tensor | slice) -> tuple[Tensor, Tensor | None]:
        """Of the batch's nodes and of what is remembered: a class with one node is not compared with itself."""
        mean, absent = super().prototypes(f, here)
        pooled = pooled_mean(self.known.mean, self.known.count, mean, self.members[:, here].sum(dim=1))
        if absent is not None:
            absent = absent & F.pad(self.known.count == 0, (0, len(self.old)))
        return pooled, absent


@dataclass(frozen=True, kw_only=True)
class OnlineIPAL(IPAL):
    """IPAL for streams of small batches without task boundaries."""

    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of the slow weights that stays at each batch. None: the mean over all nodes so far."""

    name = "ipal-online"
    title = "IPAL (online)"

    def init(self, space: Space) -> Any:
        return OnlineMemory(super().init(space), {})

    def prepare(self, memory: Any, context: TaskContext) -> OnlineContext:
        base, known = super().prepare(memory.prototypes, context), memory.prototypes.padded(context.classes)
        base = replace(base, held=eq.OldPrototypes.of(memory.prototypes.mean))
        return extended(OnlineContext, base, known=known.of(context.current))

    def loss(self, network: Network, memory: Any, batch: Batch, context: IPALContext, rng: torch.Generator) -> Terms:
        share = eq.unseen_share(len(memory.mean), len(context.old))
        weighted = replace(self, gamma=self.gamma * share)
        return IPAL.loss(weighted, network, memory, batch, context, rng)

    def end_task(self, network: Any, memory: Any, context: Any, rng: torch.Generator) -> Any:
        theta, slow = network.tensors(), memory.slow
        if slow:
            so_far, new = int(memory.prototypes.count.sum()), len(context.task.nodes)
            momentum = so_far / (so_far + new) if self.momentum is None else self.momentum
            theta = {name: followed(slow[name], tensor, momentum) for name, tensor in theta.items()}
        f, prototypes = context.embeddings(network.with_parameters(theta)), memory.prototypes
        if context.before is not None and len(prototypes.mean) and self.compensation != "none":
            mu, rows = prototypes.mean, torch.arange(len(prototypes.mean), device=f.device)
            weigh = eq.proximity_printed if self.compensation == "printed" else eq.proximity_softmax
            w = weigh(self.product(context.before, mu))
            here = context.current[context.current < len(mu)]  # ascending, so that they come first
            w = w.index_copy(1, here, context.weights[: len(here)].T)  # a class that has nodes here moves as these do
            prototypes = prototypes.moved(rows, eq.compensate(mu, f, context.before, w, 1.0))
        return OnlineMemory(context.learned(prototypes, f), theta)

    def learning_rate(self, train: TrainConfig, *, is_first: bool) -> float:
        return train.lr_next  # a high rate would bend the network to a few nodes

    def predictor(self, network: Network, memory: Any) -> Network:
        return network.with_parameters(memory.slow) if memory.slow else network

    def merge_classes(self, memory: Any, places: Tensor, classes: int) -> Any:
        return replace(memory, prototypes=memory.prototypes.merged(places, classes))
