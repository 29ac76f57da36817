"""Bare: plain fine-tuning, the lower reference. Nothing is done against forgetting."""

from dataclasses import dataclass
from typing import Any

import torch

from ipal.methods.base import Space
from ipal.methods.classifier import Classifier


@dataclass(frozen=True, kw_only=True)
class Bare(Classifier):
    """Cross-entropy on the current task, nothing against forgetting: the lower reference."""

    name = "bare"
    title = "Bare"

    def init(self, space: Space) -> None:
        """Nothing is remembered but the network."""

    def end_task(self, network: Any, memory: None, context: Any, rng: torch.Generator) -> None:
        """Nothing is added."""
