"""Margins between probabilities of classes: by how much a class is ahead of all others."""

import torch
from torch import Tensor

LEAST = 1e-6
"""Of what is divided by."""
MOST_MARGIN = 80.0
"""Probabilities of single precision tell no larger ones apart."""


def log_probabilities(probabilities: Tensor) -> Tensor:
    """Logarithms, finite where a probability is zero."""
    return probabilities.double().clamp_min(torch.finfo(torch.float32).tiny).log()


def margins(logs: Tensor) -> Tensor:
    r"""By how much the logarithm of each class's probability is ahead of the likeliest other's, (nodes, classes).

    .. math:: m_i(c) = \log p_i(c) - \max_{k \ne c} \log p_i(k)

    Source: Johansson et al. 2017, "Model-Agnostic Nonconformity Functions for Conformal Classification", Sec. III, the
    margin, with logarithms: raised to a power, probabilities have that many times the margins. A class without others
    is ahead by nothing.
    """
    if logs.shape[1] < 2:
        return torch.zeros_like(logs)
    (first, second), top = logs.topk(2, dim=1).values.T, logs.argmax(dim=1, keepdim=True)
    rival = first[:, None].expand_as(logs).scatter(1, top, second[:, None])
    found: Tensor = (logs - rival).clamp(-MOST_MARGIN, MOST_MARGIN)
    return found
