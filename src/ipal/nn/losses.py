"""The paper's equations, one pure function each: tensors in, tensors out. Weights such as gamma stay outside.

Symbols, as in the paper: `f` embeddings (nodes x width), `mu` prototypes (classes x width), `tau` temperature.
Products of embeddings and prototypes are cosines, or raw as they are printed: the caller decides.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ipal.backend import fused


def unit(rows: Tensor) -> Tensor:
    """Rows scaled to length one; a row of zeros stays. Fewer passes than `F.normalize`, backward most of all."""
    if torch.is_grad_enabled() and rows.dim() == 2 and fused.can_fuse(rows):
        return fused.unit(rows)
    squares = rows.square().sum(dim=-1, keepdim=True).clamp_min(1e-24)
    if not torch.is_grad_enabled():
        # A row too long to measure has no direction; it must not look like one of zeros. In training, what is
        # remembered of such rows is infinite, and stops it.
        squares = torch.where(squares.isfinite(), squares, torch.nan)
    return rows * squares.rsqrt()


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of every row of `a` with every row of `b`."""
    return unit(a) @ unit(b).T


def prototype_contrast(
    f: Tensor,
    labels: Tensor,
    mu: Tensor,
    tau: float,
    hard: Tensor | None = None,
    hard_labels: Tensor | None = None,
    replayed: Tensor | None = None,
    absent: Tensor | None = None,
) -> Tensor:
    r"""Prototype contrastive learning, with hard examples and replayed features as further negatives.

    .. math::
        E_x \Big[ -\log \frac{e^{f \cdot \mu_c / \tau}}{\sum_j e^{f \cdot \mu_j / \tau}
        + \sum_{c' \ne c} e^{f \cdot f^{c'} / \tau} + \sum_s e^{f \cdot s / \tau}} \Big]

    Source: the IPAL paper, Eq. 10; with neither `hard` nor `replayed` it is Eq. 2. With rows of unit length products
    are cosines. `labels` are rows of `mu` (online and offline prototypes together); a hard
    example of the node's own class is no negative, nor is one of class -1, which is none. The last sum, over samples
    of old classes' Gaussians, is described in the text and omitted in print. `absent` says which rows of `mu` are no
    prototypes: those of classes that a mini-batch has no node of.
    """
    if fused.can_fuse(f, mu):
        columns = torch.cat([one for one in (mu, hard, replayed) if one is not None]) / tau
        none = labels.new_empty(0) if hard_labels is None else hard_labels
        return fused.contrast(f @ columns.T, labels, none, len(mu), absent).mean()
    logits = [f @ (mu / tau).T]
    if absent is not None:
        logits[0] = logits[0].masked_fill_(absent, -torch.inf)
    if hard is not None and hard_labels is not None:
        no_negative = (hard_labels == labels[:, None]) | (hard_labels < 0)
        logits.append((f @ (hard / tau).T).masked_fill_(no_negative, -torch.inf))
    if replayed is not None:
        logits.append(f @ (replayed / tau).T)
    # The same as F.cross_entropy, for whose mapping over learners (stacked.py) torch would load its compiler.
    log_p = torch.cat(logits, dim=1).log_softmax(dim=1)
    return -log_p.gather(1, labels[:, None]).mean()


def feature_distillation(f: Tensor, f_before: Tensor) -> Tensor:
    r"""Mean distance of embeddings to what the previous encoder gave.

    .. math:: E_x \, \|f_t(x) - f_{t-1}(x)\|_2

    Source: the IPAL paper, Eq. 5 (FD, the ablation).
    """
    distance: Tensor = torch.linalg.vector_norm(f - f_before, dim=-1)
    return distance.mean()


