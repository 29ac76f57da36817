"""EWC: elastic weight consolidation.

Kirkpatrick et al. 2017, "Overcoming catastrophic forgetting in neural networks", https://arxiv.org/abs/1612.00796.
The Fisher information is its diagonal, empirical (of the labels given, not of labels drawn from the model), and per
node: the mean of squared gradients. Widely used graph code squares the gradient of the mean loss instead, which is
another quantity; `fisher: batch` gives it. Differences from the paper: the pulls of all tasks are kept as their
sum, which is the same function up to a constant.
"""

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.batches import Batch
from ipal.data.streams import Task
from ipal.learners import anchored
from ipal.learners.anchored import quadratic_pull
from ipal.learners.kept import Parameters
from ipal.learners.trained import Lesson, TrainedLearner
from ipal.learners.values import Terms
from ipal.nn.per_node_gradients import network_importance


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


@dataclass(kw_only=True, eq=False)
class EWC(TrainedLearner[Lesson]):
    """Elastic weight consolidation: important parameters stay near their old values, by Fisher information."""

    strength: float = Field(1e4, ge=0)
    """Weight of the penalty, the paper's lambda."""
    fisher: Literal["per-node", "batch"] = "per-node"
    """Mean of squared gradients of single nodes, or the squared gradient of the mean (as widely used)."""

    name = "ewc"
    title = "EWC"
    looks_at_whole_tasks = True
    ends_for_later_tasks = True
    recordable = True
    stackable = frozenset({"strength"})
    kept = anchored.KEPT

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.importance_, self.anchor_ = Parameters(), Parameters()

    def loss(self, batch: Batch, lesson: Lesson) -> Terms:
        terms = super().loss(batch, lesson)
        if self.importance_:
            theta = dict(self.network_.named_parameters())
            terms["pull"] = self.strength * elastic_penalty(theta, self.importance_, self.anchor_)
        return terms

    def end_task(self, task: Task, lesson: Lesson) -> None:
        new, theta = self._importance(task, lesson), self.parameters()
        self.importance_, self.anchor_ = anchored.with_task(self.importance_, self.anchor_, new, theta)

    def _importance(self, task: Task, lesson: Lesson) -> Parameters:
        if self.fisher == "batch":
            with torch.enable_grad():
                mean = F.cross_entropy(self.training_outputs(task), lesson.labels)
                gradients = torch.autograd.grad(mean, list(self.network_.parameters()))
            names = [name for name, _ in self.network_.named_parameters()]
            return {name: gradient.square() for name, gradient in zip(names, gradients, strict=True)}
        output_gradient = likelihood_gradient(self.training_outputs(task), lesson.labels)
        return network_importance(self.network_, task, output_gradient, torch.square, self.runtime_)
