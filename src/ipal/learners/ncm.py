"""NCM: nearest class mean on propagated features. No training: the reference that every table should have.

Mensink et al. 2013, "Distance-Based Image Classification", with a fixed representation: features propagated over the
graph. Differences from the paper: nearness is a cosine, or a distance on request; no metric is learned. Features are
scaled to unit length, and propagated with restarts (Gasteiger et al. 2019).
"""

from typing import Any, Literal

from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.learners.training_free import TrainingFree
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
            scores = scores / scores.new_tensor(self.lengths(graph))[:, None]
        return (scores / self.tau).softmax(dim=-1)

    def distances(self, graph: Graph) -> Distances:
        def measured(classes: Tensor | None) -> Tensor:
            products = self.products(graph, losses.with_middle(self.sums_.mean, classes))
            return 2 - 2 * products / products.new_tensor(self.lengths(graph))[:, None]

        return measured

    def exported(self, rows: Any) -> tuple[Any, Any]:
        mean, rows = self.sums_.mean, rows.within_one().unit()
        if self.nearness == "distance":
            scores = self.spread(rows @ mean.T) * 2 - mean.square().sum(dim=1)
            return scores, (scores / self.tau).softmax()
        scores = self.spread(rows @ losses.unit(mean).T)
        cosines = scores / self.spread(rows).lengths()
        return scores, (cosines / self.tau).softmax()
