"""EFC: elastic feature consolidation.

Magistri et al. 2024 (ICLR), "Elastic Feature Consolidation for Cold Start Exemplar-Free Incremental Learning",
https://arxiv.org/abs/2402.03917. Features may drift where the head does not see it: a matrix of the feature space says
in which directions they may not. Old classes are replayed from full Gaussians, asymmetrically. Differences from
the paper: the mix of replayed and current features is not drawn in proportion to the numbers of classes but
weighted so, every class counting the same; the covariances' ridge is 0.1, which is stable on graphs.
"""

import dataclasses
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.batches import Batch
from ipal.config import Draws
from ipal.data.streams import Task
from ipal.errors import DataError
from ipal.learners.analytic.ridge import shifted_cholesky
from ipal.learners.checks import check_shapes, check_symmetric, require
from ipal.learners.gaussian_memory import PROTOTYPES
from ipal.learners.kept import Kept
from ipal.learners.trained import Lesson, TrainedLearner, balanced_cross_entropy
from ipal.learners.values import Remembered, Terms
from ipal.nn.prototypes import PrototypeMemory


def feature_matrix(W: Tensor, p: Tensor) -> Tensor:
    r"""Empirical feature matrix: how much the outputs feel each direction of the feature space.

    .. math:: E = E_x \big[ W^T (\mathrm{diag}(p) - p p^T) W \big]

    Source: Magistri et al. 2024. `W` (classes x width) is the head, `p` (nodes x classes) its softmax.
    """
    return W.T @ (torch.diag(p.mean(dim=0)) - p.T @ p / len(p)) @ W


def feature_consolidation(f: Tensor, f_before: Tensor, M: Tensor) -> Tensor:
    r"""Mean squared drift of features in the metric `M`.

    .. math:: E_x \big[ (f_t - f_{t-1})^T M (f_t - f_{t-1}) \big], \quad M = \lambda E_{t-1} + \eta I

    Source: Magistri et al. 2024, the regulariser.
    """
    drift = f - f_before
    return ((drift @ M) * drift).sum(dim=1).mean()


def drifted_means(mu: Tensor, f: Tensor, f_before: Tensor, E: Tensor, sigma: float) -> Tensor:
    r"""Old means moved with the nodes that are near them in the metric E.

    .. math:: \mu_c + \sum_i w_{ci} (f_i - f'_i), \quad w_{ci} \propto e^{s_{ci} / (2 \sigma^2)}

    Source: Magistri et al. 2024, prototype drift. s is minus the squared E-distance of f'_i to mu_c, scaled to 0..1
    over all classes and nodes together.
    """
    s = -((f_before @ E * f_before).sum(dim=1)[None] - 2 * mu @ E @ f_before.T + (mu @ E * mu).sum(dim=1)[:, None])
    s = (s - s.min()) / (s.max() - s.min()).clamp_min(1e-12)
    w = (s / (2 * sigma**2)).softmax(dim=1)
    return mu + w @ (f - f_before)


@dataclasses.dataclass(frozen=True, eq=False)
class Replay(Lesson):
    """What the steps of one task need, and how to draw features of old classes."""

    roots: Tensor
    """(old classes, width, width), Cholesky factors of their covariances."""


def check_covariance(learner: Any, covariance: Tensor, whole: bool) -> None:
    """Refuse what is not one covariance for every prototype."""
    width = learner.encoder_.width
    check_shapes({"covariance": covariance}, [("covariance", (len(learner.memory_), width, width))])
    check_symmetric(covariance, "covariance")
    _, failed = shifted_cholesky(covariance, learner.ridge)
    require(not failed, "'covariance' holds what is no covariance")


