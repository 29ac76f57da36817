"""Random draws that torch does not offer with a given generator."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.special import betainc
from torch import Tensor

from ipal.backend import fused


@dataclass(frozen=True)
class TruncatedBeta:
    """A Beta distribution cut off at `upper`, drawn by inverting a table of its distribution function.

    The same as drawing until the value is below `upper`, without the loop. The table is equally spaced in the
    value, and interpolated between its points, so that no draw is off by more than one step: upper / points.
    """

    a: float
    b: float
    upper: float
    device: torch.device
    points: int = 8192

    @cached_property
    def mass(self) -> Tensor:
        """The table: of every point, the probability of a value below."""
        mass = betainc(self.a, self.b, np.linspace(0.0, self.upper, self.points))
        return torch.from_numpy(mass / mass[-1]).to(self.device)

    @cached_property
    def step(self) -> Tensor:
        """Between two points of the table."""
        return torch.tensor([self.upper / (self.points - 1)], dtype=self.mass.dtype, device=self.device)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        u = torch.rand(shape, generator=generator, device=self.mass.device, dtype=self.mass.dtype)
        if fused.has_kernels(u.device):
            return fused.inverted(u, self.mass, self.step)
        above = torch.searchsorted(self.mass, u).clamp_(min=1)
        low, high = self.mass[above - 1], self.mass[above]
        return (self.step * (above - 1 + (u - low) / (high - low))).float()
