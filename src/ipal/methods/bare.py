"""Bare: plain fine-tuning, the lower reference. Nothing is done against forgetting."""

from dataclasses import dataclass

from ipal.config import TrainConfig
from ipal.methods.classifier import Classifier


@dataclass(frozen=True, kw_only=True)
class Bare(Classifier):
    """Cross-entropy on the current task, nothing against forgetting: the lower reference."""

    name = "bare"
    title = "Bare"
    default_train = TrainConfig(epochs=50)
