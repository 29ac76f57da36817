"""AP, AF and the accuracies they are made of, against numbers worked by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ipal.evaluation import metrics

NAN = float("nan")

# Three tasks: row t holds the accuracies on tasks 1 to t after learning task t.
MATRIX = np.array([[90.0, NAN, NAN], [60.0, 80.0, NAN], [30.0, 50.0, 100.0]])


def test_average_performance_by_hand() -> None:
    # The last row: (30 + 50 + 100) / 3. The last column or the diagonal would give 100 and 90.
    assert metrics.average_performance(MATRIX) == pytest.approx(60)


def test_average_forgetting_by_hand() -> None:
    # Last row minus diagonal, without the last task: ((30 - 90) + (50 - 80)) / 2. Forgetting is negative, and the
    # task just learned, which cannot have been forgotten, is not averaged in (that would be -30).
    assert metrics.average_forgetting(MATRIX) == pytest.approx(-45)


def test_average_performance_curve_by_hand() -> None:
    assert metrics.average_performance_curve(MATRIX) == pytest.approx([90, (60 + 80) / 2, (30 + 50 + 100) / 3])


def test_what_stands_above_the_diagonal_is_never_read() -> None:
    other = np.where(np.isnan(MATRIX), -1e9, MATRIX)
    assert metrics.average_performance(other) == metrics.average_performance(MATRIX)
    assert metrics.average_forgetting(other) == metrics.average_forgetting(MATRIX)
    assert metrics.average_performance_curve(other) == metrics.average_performance_curve(MATRIX)


def test_one_task_has_a_performance_and_no_forgetting() -> None:
    one = np.array([[70.0]])
    assert metrics.average_performance(one) == 70
    assert metrics.average_forgetting(one) == 0
    assert metrics.average_performance_curve(one) == [70]


def lower(rows: list[list[float]]) -> NDArray[np.float64]:
    n = len(rows)
    return np.array([row + [NAN] * (n - len(row)) for row in rows])


percent = st.floats(0, 100)
triangles = st.integers(1, 6).flatmap(
    lambda n: st.tuples(*(st.lists(percent, min_size=t, max_size=t) for t in range(1, n + 1)))
)


@settings(deadline=None, max_examples=50)
@given(st.lists(percent, min_size=1, max_size=6))
def test_average_forgetting_is_zero_where_every_column_is_constant(accuracies: list[float]) -> None:
    constant = lower([accuracies[:t] for t in range(1, len(accuracies) + 1)])
    assert metrics.average_forgetting(constant) == 0


@settings(deadline=None, max_examples=50)
@given(triangles)
def test_average_performance_lies_between_the_worst_and_the_best_of_the_last_row(rows: tuple[list[float], ...]) -> None:
    performance = metrics.average_performance(lower(list(rows)))
    assert min(rows[-1]) - 1e-9 <= performance <= max(rows[-1]) + 1e-9


# Class 0 has four nodes (three right), class 1 one node (wrong). Class 2 is only ever a wrong answer.
TRUTH = np.array([0, 0, 0, 0, 1])
PREDICTED = np.array([0, 0, 0, 2, 0])


def test_accuracy_is_counted_over_true_classes_by_hand() -> None:
    assert metrics.per_class_recall(PREDICTED, TRUTH) == {0: 75.0, 1: 0.0}
    assert metrics.balanced_accuracy(PREDICTED, TRUTH) == pytest.approx((75 + 0) / 2)
    assert metrics.micro_accuracy(PREDICTED, TRUTH) == pytest.approx(100 * 3 / 5)
