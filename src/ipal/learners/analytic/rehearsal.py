"""The first task as a stream in small: how well a feature map recognises training nodes that were left out.

Its classes are cut into two groups, as if one came after the other. Training nodes are learned without the edges
between the groups, and recognised, each by the model that was not shown it, where each task is tested on its own graph
without these edges, too, and else with them. Of all classes, and by leave-one-out error in closed form. Nodes that have
no label are neighbours as they are on test graphs; the group of such a node is that of the class that is predicted for
it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ipal.config import TestGraph
from ipal.data.csr import Neighbours
from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.learners.analytic.feature_map import FeatureMap, Propagation, take
from ipal.learners.analytic.ridge import (
    Spectrum,
    best_scale,
    factorise,
    left_out_prediction,
    left_out_residual,
    leverage,
    ridge_weights,
)
from ipal.learners.analytic.spread import Place, Spread, places

RIDGES = (0.001, 0.01, 0.1, 1.0, 10.0)
ROWS, ROWS_A_CLASS, MOST_ROWS = 1024, 64, 2048
"""So many training nodes are rehearsed, or so many of each class, within a limit."""
COLUMNS, FEW_COLUMNS = 512, 256
"""Columns of projected features by which hops are compared, and groups predicted."""
MOST_EDGES = 2**21
"""Of a graph with more, so many are drawn: means over many neighbours hardly change."""
GROUPS_BY = Spread((2,))
GROUPS_RIDGE = 0.1


@dataclass(frozen=True, eq=False)
class Loss:
    """Log-loss and squared error of left-out rows, at the ridge where the mean of the latter over classes is least."""

    mean: float
    """Mean over classes of the log-loss."""
    deviation: float
    """Its standard error."""
    ridge: float
    rows: Tensor
    """The log-loss of each row, with the best scale."""
    squared: Tensor
    """The squared error of each row."""


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """Some training nodes: learned in two groups apart, or as they are, and recognised on the graphs that count."""

    learned: Mapping[Place, Tensor]
    """Unit rows of each place."""
    tested: Sequence[Mapping[Place, Tensor]]
    """The same on each graph that counts."""
    labels: Tensor

    @classmethod
    def of(
        cls,
        task: Task,
        labels: Tensor,
        propagation: Propagation,
        spreads: Sequence[Spread],
        generator: torch.Generator,
        test_graph: TestGraph = "both",
    ) -> "Rehearsal":
        graph = thinned(task.graph, MOST_EDGES)
        most = min(MOST_ROWS, max(ROWS, ROWS_A_CLASS * len(torch.unique(labels))))
        some = sample(labels, most, generator)
        at = torch.from_numpy(np.asarray(task.nodes)).to(labels.device)[some]
        wanted = sorted({place for spread in spreads for place in propagation.places(spread)})
        labels_of_some = torch.unique(labels[some], return_inverse=True)[1]

        def rows(view: Graph) -> Mapping[Place, Tensor]:
            return propagation.by_place(view, wanted, at)

        together = partial(rows, graph)
        if len(graph.others):  # which have no class to be learned apart by
            found = together()
            return cls(found, [found], labels_of_some)
        within = partial(Neighbours.within, groups=groups(task, graph, labels, propagation, generator))
        apart = rows(graph.changed(within, symmetric=graph.symmetric or None))
        tested = [] if test_graph == "seen" else [apart]
        if test_graph != "isolated":
            tested.append(together())
        return cls(apart, tested, labels_of_some)

    @property
    def weights(self) -> Tensor:
        """1 / n of each row's class."""
        return torch.bincount(self.labels).float().reciprocal()[self.labels]

    def loss(self, features: FeatureMap) -> Loss:
        """Of a feature map, in the mean of the test graphs that count."""
        columns = features.propagation.columns

        def mapped(view: Mapping[Place, Tensor]) -> Tensor:
            rows = [torch.nn.functional.normalize(view[place][:, :columns]) for place in features.places]
            return features.expanded(torch.cat(rows, dim=1), torch.float32)

        learned = mapped(self.learned)
        scores = self.predicted(learned, [learned if view is self.learned else mapped(view) for view in self.tested])
        targets = torch.nn.functional.one_hot(self.labels).float()
        squared = {
            ridge: torch.stack([(targets - view).square().sum(dim=1) for view in views]).mean(dim=0)
            for ridge, views in scores.items()
        }
        ridge = min(squared, key=lambda ridge: balanced_mean(squared[ridge], self.labels)[0])
        logs = [log_losses(view, self.labels, self.weights) for view in scores[ridge]]
        found = torch.stack(logs).mean(dim=0)
        return Loss(*balanced_mean(found, self.labels), ridge, found, squared[ridge])

    def predicted(self, phi: Tensor, views: Sequence[Tensor]) -> dict[float, list[Tensor]]:
        """By ridge: scores of each node in every view, by the model that learned all others as phi.

        In single precision: good to three digits, and fast.
        """
        weights, targets = self.weights, torch.nn.functional.one_hot(self.labels).float()
        root = weights.sqrt()[:, None]
        spectrum, weighted, turned = Spectrum.of_rows(phi * root, torch.cat(list(views)))
        phi = weighted / root
        cross = weighted.T @ (targets * root)
        found = {}
        for ridge in RIDGES:
            factor = spectrum.at(ridge)
            w = ridge_weights(factor, cross)
            half_phi = factor.half(phi.T)
            residual = left_out_residual(targets, phi @ w, leverage(half_phi, half_phi, weights))
            found[ridge] = [
                left_out_prediction(psi @ w, leverage(half_phi, factor.half(psi.T), weights), residual)
                for psi in torch.split(turned, len(phi))
            ]
        return found


