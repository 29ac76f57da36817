"""LwF: learning without forgetting.

Li & Hoiem 2017, "Learning without Forgetting", https://arxiv.org/abs/1606.09282. Differences from the paper: one
head over all classes and no task identity; the whole network is trained from the first epoch, without a warm-up
of the new rows. Widely used graph code adds a Kullback-Leibler divergence scaled by the squared temperature; here
it is the paper's cross-entropy.
"""

from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from ipal.backend.batches import Batch
from ipal.learners.base import Terms
from ipal.learners.classifier import Classifier, Lesson


def output_distillation(logits: Tensor, before: Tensor, T: float) -> Tensor:
    r"""Cross-entropy between softened old and new outputs over the old classes.

    .. math:: E_x \Big[ -\sum_i y'_i \log \hat y'_i \Big], \quad
        y' = \mathrm{softmax}(o_{t-1} / T), \; \hat y' = \mathrm{softmax}(o_t / T)

    Source: Li & Hoiem 2017, "knowledge distillation loss". A probability to the power 1/T, divided by the sum, is the
    softmax of outputs divided by T.
    """
    return -((before / T).softmax(dim=1) * (logits / T).log_softmax(dim=1)).sum(dim=1).mean()


@dataclass(kw_only=True, eq=False)
class LwF(Classifier):
    """Distillation of the previous network's softened outputs on the current nodes."""

    strength: float = Field(1.0, ge=0)
    """Weight of the distillation, the paper's lambda_o."""
    softening: float = Field(2.0, gt=0)
    """Temperature of the softened outputs, the paper's T."""

    name: ClassVar[str] = "lwf"
    looks_back: ClassVar[bool] = True

    def terms(self, f: Tensor, batch: Batch, prepared: Lesson) -> Terms:
        terms = super().terms(f, batch, prepared)
        if self.previous_ is not None and prepared.before is not None:
            before = self.previous_["head"](self.seen_before(batch, prepared.before))
            now = self.head_(f)[:, : before.shape[1]]
            terms["distillation"] = self.strength * output_distillation(now, before, self.softening)
        return terms
