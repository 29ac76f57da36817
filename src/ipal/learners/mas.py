"""MAS: memory aware synapses.

Aljundi et al. 2018, "Memory Aware Synapses: Learning what (not) to forget", https://arxiv.org/abs/1711.09601.
Importance is the mean over nodes of the absolute gradient of the squared length of the output, node by node; over
tasks a running mean weighted by their numbers of nodes. The anchor is the network after the newest task.
"""

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.batches import Batch
from ipal.data.streams import Task
from ipal.learners import anchored
from ipal.learners.anchored import quadratic_pull
from ipal.learners.facts import CountedFacts
from ipal.learners.kept import Parameters
from ipal.learners.trained import Lesson, TrainedLearner
from ipal.learners.values import Terms
from ipal.nn.per_node_gradients import network_importance


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


@dataclass(kw_only=True, eq=False)
class MAS(TrainedLearner[Lesson]):
    """Memory aware synapses: parameters to which outputs are sensitive stay near their newest values."""

    strength: float = Field(1e4, ge=0)
    """Weight of the penalty, the paper's lambda."""

    name = "mas"
    title = "MAS"
    looks_at_whole_tasks = True
    ends_for_later_tasks = True
    recordable = True
    stackable = frozenset({"strength"})
    kept = anchored.KEPT
    schema = CountedFacts

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.importance_, self.anchor_ = Parameters(), Parameters()
        self.nodes_ = 0

    def loss(self, batch: Batch, lesson: Lesson) -> Terms:
        terms = super().loss(batch, lesson)
        if self.importance_:
            theta = dict(self.network_.named_parameters())
            terms["pull"] = self.strength * quadratic_pull(theta, self.importance_, self.anchor_)
        return terms

    def end_task(self, task: Task, lesson: Lesson) -> None:
        gradient = length_gradient(self.training_outputs(task))
        new = network_importance(self.network_, task, gradient, torch.abs, self.runtime_)
        self.importance_ = running_mean(self.importance_, self.nodes_, new, len(task.nodes))
        self.anchor_ = self.parameters()
        self.nodes_ += len(task.nodes)
