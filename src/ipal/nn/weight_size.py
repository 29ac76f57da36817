"""How large the weights of a network are."""

import math
from collections.abc import Iterable

from torch import Tensor


def root_mean_square(weights: Iterable[Tensor]) -> float:
    r"""The size of a network's weights, which relative learning rates are multiplied by; 1 where all of them are zero.

    .. math:: \Big( \frac 1 n \sum_{i=1}^n w_i^2 \Big)^{1/2}

    over all n weights of matrices.

    Source: Shazeer & Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", Sec. 8: relative step
    sizes; here one for all matrices, by their weights as a task begins. Adam's steps are about as large as the rate,
    whatever the width; one rate for all widths would turn the embeddings of a wide network around within a few steps.
    """
    matrices = [one.detach() for one in weights if one.dim() > 1]
    squares = sum(float(one.square().sum()) for one in matrices)
    return math.sqrt(squares / max(1, sum(one.numel() for one in matrices))) or 1.0
