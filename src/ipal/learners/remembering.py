"""Methods that remember a class as a Gaussian over embeddings."""

from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.learners.base import Remembered
from ipal.learners.trained import Prepared, TrainedLearner
from ipal.memory import PrototypeMemory


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