def groups(
    task: Task, graph: Graph, labels: Tensor, propagation: Propagation, generator: torch.Generator
) -> NDArray[np.int64]:
    """The group of every node of a graph, 0 or 1: half of the classes each, of other nodes by a prediction."""
    classes = int(labels.max()) + 1
    narrow = replace(propagation, sketch=min(propagation.sketch, FEW_COLUMNS))
    rows = narrow.rows(graph, places(GROUPS_BY, narrow.edge_types))
    taught = take(rows, torch.from_numpy(np.asarray(task.nodes))).to(labels.device).double()
    targets = torch.nn.functional.one_hot(labels, classes).double()
    members = targets / targets.sum(dim=0).clamp_min(1)
    gram = (taught * members.sum(dim=1, keepdim=True)).T @ taught
    weights = ridge_weights(factorise(gram, GROUPS_RIDGE), taught.T @ members).float()
    found = torch.cat([(some.to(weights.device) @ weights).argmax(dim=1) for some in torch.split(rows, 2**16)]).cpu()
    found[torch.from_numpy(np.asarray(task.nodes))] = labels.cpu()
    order = torch.randperm(classes, generator=generator, device=generator.device).cpu()
    return np.asarray((torch.argsort(order) % 2)[found])


def thinned(graph: Graph, most: int) -> Graph:
    """About so many edges of a graph with more, drawn at random; of an edge both directions or none."""
    if graph.num_edges <= most:
        return graph
    change = partial(Neighbours.thinned, share=most / graph.num_edges)
    return graph.changed(change, symmetric=graph.symmetric or None)


def log_losses(scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy of each row, with the scale that makes the whole best calibrated."""
    scale = best_scale(scores, labels, weights)
    return torch.nn.functional.cross_entropy(scale * scores, labels, reduction="none")


def balanced_mean(errors: Tensor, labels: Tensor) -> tuple[float, float]:
    r"""Mean over classes of the mean error of their rows, and its standard error.

    .. math:: \bar e = \frac{1}{C} \sum_c \bar e_c, \quad
        \mathrm{SE} = \frac{1}{C} \sqrt{\sum_c \frac{s_c^2}{n_c}}

    Source: Cochran 1977, "Sampling Techniques", Eq. 5.7: a stratified sample, every stratum with the same weight;
    s_c is the sample standard deviation of class c, zero where it has one row.
    """
    count = torch.bincount(labels).to(errors.dtype)
    mean = torch.zeros_like(count).index_add_(0, labels, errors) / count
    squares = torch.zeros_like(count).index_add_(0, labels, (errors - mean[labels]).square())
    variance = squares / (count - 1).clamp_min(1)
    return float(mean.mean()), float((variance / count).sum().sqrt() / len(count))


def sample(labels: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """About `most` positions, every class with the same number as far as it has them."""
    order = torch.randperm(len(labels), generator=generator, device=labels.device)
    share = max(10, most // max(1, len(torch.unique(labels))))
    kept = [order[labels[order] == c][:share] for c in torch.unique(labels)]
    return torch.cat(kept) if kept else order
