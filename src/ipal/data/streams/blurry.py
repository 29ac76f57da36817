"""Blurry: groups of classes overlap in time, and nobody says where one ends."""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ipal.data.streams.online import Online


def blurred_shares(middles: NDArray[np.float64], batches: int, sigma: float) -> NDArray[np.float64]:
    r"""What share of batch b is of group t.

    .. math:: s_{bt} = \mathrm{softmax}_t \Big( -\frac12 \Big( \frac{b - m_t}{\sigma} \Big)^2 \Big)

    Source: DRIFT 2026, arXiv 2605.12998. m_t is the middle of the group's natural window, sigma is in batches.
    """
    z = -0.5 * np.square((np.arange(batches)[:, None] - middles[None, :]) / sigma)
    raised = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))


class Blurry(Online):
    """The batches of the online stream, with a mixture of groups in each; the nodes of a group are spread over the
    batches in proportion to its share in them."""

    name = "blurry"

    class Settings(Online.Settings):
        sigma: float = Field(5.0, ge=0, le=1e9)
        """Width of the overlap, in batches; 0 for none."""

    settings: Settings

    @property
    def revisits(self) -> bool:
        """A batch has nodes of many groups, and is attached to earlier ones of each."""
        return self.settings.sigma > 0 and self.settings.hops > 0

    def shares(self) -> NDArray[np.float64]:
        if self.settings.sigma == 0:
            return super().shares()
        middles = self.ends - (np.asarray(self.batches) + 1) / 2
        return blurred_shares(middles, int(self.ends[-1]), self.settings.sigma)
