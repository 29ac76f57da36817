"""PCL: prototype contrastive learning, the paradigm that IPAL builds on.

Song, Li, Guan & Kong 2025 (the IPAL paper), Eq. 2; after the prototypical networks of Snell et al. 2017.
Differences from the paper: products are cosines, as everywhere here. Old prototypes are negatives and never move.
"""

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from ipal.backend.batches import Batch
from ipal.learners.base import Terms
from ipal.learners.prototypical import Episode, PrototypicalLearner
from ipal.nn import losses
from ipal.nn.prototypes import weighted_mean


@dataclass(kw_only=True, eq=False)
class PCL(PrototypicalLearner):
    """Prototype contrast alone: nodes against their own, the other current and the stored prototypes."""

    name: ClassVar[str] = "pcl"

    def loss(self, batch: Batch, prepared: Episode) -> Terms:
        """Eq. 2."""
        f = self.encoder_(batch.graph)
        weights, absent = prepared.shares(batch.positions)
        mu = losses.unit(torch.cat([weighted_mean(f, weights), self.memory_.mean[prepared.old]]))
        labels = prepared.labels[batch.positions]
        return {"contrast": losses.prototype_contrast(losses.unit(f), labels, mu, self.tau, absent=absent)}
