"""Random draws that torch does not offer with a generator of one's own."""

import numpy as np
import torch
from scipy.stats import beta
from torch import Tensor


class TruncatedBeta:
    """A Beta distribution cut off at `upper`, drawn by inverting a table of its distribution function.

    The same as drawing until the value is below `upper`, without the loop. Between the table's points the
    inverse is interpolated; the table is fine enough that the error stays below 1e-4 (a test holds it to that).
    """

    def __init__(self, a: float, b: float, upper: float, device: torch.device, points: int = 8192) -> None:
        mass = np.linspace(0.0, beta.cdf(upper, a, b), points)
        self.table = torch.from_numpy(beta.ppf(mass, a, b).astype(np.float32)).to(device)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        place = torch.rand(shape, generator=generator, device=self.table.device) * (len(self.table) - 1)
        below = place.long().clamp_(max=len(self.table) - 2)
        return torch.lerp(self.table[below], self.table[below + 1], place - below)
