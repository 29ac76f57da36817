"""ER-GNN: experience replay for graphs. Stores exemplars.

Zhou & Cao 2021, "Overcoming Catastrophic Forgetting in Graph Neural Networks with Experience Replay",
https://arxiv.org/abs/2003.09908. Of every class some nodes are kept, without edges, and replayed. Chosen by coverage
maximisation (fewest nodes of other classes nearby) or by the mean of features (nearest to the class's mean), both
in the space of embeddings. Differences from the paper: "nearby" is counted in mean distances between training
nodes, so that it does not depend on the scale of embeddings; equal coverage is decided by nearness to the
class's mean; the choice by influence functions is not offered.
"""

import dataclasses
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.batches import Batch
from ipal.backend.operators import operators
from ipal.config import Count
from ipal.data.streams import Task
from ipal.learners.exemplars import Nodes, disjoint_union, excerpt, without_edges
from ipal.learners.trained import Lesson, TrainedLearner, balanced_cross_entropy
from ipal.learners.values import Terms


def strangers_nearby(f: Tensor, labels: Tensor, distance: float) -> Tensor:
    r"""How many nodes of other classes lie within `distance` mean distances of each node.

    .. math:: |N(v_i)|, \quad N(v_i) = \{ v_j : \|v_i - v_j\| < d, \; Y(v_i) \ne Y(v_j) \}

    Source: Zhou & Cao 2021, coverage maximisation: nodes with the fewest are kept. Here d is `distance` times the mean
    distance of all pairs.
    """
    chunks = torch.split(f, max(1, 2**22 // len(f)))
    mean = torch.stack([torch.cdist(chunk, f).sum() for chunk in chunks]).sum() / len(f) ** 2
    counts = []
    for chunk, own in zip(chunks, torch.split(labels, len(chunks[0])), strict=True):
        near = torch.cdist(chunk, f) < distance * mean
        counts.append((near & (own[:, None] != labels[None, :])).sum(dim=1))
    return torch.cat(counts)


def replay_weights(num_current: int, num_kept: int) -> tuple[float, float]:
    r"""Weights of the loss on current nodes and on kept ones.

    .. math:: \beta L(D) + (1 - \beta) L(B), \quad \beta = \frac{|B|}{|B| + |D|}

    Source: Zhou & Cao 2021. The fewer nodes are kept, the more their loss weighs.
    """
    beta = num_kept / (num_kept + num_current)
    return beta, 1 - beta


@dataclasses.dataclass(frozen=True, eq=False)
class Rehearsed(Lesson):
    """What the steps of one task need, and the classes of the nodes that are kept."""

    kept: Tensor
    """As rows of the head."""


@dataclass(kw_only=True, eq=False)
class ERGNN(TrainedLearner[Rehearsed]):
    """Experience replay: nodes of old classes are kept, without edges, and learned again."""

    budget: Count = 100
    """Nodes kept of every class."""
    choice: Literal["coverage", "mean"] = "coverage"
    """coverage: fewest nodes of other classes nearby. mean: nearest to the class's mean."""
    distance: float = Field(0.5, gt=0)
    """What is nearby, in mean distances between training nodes (coverage)."""

    name = "er-gnn"
    title = "ER-GNN"
    stores_exemplars = True
    recordable = True
    kept = (Nodes("buffer", "nodes of old classes, without edges"),)

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.buffer_: Task | None = None

    def prepare(self, task: Task) -> Rehearsed:
        kept = self.rows(np.zeros(0) if self.buffer_ is None else self.buffer_.labels)
        return Rehearsed(**vars(super().prepare(task)), kept=kept)

    def loss(self, batch: Batch, lesson: Rehearsed) -> Terms:
        terms = super().loss(batch, lesson)
        if self.buffer_ is None:
            return terms
        now, again = replay_weights(len(lesson.labels), len(self.buffer_.nodes))
        replayed = self.head_(self.encoder_(operators(self.buffer_, self.runtime_, self.encoder_.needs)))
        return {
            "cross_entropy": now * terms["cross_entropy"],
            "replay": again * balanced_cross_entropy(replayed, lesson.kept),
        }

    def end_task(self, task: Task, lesson: Rehearsed) -> None:
        f = self.training_embeddings(task)
        chosen = []
        crowd = strangers_nearby(f, lesson.labels, self.distance) if self.choice == "coverage" else None
        for label in lesson.current:
            own = torch.nonzero(lesson.labels == label)[:, 0]
            far = torch.linalg.vector_norm(f[own] - f[own].mean(dim=0), dim=1)
            order = far.argsort(stable=True)
            if crowd is not None:
                order = order[crowd[own][order].argsort(stable=True)]
            chosen.append(own[order[: self.budget]])
        kept = without_edges(excerpt(task, np.sort(torch.cat(chosen).cpu().numpy()), hops=0))
        if self.buffer_ is not None:
            # Of a class that comes again the newest nodes are kept, no more than of others.
            stay = np.sort(np.concatenate([self._room_left(label, kept) for label in np.unique(self.buffer_.labels)]))
            kept = disjoint_union(excerpt(self.buffer_, stay, hops=0), kept)
        self.buffer_ = kept

    def _room_left(self, label: object, kept: Task) -> NDArray[np.int64]:
        """Of one class, which nodes of the buffer stay beside those that are new; the newest come last."""
        assert self.buffer_ is not None
        mine, new = np.flatnonzero(self.buffer_.labels == label), int((kept.labels == label).sum())
        return mine[max(0, len(mine) + new - self.budget) :]
