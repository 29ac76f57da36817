"""ER-GNN: experience replay for graphs. Stores exemplars.

Zhou & Cao 2021, "Overcoming Catastrophic Forgetting in Graph Neural Networks with Experience Replay",
https://arxiv.org/abs/2003.09908. Of every class some nodes are kept, without edges, and replayed. Chosen by coverage
maximisation (fewest nodes of other classes nearby) or by the mean of features (nearest to the class's mean), both
in the space of embeddings. Differences from the paper: "nearby" is counted in mean distances between training
nodes, so that it does not depend on the scale of embeddings; equal coverage is decided by nearness to the
class's mean; the choice by influence functions is not offered.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ipal.config import Count, Positive, TrainConfig
from ipal.methods.base import Batch, Network, Space, TaskContext, Terms
from ipal.methods.classifier import Classifier, balanced_cross_entropy
from ipal.methods.shared.exemplars import NodeBuffer, disjoint_union, excerpt, without_edges


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


@dataclass(frozen=True, kw_only=True)
class ERGNN(Classifier):
    """Experience replay: nodes of old classes are kept, without edges, and learned again."""

    budget: Count = 100
    """Nodes kept of every class."""
    choice: Literal["coverage", "mean"] = "mean"
    """coverage: fewest nodes of other classes nearby. mean: nearest to the class's mean."""
    distance: Positive = 0.5
    """What is nearby, in mean distances between training nodes (coverage)."""

    name = "er-gnn"
    title = "ER-GNN"
    default_train = TrainConfig(epochs=200)
    keeps = "nodes"

    def init(self, space: Space) -> NodeBuffer:
        return NodeBuffer(None)

    def loss(self, network: Network, memory: NodeBuffer, batch: Batch, context: Any, rng: torch.Generator) -> Terms:
        terms = super().loss(network, memory, batch, context, rng)
        if memory.buffer is None:
            return terms
        now, again = replay_weights(len(context.labels), len(memory.buffer.nodes))
        replayed = context.compute.outputs(network, memory.buffer)
        return {
            "cross_entropy": now * terms["cross_entropy"],
            "replay": again * balanced_cross_entropy(replayed, context.compute.labels(memory.buffer)),
        }

    def end_task(self, network: Network, memory: NodeBuffer, context: TaskContext, rng: torch.Generator) -> NodeBuffer:
        f, labels = context.embeddings(network), context.labels
        crowd = strangers_nearby(f, labels, self.distance) if self.choice == "coverage" else torch.zeros_like(labels)
        chosen = []
        for label in context.current:
            own = torch.nonzero(labels == label)[:, 0]
            far = torch.linalg.vector_norm(f[own] - f[own].mean(dim=0), dim=1)
            nearest = own[far.argsort(stable=True)]
            chosen.append(nearest[crowd[nearest].argsort(stable=True)[: self.budget]])
        kept = without_edges(excerpt(context.task, np.sort(torch.cat(chosen).cpu().numpy()), hops=0))
        if memory.buffer is not None:
            kept = disjoint_union(memory.buffer, kept)
        # Of a class that comes again the newest nodes are kept, no more than of others.
        newest = [np.flatnonzero(kept.labels == label)[-self.budget :] for label in np.unique(kept.labels)]
        return NodeBuffer(excerpt(kept, np.sort(np.concatenate(newest)), hops=0))
