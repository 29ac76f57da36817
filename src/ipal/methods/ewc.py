"""EWC: elastic weight consolidation.

Kirkpatrick et al. 2017, "Overcoming catastrophic forgetting in neural networks", https://arxiv.org/abs/1612.00796.
The Fisher information is its diagonal, empirical (of the labels given, not of labels drawn from the model), and per
node: the mean of squared gradients. Widely used graph code squares the gradient of the mean loss instead, which is
another quantity; `fisher: batch` gives it. Differences from the paper: the pulls of all tasks are kept as their
sum, which is the same function up to a constant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ipal.config import NonNegative, TrainConfig
from ipal.methods.base import Batch, Network, Parameters, TaskContext, Terms
from ipal.methods.shared.anchored import Anchor, Anchored, quadratic_pull


def likelihood_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Derivative of each node's log-likelihood with respect to its outputs.

    .. math:: \frac{\partial \log p(y \mid x)}{\partial o_k} = 1\{k = y\} - p_k

    Its squares, carried on to the parameters and averaged over nodes, are the diagonal of the empirical Fisher
    information F.
    """
    return F.one_hot(labels, logits.shape[1]) - logits.softmax(dim=1)


def elastic_penalty(theta: Mapping[str, Tensor], fisher: Parameters, anchor: Parameters) -> Tensor:
    r"""Pull of every parameter to its old value, by its Fisher information.

    .. math:: \frac{1}{2} \sum_i F_i (\theta_i - \theta^*_i)^2

    Source: Kirkpatrick et al. 2017, Eq. 3, without its factor lambda.
    """
    return 0.5 * quadratic_pull(theta, fisher, anchor)


@dataclass(frozen=True, kw_only=True)
class EWC(Anchored):
    """Elastic weight consolidation: important parameters stay near their old values, by Fisher information."""

    strength: NonNegative = 1e5
    """Weight of the penalty, the paper's lambda (Eq. 3)."""
    fisher: Literal["per-node", "batch"] = "per-node"
    """Mean of squared gradients of single nodes, or the squared gradient of the mean (as widely used)."""

    name = "ewc"
    title = "EWC"
    default_train = TrainConfig(epochs=200)

    def loss(self, network: Network, memory: Anchor, batch: Batch, context: Any, rng: torch.Generator) -> Terms:
        terms = super().loss(network, memory, batch, context, rng)
        if memory.importance:
            penalty = elastic_penalty(dict(network.named_parameters()), memory.importance, memory.values)
            terms["pull"] = self.strength * penalty
        return terms

    def importance(self, network: Network, context: TaskContext) -> Parameters:
        if self.fisher == "batch":
            named = dict(network.named_parameters())
            with torch.enable_grad():
                mean = F.cross_entropy(context.compute.outputs(network, context.task), context.labels)
                gradients = torch.autograd.grad(mean, list(named.values()))
            return {name: gradient.square() for name, gradient in zip(named, gradients, strict=True)}
        output_gradient = likelihood_gradient(context.compute.outputs(network, context.task), context.labels)
        return context.compute.importance(network, context.task, output_gradient, torch.square)