@dataclass(kw_only=True, eq=False)
class EFC(TrainedLearner[Replay]):
    """Elastic feature consolidation: drift is bounded where it matters, old classes are replayed from Gaussians."""

    strength: float = Field(10.0, ge=0)
    """Weight of the empirical feature matrix in the regulariser."""
    damping: float = Field(0.1, ge=0)
    """Weight of the identity in the regulariser."""
    ridge: float = Field(0.1, gt=0)
    """Added to the diagonal of every covariance before it is drawn from."""
    sigma: float = Field(0.2, gt=0)
    """Width of the weights by which means follow the drift."""
    samples: Draws = 20
    """Features drawn for each old class at each step."""

    competing: ClassVar[Literal["seen"]] = "seen"  # type: ignore[misc]  # no setting: the replay decides it
    name = "efc"
    title = "EFC"
    looks_back = True
    recordable = True
    kept = (
        PROTOTYPES,
        Kept("covariance", "per class: full covariance of its embeddings", check=check_covariance),
        Kept(
            "feature_matrix",
            "which directions of the embeddings the outputs depend on",
            shape=("width", "width"),
        ),
    )

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        width, device = self.encoder_.width, self.generator_.device
        self.memory_ = PrototypeMemory.empty(width, device)
        self.covariance_ = torch.zeros(0, width, width, device=device)
        self.feature_matrix_ = torch.zeros(width, width, device=device)

    def prepare(self, task: Task) -> Replay:
        lesson = super().prepare(task)
        roots, failed = shifted_cholesky(self.covariance_[lesson.old], self.ridge, "the covariances of old classes")
        if failed:
            raise DataError(f"A covariance has no square root with efc.ridge={self.ridge:g}: set a larger one.")
        return Replay(**vars(lesson), roots=roots)

    def loss(self, batch: Batch, lesson: Replay) -> Terms:
        f, labels = self.encoder_(batch.graph), lesson.labels[batch.positions]
        logits = self.head_(f)
        if lesson.before is None or not len(lesson.old):
            return {"cross_entropy": balanced_cross_entropy(logits, labels)}
        drawn = self._draw(lesson)
        mixed = torch.cat([logits, self.head_(drawn)])
        mixed_labels = torch.cat([labels, lesson.old.repeat_interleave(self.samples)])
        eye = torch.eye(f.shape[1], device=f.device)
        metric = self.strength * self.feature_matrix_ + self.damping * eye
        return {
            "cross_entropy": lesson.cross_entropy(logits, batch.positions, "current"),
            "replay": balanced_cross_entropy(mixed, mixed_labels),
            "consolidation": feature_consolidation(f, lesson.before.of(batch), metric),
        }

    def _draw(self, lesson: Replay) -> Tensor:
        """`samples` features of each old class's Gaussian."""
        root, mean = lesson.roots, self.memory_.mean[lesson.old]
        noise = torch.randn(len(mean), self.samples, mean.shape[1], generator=self.generator_, device=mean.device)
        drawn: Tensor = (mean[:, None] + noise @ root.mT).flatten(0, 1)
        return drawn

    def end_task(self, task: Task, lesson: Replay) -> None:
        f = self.training_embeddings(task)
        if lesson.before is not None and len(lesson.old):
            mu = self.memory_.mean[lesson.old]
            moved = drifted_means(mu, f, lesson.before.embeddings, self.feature_matrix_, self.sigma)
            self.memory_ = self.memory_.moved(lesson.old, moved)
        self.feature_matrix_ = feature_matrix(self.head_.weight, self.head_(f).softmax(dim=1))
        for label in lesson.current:
            self._remember(label[None], f[lesson.labels == label])

    def _remember(self, row: Tensor, f: Tensor) -> None:
        """Add a class; one that was known is pooled with what is known of it, as the memory pools its means."""
        mean, known = f.mean(dim=0), int(row) < len(self.memory_)
        covariance = torch.cov(f.T, correction=0).reshape(2 * f.shape[1:])  # of one column it gives no matrix
        if known:
            share = len(f) / (len(f) + int(self.memory_.count[row]))
            apart = mean - self.memory_.mean[row[0]]
            between = share * (1 - share) * torch.outer(apart, apart)
            covariance = torch.lerp(self.covariance_[row[0]], covariance, share) + between
            self.covariance_ = self.covariance_.index_copy(0, row, covariance[None])
        else:
            self.covariance_ = torch.cat([self.covariance_, covariance[None]])
        count = torch.tensor([len(f)], device=f.device)
        self.memory_ = self.memory_.learned(row, mean[None], f.var(dim=0, correction=0)[None], count)

    def remembered(self) -> dict[str, Remembered]:
        kept = enumerate(super().remembered().items())
        return {name: dataclasses.replace(one, second=partial(self._products, row)) for row, (name, one) in kept}

    def _products(self, row: int) -> Tensor:
        """Sum of products of a class's rows, from mean and covariance."""
        mean = self.memory_.mean[row]
        return int(self.memory_.count[row]) * (self.covariance_[row] + torch.outer(mean, mean))
