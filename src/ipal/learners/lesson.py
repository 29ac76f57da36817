"""What the steps of one task need, and the cross-entropy of its nodes."""

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ipal.backend.batches import Batch


def balanced_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy in which every class that is present counts the same, whatever its number of nodes."""
    return F.cross_entropy(logits, labels, weight=class_weights(logits, labels))


def class_weights(logits: Tensor, labels: Tensor) -> Tensor:
    """1 / n of every class that is present, by which all of them count the same."""
    classes = torch.arange(logits.shape[1], device=labels.device)
    return (labels[:, None] == classes).sum(dim=0).to(logits.dtype).clamp_min(1).reciprocal()


@dataclasses.dataclass(frozen=True, eq=False)
class Before:
    """The network as it was before the task."""

    network: nn.ModuleDict
    embed: Callable[[nn.ModuleDict], Tensor]
    """Gives embeddings by it."""
    embedded: list[Tensor] = dataclasses.field(default_factory=list)
    """What it gave, or what was found for several networks at once; nothing as long as nobody has asked."""

    @property
    def embeddings(self) -> Tensor:
        """Of all training nodes of the task, on their whole graph."""
        self.find()
        return self.embedded[0]

    def find(self) -> None:
        """Have the embeddings at hand."""
        if not self.embedded:
            self.embedded.append(self.embed(self.network))

    def of(self, batch: Batch) -> Tensor:
        """Embeddings of a batch's nodes.

        In a mini-batch both networks see the same sample: what differs is what was learned, not what was drawn.
        """
        if isinstance(batch.positions, slice):
            return self.embeddings
        with torch.no_grad():
            embeddings: Tensor = self.network["encoder"](batch.graph)
        return embeddings


@dataclasses.dataclass(frozen=True, eq=False)
class Lesson:
    """What the steps of one task need, all of it derived from the state and the task."""

    labels: Tensor
    """Class of each training node, as its place in `classes_`."""
    current: Tensor
    """Classes being learned."""
    old: Tensor
    """Known classes that are not being learned."""
    before: Before | None
    """The network before the task; None at the first task, and where the method does not look back."""

    def cross_entropy(self, logits: Tensor, here: Tensor | slice, competing: str = "seen") -> Tensor:
        """Class-balanced cross-entropy of the training nodes `here`: over all classes seen, or the current ones."""
        if competing == "current":
            logits = logits.index_fill(1, self.old, -torch.inf)
        return balanced_cross_entropy(logits, self.labels[here])
