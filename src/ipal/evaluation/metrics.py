"""Numbers made from predictions and from the accuracy matrix. NumPy only.

`ACCURACIES` says what one entry of the matrix is, `METRICS` what is made of a whole run. A metric is one function of
`Scores` and one line in `METRICS`: results, tables, pages and trackers then show it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipal.config import first_paragraph
from ipal.evaluation.rows import Before
from ipal.system.plugins import Registry

Matrix = NDArray[np.float64]
Labels = NDArray[np.generic]
Confusion = Mapping[str, Mapping[str, int]]
"""Of each class's test nodes, how many were predicted as which class."""


@dataclass(frozen=True, eq=False)
class Scores:
    """What a run has measured when its last task, so far, was learned: the argument of every metric."""

    test: Matrix
    """Accuracy in percent on task i (column) after task t (row); NaN above the diagonal."""
    confusions: Sequence[Confusion] = ()
    """After each task."""
    before: Sequence[Before | None] = ()
    """By task, from the first on; None where it was not tested before it was learned."""
    along: Sequence[float] = ()
    """Mean accuracy over the tasks so far at points along a stream of batches; none in other streams."""


def balanced_accuracy(predicted: Labels, truth: Labels) -> float:
    """Mean over the classes present in `truth` of per-class accuracy, in percent."""
    _, place = np.unique(truth, return_inverse=True)
    return float(np.mean(100.0 * (np.bincount(place, predicted == truth) / np.bincount(place))))


def micro_accuracy(predicted: Labels, truth: Labels) -> float:
    """Percent of all nodes that are predicted right."""
    return 100.0 * float(np.mean(predicted == truth))


ACCURACIES: dict[str, Callable[[Labels, Labels], float]] = {"balanced": balanced_accuracy, "micro": micro_accuracy}
"""Predicted labels and true ones in, percent out; by the names of `protocol.accuracy`."""


class Metric:
    """A number of a whole run. Its name and description are those of the function.

    Parameters
    ----------
    title : str
        What tables call it.
    function : callable
        From `Scores` to a number, or to None where it is not defined.
    unit : str, default='%'
        Of the number.
    higher_is_better : bool, default=True
        Whether tables rank the highest value first, with an arrow up; else the lowest, with an arrow down.
    """

    def __init__(
        self, title: str, function: Callable[[Scores], float | None], *, unit: str = "%", higher_is_better: bool = True
    ) -> None:
        self.title, self.function, self.unit, self.higher_is_better = title, function, unit, higher_is_better
        self.name = function.__name__
        self.about = first_paragraph(function.__doc__).rstrip(".")

    def __call__(self, scores: Scores) -> float | None:
        value = self.function(scores)
        return None if value is None or not np.isfinite(value) else float(value)


def average_performance(scores: Scores) -> float:
    r"""Mean accuracy over tasks at the end.

    .. math:: \mathrm{AP}_t = \frac{1}{t} \sum_{i=1}^{t} M_{t,i}

    Source: the IPAL paper, Eq. 24 (appendix B.2), left half. Entries above the diagonal are never read.

    Parameters
    ----------
    scores : Scores
        What a run has measured.

    Returns
    -------
    float
        In percent.
    """
    return float(np.mean(scores.test[-1]))


def average_forgetting(scores: Scores) -> float:
    r"""Mean change of earlier tasks since each was learned; negative means forgetting.

    .. math:: \mathrm{AF}_t = \frac{1}{t-1} \sum_{i=1}^{t-1} (M_{t,i} - M_{i,i})

    Source: the IPAL paper, Eq. 24 (appendix B.2), right half. With one task nothing can be forgotten: 0.

    Parameters
    ----------
    scores : Scores
        What a run has measured.

    Returns
    -------
    float
        In points of percent.
    """
    M = scores.test
    if len(M) == 1:
        return 0.0
    return float(np.mean(M[-1, :-1] - np.diagonal(M)[:-1]))


