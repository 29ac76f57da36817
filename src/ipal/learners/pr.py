"""PR: conventional prototype replay.

Song, Li, Guan & Kong 2025 (the IPAL paper), Eq. 1: cross-entropy on current nodes and on features drawn from the
Gaussians of old classes. Differences from the paper: it names no number of draws; `samples` a class and step.
"""

import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.batches import Batch
from ipal.config import Draws
from ipal.data.streams import Task
from ipal.learners.gaussian_memory import PROTOTYPES
from ipal.learners.trained import Lesson, TrainedLearner
from ipal.learners.values import Terms
from ipal.nn.prototypes import PrototypeMemory, weighted_mean, weighted_variance


def replay_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Cross-entropy of features drawn from memory, by the current head.

    .. math:: E_{(f_M^m, y_M^m) \in M} \big[ -y_M^m \log g_{\phi_t}(f_M^m) \big]

    Source: the IPAL paper, Eq. 1, right half; the left half is the cross-entropy of current nodes.
    """
    return F.cross_entropy(logits, labels)


@dataclass(kw_only=True, eq=False)
class PR(TrainedLearner[Lesson]):
    """Conventional prototype replay: cross-entropy on nodes and on samples of old classes' Gaussians."""

    samples: Draws = 10
    """Features drawn for each old class at each step."""

    name = "pr"
    title = "PR"
    recordable = True
    kept = (PROTOTYPES,)

    def initialise(self, num_features: int) -> None:
        super().initialise(num_features)
        self.memory_ = PrototypeMemory.empty(self.encoder_.width, self.generator_.device)

    def loss(self, batch: Batch, lesson: Lesson) -> Terms:
        terms = super().loss(batch, lesson)
        if len(lesson.old):
            drawn = self.memory_.sample(lesson.old, self.samples, self.generator_)
            labels = lesson.old.repeat_interleave(self.samples)
            terms["replay"] = replay_cross_entropy(self.head_(drawn), labels)
        return terms

    def end_task(self, task: Task, lesson: Lesson) -> None:
        members = (lesson.labels[None, :] == lesson.current[:, None]).float()
        weights = members / members.sum(dim=1, keepdim=True)
        f = self.training_embeddings(task)
        mean = weighted_mean(f, weights)
        count = members.sum(dim=1).long()
        self.memory_ = self.memory_.learned(lesson.current, mean, weighted_variance(f, mean, weights), count)
