"""PCL: prototype contrastive learning, the paradigm that IPAL builds on.

Song, Li, Guan & Kong 2025 (the IPAL paper), Eq. 2; after the prototypical networks of Snell et al. 2017.
Differences from the paper: products are cosines, as everywhere here. Old prototypes are negatives and never move.
"""

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.batches import Batch
from ipal.data.graph import Graph
from ipal.data.streams import Task
from ipal.learners.gaussian_memory import PROTOTYPES, Episode
from ipal.learners.trained import TrainedLearner
from ipal.learners.values import Terms
from ipal.nn import losses
from ipal.nn.prototypes import PrototypeMemory, weighted_mean


@dataclass(kw_only=True, eq=False)
class PCL(TrainedLearner[Episode]):
    """Prototype contrast alone: nodes against their own, the other current and the stored prototypes."""

    tau: float = Field(0.07, gt=0)
    """Temperature of the contrast."""

    competing: ClassVar[Literal["seen"]] = "seen"  # type: ignore[misc]  # no setting: there is no head
    name = "pcl"
    title = "PCL"
    has_head = False
    recordable = True
    mappable_end = True
    stackable = frozenset({"tau"})
    kept = (PROTOTYPES,)

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.memory_ = PrototypeMemory.empty(self.encoder_.width, self.generator_.device)

    def prepare(self, task: Task) -> Episode:
        return Episode.of_task(task, super().prepare(task), "uniform", lambda: np.ones(len(task.nodes)))

    def loss(self, batch: Batch, lesson: Episode) -> Terms:
        """Eq. 2."""
        f = self.encoder_(batch.graph)
        weights, absent = lesson.shares(batch.positions)
        mu = losses.unit(torch.cat([weighted_mean(f, weights), self.memory_.mean[lesson.old]]))
        labels = lesson.places[batch.positions]
        return {"contrast": losses.prototype_contrast(losses.unit(f), labels, mu, self.tau, absent=absent)}

    def end_task(self, task: Task, lesson: Episode) -> None:
        self.memory_ = lesson.learned(self.memory_, self.training_embeddings(task))

    def unite(self, places: Tensor, classes: int) -> None:
        # As where a class returns, in the embeddings of the encoder as it is.
        self.memory_ = self.memory_.united(places, classes)

    def scores_of(self, f: Tensor) -> Tensor:
        """Cosine to every stored prototype."""
        return losses.cosine(f, self.memory_.mean)

    def probabilities(self, scores: Tensor, graph: Graph) -> Tensor:
        return (scores / self.tau).softmax(dim=-1)

    def exported(self, rows: Any) -> tuple[Any, Any]:
        scores = rows.unit() @ losses.unit(self.memory_.mean).T
        return scores, (scores / self.tau).softmax()
