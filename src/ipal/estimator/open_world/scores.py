"""Novelty scores of nodes from what the model keeps, higher for nodes of classes it never learned.

Every score is computed node by node, and once more as the mean over a node and its neighbours, taken twice: nodes of an
unknown class are often neighbours. Which one finds unknown nodes best differs from graph to graph: see calibration.py.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from ipal.data.graph import Graph
from ipal.estimator.predictor import Predictor
from ipal.methods.base import Distances

SMOOTHED = 2
"""How often scores are averaged over neighbours."""
KINDS = ("entropy", "margin", "highest score", "relative distance")
NAMES = (*(f"{kind}, over neighbours" for kind in KINDS), *KINDS)
"""All scores; of equally good ones the first is taken."""


@dataclass(frozen=True, eq=False)
class Views:
    """What a model makes of the nodes of a graph."""

    model: Predictor
    graph: Graph
    logs: Tensor
    """Logarithms of its probabilities, before they are calibrated: (nodes, classes)."""
    scores: Tensor
    """(nodes, classes)"""
    classes: Tensor | None = None
    """As if only these were known; None for all."""
    whole: "Views | None" = None
    """The view with all classes, where only some are known."""
    power: float = 1.0
    """That calibrates probabilities: scores of different tasks can be compared with it."""

    @classmethod
    def of(cls, model: Predictor, graph: Graph) -> "Views":
        scores = model.scores(graph)
        probabilities = model.probabilities(scores, graph).double().cpu()
        logs = probabilities.clamp_min(torch.finfo(torch.float32).tiny).log()  # as where they are calibrated
        return cls(model, graph, logs, scores.double().cpu())

    def among(self, classes: Tensor | None) -> "Views":
        """As if only some classes were known."""
        if classes is None:
            return self
        logs = self.logs[:, classes].log_softmax(dim=1)
        return replace(self, logs=logs, scores=self.scores[:, classes], classes=classes, whole=self)

    @cached_property
    def measured(self) -> Distances | None:
        """As `Learner.distances` gives them: once, for all classes and for some."""
        return self.model.distances(self.graph) if self.whole is None else self.whole.measured

    @cached_property
    def distances(self) -> Tensor | None:
        """To the known classes, and their middle."""
        return None if self.measured is None else self.measured(self.classes).double().cpu()

    def novelty(self, number: int | None = None) -> Tensor:
        """One score of every node, by its place in NAMES, or all of them: (nodes, scores)."""
        if number is None:
            plain = torch.stack([self._plain(kind) for kind in KINDS], dim=1)
            return torch.cat([smoothed(plain, self.graph), plain], dim=1)
        found = self._plain(KINDS[number % len(KINDS)])[:, None]
        return smoothed(found, self.graph) if number < len(KINDS) else found

    def _plain(self, kind: str) -> Tensor:
        if kind == "entropy":
            return entropy((self.power * self.logs).log_softmax(dim=1))
        if kind == "margin":
            return self.power * margin(self.logs)
        if kind == "highest score":
            return -self.scores.amax(dim=1)
        return self.logs.new_zeros(len(self.logs)) if self.distances is None else relative_distance(self.distances)


def entropy(logs: Tensor) -> Tensor:
    r"""Entropy of probabilities, from their logarithms.

    .. math:: H_i = - \sum_c p_i(c) \log p_i(c)

    Source: Hendrycks & Gimpel 2017, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples", whose
    baseline is the largest probability; the entropy counts the others too.
    """
    return -(logs.exp() * logs).sum(dim=1)


def margin(logs: Tensor) -> Tensor:
    r"""How little the likeliest class is ahead of the next.

    .. math:: m_i = \log p_i(c_2) - \log p_i(c_1)

    Source: Scheffer et al. 2001, "Active Hidden Markov Models for Information Extraction", Sec. 3, with logarithms.
    """
    first, second = logs.topk(2, dim=1).values.unbind(dim=1)
    return second - first


def relative_distance(distances: Tensor) -> Tensor:
    r"""Squared distance to the nearest class mean, as a share of that to the mean of all classes.

    .. math:: r_i = \min_c d(x_i, \mu_c) / d(x_i, \mu_0)

    Source: Ren et al. 2021, "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection", Eq. 4, with a
    quotient in place of the difference: it needs no common unit of the two distances.
    """
    return distances[:, :-1].amin(dim=1) / distances[:, -1].clamp_min(torch.finfo(distances.dtype).tiny)


def smoothed(values: Tensor, graph: Graph, times: int = SMOOTHED) -> Tensor:
    """Means over each node and its in-neighbours, so many times."""
    matrix = graph.adjacency + sp.eye_array(graph.num_nodes, format="csr", dtype=np.float32)
    counts, found = np.diff(matrix.indptr)[:, None], values.numpy()
    for _ in range(times):
        found = (matrix @ found) / counts
    return torch.from_numpy(found)


def auroc(unknown: Tensor, known: Tensor) -> Tensor:
    r"""Probability that an unknown node scores higher than a known one, column by column; equal scores count half.

    .. math:: \frac{1}{n m} \sum_{i, j} [u_i > k_j] + \tfrac12 [u_i = k_j]

    Source: Hanley & McNeil 1982, "The Meaning and Use of the Area under a ROC Curve", Eq. 1.
    """
    ordered = known.T.contiguous().sort(dim=1).values
    asked = unknown.T.contiguous()
    below = torch.searchsorted(ordered, asked) + torch.searchsorted(ordered, asked, right=True)
    return below.double().mean(dim=1) / (2 * len(known))
