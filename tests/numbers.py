"""Numbers for tests of equations, in every folder that has some."""

import torch
from hypothesis import settings
from torch import Tensor

# Equations are called many times on tiny tensors: a deadline would measure the machine, not the code.
quick = settings(deadline=None, max_examples=50)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Reproducible float64 numbers that want a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()
