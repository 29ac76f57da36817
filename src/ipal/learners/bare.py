"""Bare: plain fine-tuning, the lower reference. Nothing is done against forgetting."""

from typing import ClassVar

from pydantic.dataclasses import dataclass

from ipal.learners.classifier import Classifier


@dataclass(kw_only=True, eq=False)
class Bare(Classifier):
    """Cross-entropy on the current task, nothing against forgetting: the lower reference."""

    name: ClassVar[str] = "bare"
