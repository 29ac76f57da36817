"""A small network that maps embeddings by one encoder to those by the next."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ipal.backend.adam import Adam

ROWS, RATE = 1024, 1e-3
"""Of a step: most rows, and the learning rate."""


def adapted(x: Tensor, psi: Sequence[Tensor]) -> Tensor:
    r"""Old embeddings as the new encoder would give them.

    .. math:: \psi(x) = x + \mathrm{ReLU}(x W_1 + b_1) W_2 + b_2

    Source: Rypesc et al. 2024, the adapter; there it is not added to its input.
    """
    W1, b1, W2, b2 = psi
    return x + (x @ W1 + b1).relu() @ W2 + b2


def fitted_adapter(f_before: Tensor, f: Tensor, steps: int, rng: torch.Generator) -> list[Tensor]:
    r"""The adapter that maps the current nodes' old embeddings to their new ones.

    .. math:: \psi = \arg\min_\psi E_x \, \|\psi(f_{t-1}(x)) - f_t(x)\|^2

    Source: Rypesc et al. 2024, the adaptation of Gaussians; by steps of Adam.
    """
    d = f.shape[1]
    W1 = torch.empty(d, 2 * d, device=f.device).uniform_(-(d**-0.5), d**-0.5, generator=rng)
    psi = [nn.Parameter(part) for part in (W1, f.new_zeros(2 * d), f.new_zeros(2 * d, d), f.new_zeros(d))]
    optimizer = Adam(psi, RATE, 0.0)
    with torch.enable_grad():
        for _ in range(steps):
            rows = torch.randint(len(f), (min(len(f), ROWS),), generator=rng, device=f.device)
            optimizer.zero_grad()
            F.mse_loss(adapted(f_before[rows], psi), f[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return [part.detach() for part in psi]
