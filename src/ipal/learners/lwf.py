"""LwF: learning without forgetting.

Li & Hoiem 2017, "Learning without Forgetting", https://arxiv.org/abs/1606.09282. Differences from the paper: one
head over all classes and no task identity; the whole network is trained from the first epoch, without a warm-up
of the new rows; and the distillation is scaled by the squared temperature, as Hinton et al. 2015 ask for, so that its
gradient does not fade with the temperature and `strength` means the same at each.
"""

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.batches import Batch
from ipal.learners.trained import Lesson, TrainedLearner
from ipal.learners.values import Terms


def output_distillation(logits: Tensor, before: Tensor, T: float) -> Tensor:
    r"""Cross-entropy between softened old and new outputs over the old classes, times the squared temperature.

    .. math:: T^2 \, E_x \Big[ -\sum_i y'_i \log \hat y'_i \Big], \quad
        y' = \mathrm{softmax}(o_{t-1} / T), \; \hat y' = \mathrm{softmax}(o_t / T)

    Source: Li & Hoiem 2017, "knowledge distillation loss"; the factor is of Hinton et al. 2015, "Distilling the
    Knowledge in a Neural Network", Sec. 2. A probability to the power 1/T, divided by the sum, is the softmax of
    outputs divided by T.
    """
    return -(T**2) * ((before / T).softmax(dim=1) * (logits / T).log_softmax(dim=1)).sum(dim=1).mean()


@dataclass(kw_only=True, eq=False)
class LwF(TrainedLearner[Lesson]):
    """Distillation of the previous network's softened outputs on the current nodes."""

    strength: float = Field(1.0, ge=0)
    """Weight of the distillation, the paper's lambda_o."""
    softening: float = Field(2.0, gt=0)
    """Temperature of the softened outputs, the paper's T."""

    name = "lwf"
    title = "LwF"
    looks_back = True
    recordable = True
    stackable = frozenset({"strength", "softening"})

    def loss(self, batch: Batch, lesson: Lesson) -> Terms:
        f = self.encoder_(batch.graph)
        terms = {"cross_entropy": lesson.cross_entropy(self.head_(f), batch.positions, self.competing)}
        if lesson.before is not None:
            before = lesson.before.network["head"](lesson.before.of(batch))
            now = self.head_(f)[:, : before.shape[1]]
            terms["distillation"] = self.strength * output_distillation(now, before, self.softening)
        return terms
