"""PCL: prototype contrastive learning, the paradigm that IPAL builds on.

Song, Li, Guan & Kong 2025 (the IPAL paper), Eq. 2; after the prototypical networks of Snell et al. 2017.
Differences from the paper: products are cosines, as everywhere here. Old prototypes are negatives and never move.
"""

from dataclasses import dataclass
from typing import Any

import torch

from ipal.config import TrainConfig
from ipal.methods.base import Batch, Network, Terms
from ipal.methods.shared.prototypes import PrototypeClassifier
from ipal.nn import losses


@dataclass(frozen=True, kw_only=True)
class PCL(PrototypeClassifier):
    """Prototype contrast alone: nodes against their own, the other current and the stored prototypes."""

    name = "pcl"
    title = "PCL"
    default_train = TrainConfig(epochs=2)

    def loss(self, network: Network, memory: Any, batch: Batch, context: Any, rng: torch.Generator) -> Terms:
        """Eq. 2."""
        f = network.encoder(batch.graph)
        online, absent = context.prototypes(f, batch.positions)
        mu = losses.unit(torch.cat([online, memory.mean[context.old]]))
        y = context.places[batch.positions]
        return {"contrast": losses.prototype_contrast(losses.unit(f), y, mu, self.tau, absent=absent)}
