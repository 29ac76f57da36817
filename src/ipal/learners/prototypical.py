"""Methods that predict the nearest prototype by cosine."""

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.learners.gaussian_memory import RemembersClasses
from ipal.nn import losses
from ipal.nn.prototypes import weighted_mean, weighted_variance


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """What the steps of one task need, all of it derived from the state and the task."""

    current: Tensor
    """Classes being learned, as rows of the memory."""
    old: Tensor
    """Remembered classes that are not being learned."""
    labels: Tensor
    """Class of each training node, as a place in `current`."""
    members: Tensor
    """(current classes x training nodes), which node is of which class."""
    weights: Tensor
    """(current classes x training nodes), each node's share in its class's prototype (Eq. 3)."""
    before: Tensor | None
    """Embeddings of the training nodes by the previous network; None where there is none."""

    def shares(self, here: Tensor | slice) -> tuple[Tensor, Tensor | None]:
        """Weights of the nodes `here` alone, and which prototypes, current and old, have no node to be made of.

        In a mini-batch a class's prototype is the mean of those of its nodes that are there; of all nodes none is
        absent, and nothing is said.
        """
        if isinstance(here, slice):
            return self.weights, None
        weights = self.weights[:, here]
        total = weights.sum(dim=1, keepdim=True)
        return weights / total.clamp_min(torch.finfo(total.dtype).tiny), F.pad(total[:, 0] == 0, (0, len(self.old)))


@dataclass(kw_only=True, eq=False)
class PrototypicalLearner(RemembersClasses[Episode]):
    """A trained encoder, and the nearest prototype by cosine."""

    tau: float = Field(0.07, gt=0)
    """Temperature of the contrast."""

    def importance(self, graph: Graph) -> NDArray[np.float64]:
        """How much each node weighs in its class's prototype: here all the same."""
        return np.ones(graph.num_nodes)

    def prepare(self, task: Task) -> Episode:
        rows = self.rows(task.labels)
        current, labels = torch.unique(rows, return_inverse=True)
        remembered = torch.arange(len(self.memory_), device=rows.device)
        members = rows[None, :] == current[:, None]
        weights = members * torch.from_numpy(self.importance(task.graph)[task.nodes]).to(rows.device)
        return Episode(
            current=current,
            old=remembered[~torch.isin(remembered, current)],
            labels=labels,
            members=members,
            weights=(weights / weights.sum(dim=1, keepdim=True)).float(),
            before=None if self.previous_ is None else self.training_embeddings(task, self.previous_),
        )

    def end_task(self, task: Task, prepared: Episode) -> None:
        """Remember the new classes."""
        f = self.training_embeddings(task)
        mean = weighted_mean(f, prepared.weights)
        variance = weighted_variance(f, mean, prepared.weights)
        self.memory_ = self.memory_.learned(prepared.current, mean, variance, prepared.members.sum(dim=1))

    def scores_of(self, f: Tensor) -> Tensor:
        """Cosine to every stored prototype."""
        return losses.cosine(f, self.memory_.mean)

    def probabilities(self, scores: Tensor, graph: Graph) -> Tensor:
        return (scores / self.tau).softmax(dim=-1)
