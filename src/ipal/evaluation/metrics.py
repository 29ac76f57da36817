"""Numbers made from predictions and from the accuracy matrix. NumPy only."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def per_class_recall(predicted: NDArray[np.generic], truth: NDArray[np.generic]) -> dict[object, float]:
    """Percent of each class's nodes that are predicted as that class."""
    return {label.item(): 100.0 * float(np.mean(predicted[truth == label] == label)) for label in np.unique(truth)}


def balanced_accuracy(predicted: NDArray[np.generic], truth: NDArray[np.generic]) -> float:
    """Mean over the classes present in `truth` of per-class accuracy, in percent."""
    return float(np.mean(list(per_class_recall(predicted, truth).values())))


def micro_accuracy(predicted: NDArray[np.generic], truth: NDArray[np.generic]) -> float:
    """Percent of all nodes that are predicted right."""
    return 100.0 * float(np.mean(predicted == truth))


ACCURACIES = {"balanced": balanced_accuracy, "micro": micro_accuracy}


def matrix_of_rows(rows: Sequence[Sequence[float]]) -> Matrix:
    """The accuracy matrix from what was measured after each task; NaN where nothing was."""
    matrix = np.full((len(rows), len(rows)), np.nan)
    for index, row in enumerate(rows):
        matrix[index, : len(row)] = row
    return matrix


def average_performance(M: Matrix) -> float:
    r"""AP after the last task of the lower-triangular accuracy matrix `M`.

    .. math:: \mathrm{AP}_t = \frac{1}{t} \sum_{i=1}^{t} M_{t,i}

    Source: the IPAL paper, Eq. 24 (appendix B.2), left half. Entries above the diagonal are never read.
    """
    return float(np.mean(M[-1]))


def average_forgetting(M: Matrix) -> float:
    r"""AF after the last task: how far old tasks fell since they were learned. Negative means forgetting.

    .. math:: \mathrm{AF}_t = \frac{1}{t-1} \sum_{i=1}^{t-1} (M_{t,i} - M_{i,i})

    Source: the IPAL paper, Eq. 24 (appendix B.2), right half. With one task nothing can be forgotten: 0.
    """
    if len(M) == 1:
        return 0.0
    return float(np.mean(M[-1, :-1] - np.diagonal(M)[:-1]))


def average_performance_curve(M: Matrix) -> list[float]:
    """AP after each task, AP_1 to AP_N (Eq. 24): the curve of the paper's Figure 4."""
    return [average_performance(M[:t, :t]) for t in range(1, len(M) + 1)]
