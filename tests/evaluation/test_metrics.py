"""AP, AF and the accuracies they are made of, against numbers worked by hand."""

from pathlib import Path

import numpy as np
import pytest

from ipal.evaluation import metrics
from ipal.evaluation.metrics import Scores
from ipal.evaluation.rows import Before
from tests.support import install_package

NAN = float("nan")

# Three tasks: row t holds the accuracies on tasks 1 to t after learning task t.
MATRIX = np.array([[90.0, NAN, NAN], [60.0, 80.0, NAN], [30.0, 50.0, 100.0]])


def test_average_performance_by_hand() -> None:
    # The last row: (30 + 50 + 100) / 3. The last column or the diagonal would give 100 and 90.
    assert metrics.average_performance(Scores(MATRIX)) == pytest.approx(60)


def test_average_forgetting_by_hand() -> None:
    # Last row minus diagonal, without the last task: ((30 - 90) + (50 - 80)) / 2. Forgetting is negative, and the
    # task just learned, which cannot have been forgotten, is not averaged in (that would be -30).
    assert metrics.average_forgetting(Scores(MATRIX)) == pytest.approx(-45)


def test_average_performance_curve_by_hand() -> None:
    assert metrics.average_performance_curve(MATRIX) == pytest.approx([90, (60 + 80) / 2, (30 + 50 + 100) / 3])


def test_what_stands_above_the_diagonal_is_never_read() -> None:
    other = np.where(np.isnan(MATRIX), -1e9, MATRIX)
    assert metrics.average_performance(Scores(other)) == metrics.average_performance(Scores(MATRIX))
    assert metrics.average_forgetting(Scores(other)) == metrics.average_forgetting(Scores(MATRIX))
    assert metrics.average_performance_curve(other) == metrics.average_performance_curve(MATRIX)


def test_one_task_has_a_performance_and_no_forgetting() -> None:
    one = np.array([[70.0]])
    assert metrics.average_performance(Scores(one)) == 70
    assert metrics.average_forgetting(Scores(one)) == 0
    assert metrics.average_performance_curve(one) == [70]


def test_learning_accuracy_by_hand() -> None:
    # The diagonal: (90 + 80 + 100) / 3.
    assert metrics.learning_accuracy(Scores(MATRIX)) == pytest.approx(90)


def test_forward_transfer_by_hand() -> None:
    # Tasks 2 and 4 were tested before they were learned, among 4 and 5 classes: ((40 - 25) + (10 - 20)) / 2.
    before = [None, Before(accuracy=40.0, chance=25.0), None, Before(accuracy=10.0, chance=20.0)]
    assert metrics.forward_transfer(Scores(MATRIX, before=before)) == pytest.approx(2.5)
    assert metrics.forward_transfer(Scores(MATRIX, before=[None, None, None])) is None


def test_next_accuracy_by_hand() -> None:
    before = [None, Before(accuracy=40.0, chance=25.0), None, Before(accuracy=10.0, chance=20.0)]
    assert metrics.next_accuracy(Scores(MATRIX, before=before)) == 25.0
    assert metrics.next_accuracy(Scores(MATRIX)) is None


def test_forgetting_from_best_by_hand() -> None:
    # The first task ends 20 below its best, which it had in the middle; the second at its best.
    M = np.array([[50.0, np.nan, np.nan], [70.0, 60.0, np.nan], [50.0, 80.0, 90.0]])
    assert metrics.forgetting_from_best(Scores(M)) == -10.0
    assert metrics.forgetting_from_best(Scores(np.array([[50.0]]))) is None


def test_area_under_accuracy_by_hand() -> None:
    # Without points along the stream, the mean of AP after each task: (50 + (40 + 60) / 2) / 2.
    M = np.array([[50.0, np.nan], [40.0, 60.0]])
    assert metrics.area_under_accuracy(Scores(M)) == 50.0
    assert metrics.area_under_accuracy(Scores(M, along=[10.0, 20.0, 60.0])) == 30.0


def test_overall_accuracy_by_hand() -> None:
    # Three of four nodes of a, and none of the two of b.
    assert metrics.overall_accuracy(Scores(MATRIX, confusions=[{"a": {"a": 3, "b": 1}, "b": {"a": 2}}])) == 50.0
    assert metrics.overall_accuracy(Scores(MATRIX)) is None


def test_accuracy_over_all_nodes_after_every_task_by_hand() -> None:
    first, last = {"a": {"a": 3, "b": 1}}, {"a": {"a": 4}, "b": {"a": 1, "b": 0}}
    scores = Scores(MATRIX[:2, :2], confusions=[first, last])
    assert metrics.class_accuracy(scores) == 50.0  # 4 of 4 and none of 1
    assert metrics.mean_overall_accuracy(scores) == pytest.approx((75 + 80) / 2)
    assert metrics.mean_class_accuracy(scores) == pytest.approx((75 + 50) / 2)


def test_a_metric_that_is_no_number_is_not_defined() -> None:
    def odd(scores: Scores) -> float:
        """Infinite."""
        return float("inf")

    assert metrics.Metric("odd", odd)(Scores(MATRIX)) is None
    assert (metrics.Metric("odd", odd).name, metrics.Metric("odd", odd).about) == ("odd", "Infinite")


def test_stored_scores_are_those_after_each_task() -> None:
    rows = [[None if np.isnan(value) else value for value in row] for row in MATRIX.tolist()]
    result = {
        "accuracy_matrix": rows,
        "before_learning": [None, {"accuracy": 9.0, "chance": 4.0}, None],
    }
    confusion = {"classes": ["7", "8"], "after_task": [[(0, 0, 2)], [(0, 1, 2)], [(0, 0, 1), (1, 0, 5)]]}
    first, second, third = metrics.stored_scores(result, confusion)
    assert (first.test.tolist(), list(first.before)) == ([[90.0]], [None])
    assert third.confusions == [{"7": {"7": 2}}, {"7": {"8": 2}}, {"7": {"7": 1}, "8": {"7": 5}}]
    assert second.confusions == third.confusions[:2]
    assert metrics.measured(third)["forward_transfer"] == 5.0
    batched = {"along": {"batch": [1, 2, 4], "test": [1.0, 2.0, 3.0]}, "protocol": {"batches": [2, 1, 1]}}
    assert [one.along for one in metrics.stored_scores(result | batched, confusion)] == [
        [1.0, 2.0],
        [1.0, 2.0],
        [1.0, 2.0, 3.0],
    ]


# Class 0 has four nodes (three right), class 1 one node (wrong). Class 2 is only ever a wrong answer.
TRUTH = np.array([0, 0, 0, 0, 1])
PREDICTED = np.array([0, 0, 0, 2, 0])


def test_accuracy_is_counted_over_true_classes_by_hand() -> None:
    assert metrics.balanced_accuracy(PREDICTED, TRUTH) == pytest.approx((75 + 0) / 2)
    assert metrics.micro_accuracy(PREDICTED, TRUTH) == pytest.approx(100 * 3 / 5)


def test_what_is_better_is_known_of_packages_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import ipal\ndef faults(scores): return 1.0\nmetric = ipal.Metric('FA', faults, higher_is_better=False)\n"
    install_package(tmp_path, monkeypatch, {"judge": text}, {"ipal.metrics": {"faults": "judge:metric"}})
    assert metrics.is_higher_better("AP")
    assert not metrics.is_higher_better("FA")
    assert metrics.is_higher_better("of a package that is not installed")
