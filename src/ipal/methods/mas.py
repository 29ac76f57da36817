"""MAS: memory aware synapses.

Aljundi et al. 2018, "Memory Aware Synapses: Learning what (not) to forget", https://arxiv.org/abs/1711.09601.
Importance is the mean over nodes of the absolute gradient of the squared length of the output, node by node; over
tasks a running mean weighted by their numbers of nodes. The anchor is the network after the newest task.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ipal.config import NonNegative, TrainConfig
from ipal.methods.base import Batch, Network, Parameters, Space, TaskContext, Terms
from ipal.methods.shared.anchored import Anchor, Anchored, quadratic_pull


def length_gradient(logits: Tensor) -> Tensor:
    r"""Derivative of each node's squared output length with respect to its outputs.

    .. math:: \frac{\partial \|o\|_2^2}{\partial o_k} = 2 o_k

    Source: Aljundi et al. 2018, the squared length that their sensitivity is of. Its absolute values, carried on to the
    parameters and averaged over nodes, are the importance Omega.
    """
    return 2 * logits


def running_mean(mean: Parameters, count: int, new: Parameters, new_count: int) -> Parameters:
    """Mean over the nodes of all tasks; a parameter that was not there before counts as zero for them."""
    share = new_count / (count + new_count)
    return {name: share * value + (1 - share) * mean.get(name, 0.0) for name, value in new.items()}


@dataclass(frozen=True, eq=False)
class SensitivityMemory:
    """What holds parameters in place, and how many nodes that rests on."""

    anchor: Anchor
    """importance of every parameter to the tasks so far, and the values that parameters are pulled to"""
    nodes: int
    """number of training nodes behind the importance"""

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        self.anchor.check(classes, parameters, whole)


@dataclass(frozen=True, kw_only=True)
class MAS(Anchored):
    """Memory aware synapses: parameters to which outputs are sensitive stay near their newest values."""

    strength: NonNegative = 1.0
    """Weight of the penalty, the paper's lambda."""

    name = "mas"
    title = "MAS"
    default_train = TrainConfig(epochs=800)

    def init(self, space: Space) -> SensitivityMemory:
        return SensitivityMemory(Anchor({}, {}), 0)

    def loss(self, network: Network, memory: Any, batch: Batch, context: Any, rng: torch.Generator) -> Terms:
        terms, held = super().loss(network, memory, batch, context, rng), memory.anchor
        if held.importance:
            pull = quadratic_pull(dict(network.named_parameters()), held.importance, held.values)
            terms["pull"] = self.strength * pull
        return terms

    def importance(self, network: Network, context: TaskContext) -> Parameters:
        outputs = context.compute.outputs(network, context.task)
        return context.compute.importance(network, context.task, length_gradient(outputs), torch.abs)

    def end_task(self, network: Network, memory: Any, context: TaskContext, rng: torch.Generator) -> SensitivityMemory:
        new, nodes = self.importance(network, context), len(context.task.nodes)
        importance = running_mean(memory.anchor.importance, memory.nodes, new, nodes)
        return SensitivityMemory(Anchor(importance, network.tensors()), memory.nodes + nodes)