def learning_accuracy(scores: Scores) -> float:
    r"""Mean accuracy on each task just after it was learned.

    .. math:: \mathrm{LA} = \frac{1}{N} \sum_{i=1}^{N} M_{i,i}

    Source: Riemer et al. 2019, Learning to Learn without Forgetting by Maximizing Transfer and Minimizing Interference
    (ICLR). The diagonal of the accuracy matrix.
    """
    return float(np.mean(np.diagonal(scores.test)))


def forward_transfer(scores: Scores) -> float | None:
    r"""Mean accuracy above chance on tasks not learned yet, of classes known already.

    .. math:: \mathrm{FWT} = \frac{1}{|K|} \sum_{i \in K} (R_{i-1,i} - b_i)

    Source: Lopez-Paz and Ranzato 2017, Gradient Episodic Memory for Continual Learning (NeurIPS), with the chance of a
    guess as b. K are the tasks all of whose classes came before, and every later period of a stream by time. A class
    cannot be predicted before it is known: where every task brings classes of its own, there is no FWT (None).
    """
    known = [one.accuracy - one.chance for one in scores.before if one is not None]
    return float(np.mean(known)) if known else None


def next_accuracy(scores: Scores) -> float | None:
    r"""Mean accuracy on tasks not learned yet, of classes known already.

    .. math:: \mathrm{NA} = \frac{1}{|K|} \sum_{i \in K} R_{i-1,i}

    Source: Gama et al. 2013, On evaluating stream learning algorithms (Machine Learning 90), prequential evaluation:
    test, then train. K as for FWT; in a stream by time it is the accuracy on the next period.
    """
    known = [one.accuracy for one in scores.before if one is not None]
    return float(np.mean(known)) if known else None


def forgetting_from_best(scores: Scores) -> float | None:
    r"""Mean change of earlier tasks since each was at its best; never positive.

    .. math:: \mathrm{FM} = \frac{1}{N-1} \sum_{i=1}^{N-1} (M_{N,i} - \max_{i \le t \le N} M_{t,i})

    Source: Chaudhry et al. 2018, Riemannian Walk for Incremental Learning (ECCV), with the sign of AF, and the end
    among the moments to choose from; None with one task.
    """
    M = scores.test
    if len(M) == 1:
        return None
    return float(np.mean([M[-1, i] - M[i:, i].max() for i in range(len(M) - 1)]))


def area_under_accuracy(scores: Scores) -> float:
    r"""Mean over the tests along the stream of the mean accuracy over the tasks so far.

    .. math:: \mathrm{AAUC} = \frac{1}{P} \sum_{p=1}^{P} \frac{1}{t_p} \sum_{i=1}^{t_p} M_{p,i}

    Source: Koh et al. 2022, anytime inference (arXiv 2110.10031); as in DRIFT (arXiv 2605.12998) over the tasks so far.
    The points are those of a stream of batches, the ends of tasks where a task comes whole.
    """
    return float(np.mean(scores.along or average_performance_curve(scores.test)))


def overall_accuracy(scores: Scores) -> float | None:
    r"""Percent of all test nodes that are predicted right at the end.

    .. math:: \frac{1}{n} \sum_{c} \mathrm{TP}_c

    The usual accuracy, called micro where classes are not balanced.
    """
    return mean_overall_accuracy(replace(scores, confusions=scores.confusions[-1:]))


def mean_overall_accuracy(scores: Scores) -> float | None:
    r"""Mean over tasks of the percent of all test nodes so far that are predicted right after each.

    .. math:: \frac{1}{N} \sum_{t=1}^{N} \frac{1}{n_t} \sum_{c} \mathrm{TP}_{t,c}

    n_t are the test nodes of all classes so far, TP_t,c the right ones of class c after task t.
    """
    found = []
    for confusion in scores.confusions:
        right = sum(counts.get(name, 0) for name, counts in confusion.items())
        found.append(100.0 * right / max(1, sum(sum(counts.values()) for counts in confusion.values())))
    return float(np.mean(found)) if found else None