def mixed_affinity(f: Tensor, mu: Tensor, lam: Tensor) -> Tensor:
    r"""Cosines of virtual features of old classes with all old prototypes: (nodes x classes m x classes k).

    .. math:: \cos(\tilde f^m, \mu_k), \quad \tilde f^m = \lambda f + (1 - \lambda) \mu_m

    Source: the IPAL paper, Eq. 6, and the products of Eq. 7 and 8. `lam` (nodes x classes m) is one draw per pair:
    the paper leaves open how often lambda is drawn. A product with a mixture is the mixture of the products, so
    the virtual features themselves, many times larger, are never formed.
    """
    directions = unit(mu)
    product = torch.lerp((mu @ directions.T)[None], (f @ directions.T)[:, None], lam[..., None])
    square = (
        (lam * torch.linalg.vector_norm(f, dim=-1, keepdim=True)).square()
        + 2 * lam * (1 - lam) * (f @ mu.T)
        + ((1 - lam) * torch.linalg.vector_norm(mu, dim=-1)).square()
    )
    cosines: Tensor = product / square.clamp_min(1e-12).sqrt()[..., None]
    return cosines


def mixed_affinity_printed(f: Tensor, mu: Tensor, lam: Tensor) -> Tensor:
    r"""Raw products of virtual features of old classes with all old prototypes: (nodes x classes m x classes k).

    .. math:: \tilde f^m \cdot \mu_k, \quad \tilde f^m = \lambda f + (1 - \lambda) \mu_m

    Source: the IPAL paper, Eq. 6, and the products of Eq. 7 and 8, as printed.
    """
    return torch.lerp((mu @ mu.T)[None], (f @ mu.T)[:, None], lam[..., None])


def keep_consistent(affinity_before: Tensor) -> Tensor:
    r"""Which virtual features are nearest to the prototype they were mixed with: (nodes x classes m).

    .. math:: \arg\max_k (\tilde f_{t-1}^{m} \cdot \mu_k) = m

    Source: the IPAL paper, Eq. 7, read as a maximum over all old prototypes, by the previous encoder.
    """
    nearest = affinity_before.argmax(dim=-1)
    return nearest == torch.arange(affinity_before.shape[-1], device=nearest.device)


def affinity_distillation(affinity: Tensor, affinity_before: Tensor, keep: Tensor) -> Tensor:
    r"""Change of the affinities of kept features to *all* old prototypes, as one norm over all of them.

    .. math:: \Big( \sum_{x, m \in idx} \sum_k
        (\tilde f_t^m \cdot \mu_k - \tilde f_{t-1}^m \cdot \mu_k)^2 \Big)^{1/2}

    Source: the IPAL paper, Eq. 8, in the form that works. It departs from the print in two ways: affinities to
    all prototypes, not only a feature's own, and the norm of all differences, not a mean over nodes. See
    `affinity_distillation_printed`; docs/results.md holds what each measured.
    """
    norm: Tensor = torch.linalg.vector_norm((affinity - affinity_before) * keep[..., None])
    return norm


@dataclass(frozen=True, eq=False)
class OldPrototypes:
    """Prototypes that stay as they are while a task is learned, and what follows from them alone."""

    mean: Tensor
    directions: Tensor
    lengths: Tensor
    products: Tensor
    """Of every mean with every direction."""

    @classmethod
    def of(cls, mean: Tensor) -> Self:
        directions = unit(mean)
        return cls(mean, directions, torch.linalg.vector_norm(mean, dim=-1), mean @ directions.T)


def distillation_by_kernel(f: Tensor, before: Tensor, chosen: Tensor, lam: Tensor, old: OldPrototypes) -> Tensor | None:
    """`affinity_distillation` of nodes `chosen`, with their cosines by Eq. 6 and 7, as one kernel; None without it."""
    if not fused.can_fuse(f, before, old.mean) or not fused.distilled_fits(len(old.mean)):
        return None
    return fused.distilled(f, before, chosen, lam, old.directions, old.lengths, old.products)


def affinity_distillation_printed(affinity: Tensor, affinity_before: Tensor, keep: Tensor) -> Tensor:
    r"""Change of the affinity of each kept feature to its own prototype, summed over classes, mean over nodes.

    .. math:: E_x \Big[ \sum_m \| \tilde f_t^m [idx] \cdot \mu_m - \tilde f_{t-1}^m [idx] \cdot \mu_m \|_2 \Big]

    Source: the IPAL paper, Eq. 8, as printed. The norm of a single number is its absolute value.
    """
    change = (affinity - affinity_before).diagonal(dim1=-2, dim2=-1)
    return (change.abs() * keep).sum(dim=1).mean()


