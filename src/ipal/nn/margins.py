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


def relative_distance(cosines: Tensor) -> Tensor:
    r"""Squared distance to the nearest class mean, as a share of that to the middle of all means.

    .. math:: r_i = \min_c \frac{1 - \cos(x_i, \mu_c)}{1 - \cos(x_i, \mu_0)}

    Source: Ren et al. 2021, "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection", Eq. 4, with a
    quotient in place of the difference, and distances of directions.

    Parameters
    ----------
    cosines : Tensor of shape (nodes, classes + 1)
        Of nodes with class means and, last, with their middle.
    """
    return (1 - cosines[:, :-1].amax(dim=1)) / (1 - cosines[:, -1]).clamp_min(LEAST)
