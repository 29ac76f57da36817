"""Prototypes: a Gaussian over embeddings for every class, and how the nodes of a task make them.

The memory is an immutable value; no node survives in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ipal.backend.checks import check_counts, require
from ipal.config import Positive
from ipal.methods.base import Network, Space, TaskContext, Trained, extended
from ipal.nn.losses import unit


def weighted_mean(f: Tensor, r: Tensor) -> Tensor:
    r"""Prototype of each class, nodes weighted by their importance.

    .. math:: \mu_k = \frac{\sum_x r_x 1\{y=k\} f(x)}{\sum_x r_x 1\{y=k\}}

    Source: the IPAL paper, Eq. 4 (TIGP), left half. `r` (classes x nodes) holds r_x 1{y=k}, each row divided by
    its sum. With equal weights inside a class this is the mean-based prototype of Eq. 2.
    """
    return r @ f


def weighted_variance(f: Tensor, mu: Tensor, r: Tensor) -> Tensor:
    r"""Diagonal variance of each class around its prototype, one value per dimension.

    .. math:: \sigma_k^2 = \frac{\sum_x r_x 1\{y=k\} (f(x) - \mu_k)^2}{\sum_x r_x 1\{y=k\}}

    Source: the IPAL paper, Eq. 4 (TIGP), right half; `r` as in `weighted_mean`.
    """
    return torch.stack([row @ (f - centre).square() for row, centre in zip(r, mu, strict=True)])


def pooled_mean(mu: Tensor, n: Tensor, m: Tensor, n_new: Tensor) -> Tensor:
    r"""Means of what is remembered and of further nodes together, each with its number of nodes.

    .. math:: \mu'_c = \frac{n_c \mu_c + n'_c m_c}{n_c + n'_c}

    Source: Chan et al. 1983, "Algorithms for Computing the Sample Variance". `mu` and `m` (classes x width) are means
    over `n` and `n_new` (classes) nodes; where neither has a node, `mu` stays.
    """
    share = (n_new.to(m.dtype) / (n + n_new).clamp_min(1).to(m.dtype))[:, None]
    return torch.lerp(mu, m, share)


@dataclass(frozen=True, eq=False)
class PrototypeMemory:
    """One Gaussian per class, in the order in which classes were learned. Every change gives a new memory."""

    mean: Tensor
    """mean embedding of every class"""
    variance: Tensor
    """variance of every class's embeddings, one number a dimension"""
    count: Tensor
    """number of training nodes of every class"""

    @classmethod
    def empty(cls, width: int, device: torch.device) -> "PrototypeMemory":
        mean, variance = (torch.zeros(0, width, device=device) for _ in range(2))
        return cls(mean, variance, torch.zeros(0, dtype=torch.int64, device=device))

    def check(self, classes: int, parameters: Mapping[str, Tensor], whole: bool) -> None:
        """Refuse what is not one Gaussian for every class that was learned."""
        known = self.count.numel()
        is_complete = known == classes if whole else known <= classes
        require(
            is_complete and len(self.mean) == len(self.variance) == known, "it has not one prototype for every class"
        )
        check_counts(self.count, "count")
        require((self.variance >= 0).all(), "a variance is negative")

    def finite_parts(self) -> dict[str, Tensor]:
        """Finite only if no embedding of a class is NaN, infinite, or too large to be squared."""
        return {"squared_lengths": self.mean.square().sum(dim=1), "variance": self.variance}

    def moved(self, classes: Tensor, mean: Tensor) -> "PrototypeMemory":
        """The means of `classes` replaced; variances stay."""
        return PrototypeMemory(self.mean.index_copy(0, classes, mean), self.variance, self.count)

    def learned(self, classes: Tensor, mean: Tensor, variance: Tensor, count: Tensor) -> "PrototypeMemory":
        """With the Gaussians of `classes` added; a class that was here already is pooled with what is known.

        Pooling matches the first two moments of the mixture, weighted by the numbers of nodes. `classes`
        beyond the end must continue the numbering.
        """
        old = self.padded(max(len(self.mean), int(classes.max()) + 1))
        n_old, n_new = old.count[classes, None].to(mean.dtype), count[:, None].to(mean.dtype)
        share = n_new / (n_old + n_new)
        pooled = pooled_mean(old.mean[classes], old.count[classes], mean, count)
        within = torch.lerp(old.variance[classes], variance, share)
        between = share * (1 - share) * (old.mean[classes] - mean).square()
        return PrototypeMemory(
            old.mean.index_copy(0, classes, pooled),
            old.variance.index_copy(0, classes, within + between),
            old.count.index_copy(0, classes, old.count[classes] + count),
        )

    def merged(self, places: Tensor, classes: int) -> "PrototypeMemory":
        """Classes pooled as in `learned`: class i becomes a part of class `places[i]` of so many."""
        found = PrototypeMemory.empty(self.mean.shape[1], self.mean.device).padded(classes)
        for one in (slice(row, row + 1) for row in range(len(self.mean))):
            found = found.learned(places[one], self.mean[one], self.variance[one], self.count[one])
        return found

    def draw(self, k: int, generator: torch.Generator) -> Tensor:
        """`k` embeddings from the Gaussian of every class: (classes * k, width)."""
        noise = torch.randn(len(self.mean), k, self.mean.shape[1], generator=generator, device=self.mean.device)
        return (self.mean[:, None] + self.variance.sqrt()[:, None] * noise).flatten(0, 1)

    def of(self, classes: Tensor) -> "PrototypeMemory":
        """What is remembered of `classes`, in their order."""
        return PrototypeMemory(self.mean[classes], self.variance[classes], self.count[classes])

    def padded(self, size: int) -> "PrototypeMemory":
        """With rows for so many classes; those that are not here have no nodes behind them."""
        more = size - len(self.mean)
        mean, variance = (F.pad(part, (0, 0, 0, more)) for part in (self.mean, self.variance))
        return PrototypeMemory(mean, variance, F.pad(self.count, (0, more)))


@dataclass(frozen=True, eq=False)
class HasPrototypes:
    """A memory of prototypes and more."""

    prototypes: PrototypeMemory
    """per class: mean and variance of its embeddings, number of nodes behind them"""

    @property
    def mean(self) -> Tensor:
        return self.prototypes.mean

    @property
    def count(self) -> Tensor:
        return self.prototypes.count


@dataclass(frozen=True, eq=False, kw_only=True)
class PrototypeContext(TaskContext):
    """What the steps of a task need where nodes are compared with prototypes."""

    places: Tensor
    """Class of each training node, as a place in `current`."""
    members: Tensor
    """(current classes x training nodes), which node is of which class."""
    weights: Tensor
    """(current classes x training nodes), each node's share in its class's prototype (Eq. 3)."""

    @classmethod
    def of(cls, context: TaskContext, importance: NDArray[np.float64], **more: Any) -> Self:
        """`importance` says how much each training node weighs in its class's prototype."""
        members = context.labels[None, :] == context.current[:, None]
        weights = members * torch.from_numpy(importance).to(context.labels.device)
        shares = (weights / weights.sum(dim=1, keepdim=True)).float()
        places = torch.searchsorted(context.current, context.labels)
        return extended(cls, context, places=places, members=members, weights=shares, **more)

    def prototypes(self, f: Tensor, here: Tensor | slice) -> tuple[Tensor, Tensor | None]:
        """Online prototypes of the current classes (Eq. 4), and which of current and old ones are absent.

        In a mini-batch a class's prototype is the mean of those of its nodes that are there; of all nodes none is
        absent, and nothing is said.
        """
        if isinstance(here, slice):
            return weighted_mean(f, self.weights), None
        weights = self.weights[:, here]
        total = weights.sum(dim=1, keepdim=True)
        shares = weights / total.clamp_min(torch.finfo(total.dtype).tiny)
        return weighted_mean(f, shares), F.pad(total[:, 0] == 0, (0, len(self.old)))

    def learned(self, memory: PrototypeMemory, f: Tensor) -> PrototypeMemory:
        """A memory with the current classes added, from the embeddings of all training nodes."""
        mean = weighted_mean(f, self.weights)
        variance = weighted_variance(f, mean, self.weights)
        return memory.learned(self.current, mean, variance, self.members.sum(dim=1))


@dataclass(frozen=True, kw_only=True)
class PrototypeClassifier(Trained):
    """A method that scores classes by the cosine of an embedding with their prototypes."""

    tau: Positive = 0.07
    """Temperature of the contrast (Eq. 2, 10)."""

    def init(self, space: Space) -> Any:
        return PrototypeMemory.empty(space.width, space.device)

    def prepare(self, memory: Any, context: TaskContext) -> Any:
        return PrototypeContext.of(context, np.ones(len(context.task.nodes)))

    def end_task(self, network: Network, memory: Any, context: Any, rng: torch.Generator) -> Any:
        return context.learned(memory, context.embeddings(network))

    def directed(self, rows: Tensor) -> Tensor:
        """What is done to rows before they are multiplied."""
        return unit(rows)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Of every row of `a` with every row of `b`."""
        return self.directed(a) @ self.directed(b).T

    def classify(self, network: Network, memory: Any, f: Tensor) -> Tensor:
        return self.product(f, memory.mean)

    def probabilities(self, memory: Any, scores: Tensor, graph: Any, compute: Any, nodes: Any = None) -> Tensor:
        return (scores / self.tau).softmax(dim=-1)

    def mean_logs(self, memory: Any) -> Tensor:
        return self.product(memory.mean, memory.mean) / self.tau

    def merge_classes(self, memory: Any, places: Tensor, classes: int) -> Any:
        """As where a class returns, in the embeddings of the encoder as it is."""
        return memory.merged(places, classes)
