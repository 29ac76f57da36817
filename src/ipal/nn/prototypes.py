"""What a learner remembers of a class: a Gaussian over embeddings. An immutable value; no node survives in it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ipal.backend import fused
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


def followed(slow: Tensor, theta: Tensor, momentum: float) -> Tensor:
    r"""Weights that follow others slowly.

    .. math:: \bar\theta' = m \bar\theta + (1 - m) \theta

    Source: Tarvainen & Valpola 2017, "Mean teachers are better role models". `slow` is the mean so far, m is
    `momentum`. With m = n / (n + n') it is the mean over all nodes, n so far and n' in the batch that gave `theta`.
    """
    return torch.lerp(theta, slow, momentum)


@dataclass(frozen=True, eq=False)
class PrototypeMemory:
    """One Gaussian per class, in the order in which classes were learned. Every change gives a new memory."""

    mean: Tensor
    """(classes, width)"""
    variance: Tensor
    """(classes, width), the diagonal of the covariance."""
    count: Tensor
    """(classes,), the number of training nodes behind each."""

    @classmethod
    def empty(cls, width: int, device: torch.device) -> "PrototypeMemory":
        return cls(
            torch.zeros(0, width, device=device),
            torch.zeros(0, width, device=device),
            torch.zeros(0, dtype=torch.int64, device=device),
        )

    def __len__(self) -> int:
        return len(self.mean)

    def moved(self, classes: Tensor, mean: Tensor) -> "PrototypeMemory":
        """The means of `classes` replaced; variances stay."""
        return PrototypeMemory(self.mean.index_copy(0, classes, mean), self.variance, self.count)

    def learned(self, classes: Tensor, mean: Tensor, variance: Tensor, count: Tensor) -> "PrototypeMemory":
        """With the Gaussians of `classes` added; a class that was here already is pooled with what is known.

        Pooling matches the first two moments of the mixture, weighted by the numbers of nodes. `classes`
        beyond the end must continue the numbering.
        """
        size = max(len(self), int(classes.max()) + 1)
        old = self.padded(size)
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

    def united(self, places: Tensor, classes: int) -> "PrototypeMemory":
        """So many classes, drawn together: class i is a part of class `places[i]`. Pooled as in `learned`."""
        empty = PrototypeMemory.empty(self.mean.shape[1], self.mean.device).padded(classes)
        count = empty.count.index_add(0, places, self.count)
        share = (self.count / count[places]).to(self.mean.dtype)[:, None]
        mean = empty.mean.index_add(0, places, share * self.mean)
        spread = self.variance + (self.mean - mean[places]).square()
        return PrototypeMemory(mean, empty.variance.index_add(0, places, share * spread), count)

    def sample(self, classes: Tensor, k: int, generator: torch.Generator) -> Tensor:
        """`k` embeddings from the Gaussian of each of `classes`: (classes * k, width)."""
        return self.of(classes).drawn(k, generator)

    def drawn(self, k: int, generator: torch.Generator) -> Tensor:
        """`k` embeddings from the Gaussian of every class: (classes * k, width)."""
        noise = torch.randn(len(self), k, self.mean.shape[1], generator=generator, device=self.mean.device)
        return (self.mean[:, None] + self.variance.sqrt()[:, None] * noise).flatten(0, 1)

    def directions_drawn(self, k: int, generator: torch.Generator) -> Tensor:
        """The same, scaled to length one."""
        if not fused.can_fuse(self.mean):
            return unit(self.drawn(k, generator))
        noise = torch.randn(len(self), k, self.mean.shape[1], generator=generator, device=self.mean.device)
        return fused.directions_drawn(self.mean, self.variance, noise)

    def of(self, classes: Tensor) -> "PrototypeMemory":
        """What is remembered of `classes`, in their order."""
        return PrototypeMemory(self.mean[classes], self.variance[classes], self.count[classes])

    def padded(self, size: int) -> "PrototypeMemory":
        """With rows for so many classes; those that are not here have no nodes behind them."""
        more = size - len(self)
        pad = torch.nn.functional.pad
        return PrototypeMemory(
            pad(self.mean, (0, 0, 0, more)), pad(self.variance, (0, 0, 0, more)), pad(self.count, (0, more))
        )
