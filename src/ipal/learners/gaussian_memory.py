"""Methods that remember a class as a Gaussian over embeddings."""

from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.learners.base import Remembered
from ipal.learners.checks import check_counts, check_shapes, check_type, require
from ipal.learners.trained import Prepared, TrainedLearner
from ipal.nn.prototypes import PrototypeMemory


@dataclass(kw_only=True, eq=False)
class RemembersClasses(TrainedLearner[Prepared]):
    """A trained learner with a memory of prototypes."""

    keeps: ClassVar[dict[str, str]] = TrainedLearner.keeps | {
        "prototypes": "per class: mean and variance of its embeddings, number of nodes behind them",
    }

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.memory_ = PrototypeMemory.empty(self.encoder.width, self.generator_.device)

    def nodes_behind_class(self) -> dict[str, int]:
        counts = self.memory_.count.tolist()
        return {str(label): count for label, count in zip(self.labels_, counts, strict=False)}

    def remembered(self) -> dict[str, Remembered]:
        counts = self.nodes_behind_class().items()
        return {name: Remembered(n, mean) for (name, n), mean in zip(counts, self.memory_.mean, strict=True)}

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | self.memory_.tensors("prototypes")

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        super().load_tensors(tensors)
        self.memory_ = PrototypeMemory.of_tensors(tensors, "prototypes", self.generator_.device)

    def check(self, whole: bool) -> None:
        super().check(whole)
        parts, known = self.memory_.tensors("prototypes"), self.memory_.count.numel()
        fits = known == len(self.labels_) if whole else known <= len(self.labels_)
        require(fits, "it has not one prototype for every class")
        check_shapes(parts, ((f"prototypes.{name}", (known, self.encoder.width)) for name in ("mean", "variance")))
        check_shapes(parts, [("prototypes.count", (known,))])
        check_type(torch.float32, self.memory_.mean, self.memory_.variance)
        check_counts(self.memory_.count, "prototypes.count")
        require((self.memory_.variance >= 0).all(), "a variance is negative")
