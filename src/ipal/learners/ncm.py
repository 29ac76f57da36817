"""NCM: nearest class mean on propagated features. No training: the reference that every table should have.

Mensink et al. 2013, "Distance-Based Image Classification", with a fixed representation: features propagated over the
graph. Differences from the paper: nearness is a cosine, or a distance on request; no metric is learned.
"""

from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.finite import check_scores
from ipal.data.graph import Features, Graph
from ipal.data.streams import Task
from ipal.learners.training_free import TrainingFree, spread
from ipal.learners.values import Distances
from ipal.nn import losses


@dataclass(kw_only=True, eq=False)
class NCM(TrainingFree):
    """Nearest class mean on propagated features; nothing is trained."""

    nearness: Literal["cosine", "distance"] = "cosine"
    """How near a node is to a class mean."""
    tau: float = Field(0.07, gt=0)
    """Temperature of `predict_proba`."""

    name = "ncm"
    title = "NCM"

    def absorb(self, task: Task, rows: NDArray[Any]) -> None:
        """Class means are all there is."""

    def scores(self, graph: Graph) -> Tensor:
        """Cosines times the node's own length, or distances less it: the same order of classes, without that length."""
        if self.nearness == "distance":
            return 2 * self.products(graph, self.sums_.mean) - self.sums_.mean.square().sum(dim=1)
        return self.products(graph, losses.unit(self.sums_.mean))

    def probabilities(self, scores: Tensor, graph: Graph) -> Tensor:
        if self.nearness == "cosine":
            lengths = scores.new_tensor(_lengths(self.propagated(graph)))[:, None]
            check_scores(lengths)
            scores = scores / lengths
        return (scores / self.tau).softmax(dim=-1)

    def distances(self, graph: Graph) -> Distances:
        def measured(classes: Tensor | None) -> Tensor:
            products = self.products(graph, losses.with_middle(self.sums_.mean, classes))
            return 2 - 2 * products / products.new_tensor(_lengths(self.propagated(graph)))[:, None]

        return measured

    def exported(self, rows: Any) -> tuple[Any, Any]:
        mean = self.sums_.mean
        if self.nearness == "distance":
            scores = spread(rows @ mean.T, self.hops) * 2 - mean.square().sum(dim=1)
            return scores, (scores / self.tau).softmax()
        scores = spread(rows @ losses.unit(mean).T, self.hops)
        cosines = scores / spread(rows, self.hops).lengths()
        return scores, (cosines / self.tau).softmax()


def _lengths(x: Features) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # a length that is infinite is refused
        if isinstance(x, np.ndarray):
            lengths = np.linalg.norm(x, axis=1)
        else:  # scipy's norm would sort the entries first, which takes longest
            squares = np.square(x.data, dtype=x.dtype)
            lengths = np.sqrt(sp.csr_array((squares, x.indices, x.indptr), shape=x.shape).sum(axis=1))
        return np.asarray(lengths).clip(min=1e-12)
