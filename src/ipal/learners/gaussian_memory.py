"""A Gaussian over embeddings for every class: how methods with prototypes learn, keep and check them."""

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ipal.data.centrality import MOST_KEPT
from ipal.data.streams import Task
from ipal.learners.checks import check_counts, check_shapes, require
from ipal.learners.kept import Kept
from ipal.learners.trained import Lesson
from ipal.nn.losses import OldPrototypes
from ipal.nn.prototypes import PrototypeMemory, pooled_mean, weighted_mean, weighted_variance


def check_prototypes(learner: Any, memory: PrototypeMemory, whole: bool) -> None:
    """Refuse what is not one Gaussian for every class that was learned."""
    parts, known, width = vars(memory), memory.count.numel(), learner.encoder_.width
    fits = known == len(learner.labels_) if whole else known <= len(learner.labels_)
    require(fits, "it has not one prototype for every class")
    check_shapes(parts, [("mean", (known, width)), ("variance", (known, width)), ("count", (known,))])
    check_counts(memory.count, "prototypes.count")
    require((memory.variance >= 0).all(), "a variance is negative")


def finite_parts(learner: Any) -> dict[str, Tensor]:
    """Finite only if no embedding of a class is NaN, infinite, or too large to be squared."""
    memory = learner.memory_
    return {"prototypes.squared_lengths": memory.mean.square().sum(dim=1), "prototypes.variance": memory.variance}


PROTOTYPES = Kept(
    "prototypes",
    "per class: mean and variance of its embeddings, number of nodes behind them",
    attribute="memory_",
    check=check_prototypes,
    look=finite_parts,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Episode(Lesson):
    """What the steps of one task need where nodes are compared with prototypes."""

    places: Tensor
    """Class of each training node, as a place in `current`."""
    members: Tensor
    """(current classes x training nodes), which node is of which class."""
    weights: Tensor
    """(current classes x training nodes), each node's share in its class's prototype (Eq. 3)."""
    known: PrototypeMemory | None = None
    """What is remembered of the current classes, to be pooled with their nodes; None where tasks have boundaries."""
    remembered: PrototypeMemory | None = None
    """What is remembered of the old classes, for methods that ask for it."""
    held: OldPrototypes | None = None
    """Prototypes that a distillation holds in place, for methods that have one."""

    @classmethod
    def of(cls, lesson: Lesson, importance: NDArray[np.float64]) -> "Episode":
        """`importance` says how much each training node weighs in its class's prototype."""
        members = lesson.labels[None, :] == lesson.current[:, None]
        weights = members * torch.from_numpy(importance).to(lesson.labels.device)
        shares = (weights / weights.sum(dim=1, keepdim=True)).float()
        places = torch.searchsorted(lesson.current, lesson.labels)
        return cls(**vars(lesson), places=places, members=members, weights=shares)

    @classmethod
    def of_task(
        cls, task: Task, lesson: Lesson, rule: Hashable, importance: Callable[[], NDArray[np.float64]]
    ) -> "Episode":
        """The same of a task, made once for all learners that are handed it; `rule` names the importance."""
        alone = dataclasses.replace(lesson, before=None)
        key = (rule, id(lesson.labels))
        made = task.derived("episode", key, lambda: cls.of(alone, importance()), most=MOST_KEPT)
        return dataclasses.replace(made, before=lesson.before)

    def shares(self, here: Tensor | slice) -> tuple[Tensor, Tensor | None]:
        """Weights of the nodes `here` alone, and which prototypes, current and old, have no node to be made of.

        In a mini-batch a class's prototype is the mean of those of its nodes that are there; of all nodes none is
        absent, and nothing is said.
        """
        if isinstance(here, slice):
            return self.weights, None
        weights = self.weights[:, here]
        total = weights.sum(dim=1, keepdim=True)
        return weights / total.clamp_min(torch.finfo(total.dtype).tiny), F.pad(total[:, 0] == 0, (0, len(self.old)))

    def prototypes(self, f: Tensor, here: Tensor | slice) -> tuple[Tensor, Tensor | None]:
        """Prototypes of the current classes, and which of current and old ones are none (see `shares`).

        Of the nodes `here` alone or, without boundaries, of these and of what is remembered: a class with one node is
        then not compared with itself.
        """
        weights, absent = self.shares(here)
        mean = weighted_mean(f, weights)
        if self.known is None:
            return mean, absent
        pooled = pooled_mean(self.known.mean, self.known.count, mean, self.members[:, here].sum(dim=1))
        if absent is not None:
            absent = absent & F.pad(self.known.count == 0, (0, len(self.old)))
        return pooled, absent

    def drift_weights(self, w: Tensor) -> Tensor:
        """Weights of the nodes in the drift of every remembered class: `w` (nodes x classes), as Eq. 12 gives them.

        A remembered class that has nodes here moves as these do.
        """
        here = self.current[self.current < w.shape[1]]  # ascending, so that they come first
        return w.index_copy(1, here, self.weights[: len(here)].T)

    def learned(self, memory: PrototypeMemory, f: Tensor) -> PrototypeMemory:
        """A memory with the current classes added, from the embeddings of all training nodes."""
        mean = weighted_mean(f, self.weights)
        variance = weighted_variance(f, mean, self.weights)
        return memory.learned(self.current, mean, variance, self.members.sum(dim=1))