def entropy(p: Tensor) -> Tensor:
    r"""Uncertainty of each node over the classes; `p` is (classes x nodes).

    .. math:: H(x) = -\sum_k p_k \log p_k, \quad p = \mathrm{softmax}(f \cdot [\mu_k])

    Source: the IPAL paper, Eq. 9, right half; `p` is the left half, without temperature.
    """
    summands: Tensor = torch.special.entr(p)
    return summands.sum(dim=0)


def hardness(affinity: Tensor, kind: str) -> Tensor:
    """How near each node is to a decision boundary, from its cosines to all prototypes (classes x nodes).

    Higher is harder. entropy: Eq. 9. margin: minus the gap of the two likeliest classes. energy: minus
    log-sum-exp.
    """
    if kind == "energy":
        return -torch.logsumexp(affinity, dim=0)
    p = affinity.softmax(dim=0)
    if kind == "entropy":
        return entropy(p)
    top = p.topk(min(2, len(p)), dim=0).values
    return top[-1] - top[0]


def hardest(hard: Tensor, members: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` hardest nodes of each class: their positions and their classes (rows of `members`).

    `members` (classes x nodes) says which node is of which class. A class of fewer than `k` nodes gives all, and other
    nodes as of class -1: so there are as many whatever the classes, and nothing waits for a count.
    """
    within = torch.where(members, hard, -torch.inf)
    k = min(k, within.shape[1])
    if k <= fused.MOST_HARD and fused.can_fuse(within):
        return fused.hardest(within, k)
    value, node = within.topk(k, dim=1)
    row = torch.arange(len(within), device=within.device)[:, None]
    return node.flatten(), torch.where(value > -torch.inf, row, -1).flatten()


def unseen_share(remembered: int, unseen: int) -> float:
    r"""How much of what is remembered a batch does not show: the share of its classes.

    .. math:: \gamma_b = \gamma \frac{|R \setminus B|}{|R|}

    Source: in place of gamma in the IPAL paper's Eq. 13, where tasks have no boundaries. R are the classes remembered
    before the batch, B those in it. Where every batch brings new classes alone, it is gamma.
    """
    return unseen / max(1, remembered)


def compensate(mu: Tensor, f: Tensor, f_before: Tensor, w: Tensor, beta: float) -> Tensor:
    r"""Old prototypes moved a little the way the current task's nodes moved.

    .. math:: \mu'_m = \mu_m + \beta \Delta\mu_m, \quad
        \Delta\mu_m = \sum_x w(x, \mu_m) (f_t(x) - f_{t-1}(x))

    Source: the IPAL paper, Eq. 11. `w` (Eq. 12) is nodes x classes, its columns sum to 1.
    """
    return mu + beta * (w.T @ (f - f_before))


def proximity_softmax(similarity: Tensor) -> Tensor:
    r"""Weight of every node for every old prototype, always valid; `similarity` is nodes x classes.

    .. math:: w(x, \mu_m) = \frac{e^{\cos(f_{t-1}(x), \mu_m)}}{\sum_{x'} e^{\cos(f_{t-1}(x'), \mu_m)}}

    Source: in place of the IPAL paper's Eq. 12, whose ratio can be negative or divide by nearly zero.
    """
    return similarity.softmax(dim=0)


def proximity_printed(similarity: Tensor) -> Tensor:
    r"""Weight of every node for every old prototype, as printed; `similarity` is nodes x classes.

    .. math:: w(x, \mu_m) = \frac{f_{t-1}(x) \cdot \mu_m}{\sum_{x'} f_{t-1}(x') \cdot \mu_m}

    Source: the IPAL paper, Eq. 12.
    """
    return similarity / similarity.sum(dim=0)