def class_accuracy(scores: Scores) -> float | None:
    r"""Mean over all classes of the percent of their test nodes that are predicted right at the end.

    .. math:: \frac{1}{C} \sum_{c=1}^{C} \frac{\mathrm{TP}_c}{n_c}

    Every class counts alike, whichever task brought it.
    """
    return mean_class_accuracy(replace(scores, confusions=scores.confusions[-1:]))


def mean_class_accuracy(scores: Scores) -> float | None:
    r"""Mean over tasks of the mean accuracy over all classes so far after each.

    .. math:: \frac{1}{N} \sum_{t=1}^{N} \frac{1}{C_t} \sum_{c=1}^{C_t} \frac{\mathrm{TP}_{t,c}}{n_{t,c}}

    C_t are the classes so far.
    """
    found = []
    for confusion in scores.confusions:
        recalls = [counts.get(name, 0) / max(1, sum(counts.values())) for name, counts in confusion.items()]
        found.append(100.0 * float(np.mean(recalls or [0.0])))
    return float(np.mean(found)) if found else None


METRICS: Registry[Metric] = Registry(
    "metric",
    (
        Metric("AP", average_performance),
        Metric("AF", average_forgetting),
        Metric("LA", learning_accuracy),
        Metric("FWT", forward_transfer),
        Metric("NA", next_accuracy),
        Metric("FM", forgetting_from_best),
        Metric("AAUC", area_under_accuracy),
        Metric("micro", overall_accuracy),
        Metric("mean micro", mean_overall_accuracy),
        Metric("balanced", class_accuracy),
        Metric("mean balanced", mean_class_accuracy),
    ),
    lambda thing: isinstance(thing, Metric),
    check=lambda metric: metric(Scores(np.array([[50.0, np.nan], [40.0, 60.0]]), confusions=[{"a": {"a": 1}}])),
)
"""All metrics by name. A new one is a function and a line in this tuple."""


def measured(scores: Scores, metrics: Mapping[str, Metric] = METRICS) -> dict[str, float | None]:
    """Every metric by name; None where one is not defined."""
    return {name: metric(scores) for name, metric in metrics.items()}


def titled(values: Mapping[str, float | None]) -> dict[str, float]:
    """Values of metrics by title, as tables show them; of one that is not known here only the name."""
    known = {name: value for name, value in values.items() if value is not None}
    return {METRICS[name].title if name in METRICS else name: value for name, value in known.items()}


def is_higher_better(title: str) -> bool:
    return all(metric.higher_is_better for metric in METRICS.values() if metric.title == title)


def average_performance_curve(M: Matrix) -> list[float]:
    """AP after each task, AP_1 to AP_N (Eq. 24): the curve of the paper's Figure 4."""
    return [average_performance(Scores(M[:t, :t])) for t in range(1, len(M) + 1)]


def stored_scores(result: Mapping[str, Any], confusion: Mapping[str, Any]) -> list[Scores]:
    """After each task of a finished run: what its result.json and confusion.json hold."""
    test = np.array(result["accuracy_matrix"], np.float64)  # None becomes NaN
    before = [None if one is None else Before(**one) for one in result.get("before_learning", [])]
    points = result.get("along") or {"batch": [], "test": []}
    ends = np.cumsum(result.get("protocol", {}).get("batches") or [])
    names, confusions = confusion["classes"], list[Confusion]()
    for entries in confusion["after_task"]:
        counts: dict[str, dict[str, int]] = {}
        for true, predicted, count in entries:
            counts.setdefault(names[true], {})[names[predicted]] = count
        confusions.append(counts)
    found = []
    for t in range(1, len(test) + 1):
        reached = sum(batch <= ends[t - 1] for batch in points["batch"])
        found.append(Scores(test[:t, :t], confusions[:t], before[:t], points["test"][:reached]))
    return found
