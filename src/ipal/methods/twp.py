"""TWP: topology-aware weight preserving.

Liu, Yang & Wang 2021, "Overcoming Catastrophic Forgetting in Graph Neural Networks", https://arxiv.org/abs/2012.06002.
A parameter matters by how strongly the loss, and how strongly the attention between neighbours, depend on it; the
loss keeps such parameters near their old values, and keeps the importance for the loss itself small.

Readings: attention is the softmax over a node's neighbours (itself among them) of h_i . tanh(h_j), h the output of the
first layer, whatever the encoder; its squared length is averaged over nodes, as the loss is, so that both importances
are independent of the number of nodes; importances are absolute gradients; the last term is the L1 norm of the loss's
gradient, differentiated a second time. A public benchmark's variant applies the gradient of the loss twice and
detaches that term, which then has no effect on training.

Floor of the end of a task: the topology takes a dot product an edge and two sparse products, 3 E K multiply-adds for E
edges and K units (15e6 on a task of Coauthor CS's size), less than the forward and backward pass of the loss beside it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ipal.config import NonNegative, TrainConfig
from ipal.methods.base import Batch, Network, Parameters, TaskContext, Terms
from ipal.methods.classifier import node_cross_entropy
from ipal.methods.shared.anchored import Anchor, Anchored, quadratic_pull
from ipal.methods.shared.attention import attention_gradient


def gradient_length(gradients: list[Tensor]) -> Tensor:
    r"""L1 norm of the importance of all parameters for the loss.

    .. math:: \| I^{loss} \|_1 = \sum_m \Big| \frac{\partial L}{\partial \theta_m} \Big|

    Source: Liu et al. 2021, the term weighted by beta. Its gradient is a second derivative of the loss.
    """
    return torch.stack([gradient.abs().sum() for gradient in gradients]).sum()


@dataclass(frozen=True, kw_only=True)
class TWP(Anchored):
    """Topology-aware weight preserving: importance for the loss and for the attention between neighbours."""

    loss_strength: NonNegative = 1e4
    """Weight of the importance for the loss, the paper's lambda_l."""
    topology_strength: NonNegative = 100.0
    """Weight of the importance for the topology, the paper's lambda_t."""
    beta: NonNegative = 1e-3
    """Weight of the L1 norm of the current importance for the loss."""

    name = "twp"
    title = "TWP"
    default_train = TrainConfig(epochs=200)

    def loss(self, network: Network, memory: Anchor, batch: Batch, context: Any, rng: torch.Generator) -> Terms:
        terms = super().loss(network, memory, batch, context, rng)
        if memory.importance:
            terms["pull"] = quadratic_pull(dict(network.named_parameters()), memory.importance, memory.values)
        if self.beta:
            every, loss = list(network.parameters()), terms["cross_entropy"]
            gradients = torch.autograd.grad(loss, every, create_graph=True, materialize_grads=True)
            terms["minimal"] = self.beta * gradient_length(list(gradients))
        return terms

    @torch.enable_grad()
    def importance(self, network: Network, context: TaskContext) -> Parameters:
        compute, task, named = context.compute, context.task, dict(network.named_parameters())
        loss = node_cross_entropy(compute.outputs(network, task), slice(None), context, self.competing)
        by_loss = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
        h = compute.first_layer(network, task.graph)
        first = {f"encoder.{name}.0": parameter for name, parameter in network.encoder.layers()[0].items()}
        topology = (h * attention_gradient(h.detach(), task.graph, compute.propagation(task.graph))).sum()
        by_topology = torch.autograd.grad(topology, list(first.values()), materialize_grads=True)
        importance = {name: self.loss_strength * gradient.abs() for name, gradient in zip(named, by_loss, strict=True)}
        for name, gradient in zip(first, by_topology, strict=True):
            importance[name] = importance[name] + self.topology_strength * gradient.abs()
        return importance
