"""Loss terms of steps as numbers."""

from torch import tensor

from ipal.backend.finite import StepTerms, read_terms


def test_terms_are_read_step_by_step_and_those_of_one_run_among_several():
    together = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])  # two terms of three runs
    steps = [
        StepTerms.of({"a": tensor(0.5)}),
        StepTerms(("a", "b"), together, 1),
        StepTerms(("a", "b"), together[:, :2], 1),  # one run has left
        StepTerms(("a", "b"), together[:, :2], 0),
        StepTerms.of({"b": tensor(7.0), "a": tensor(8.0)}),
    ]
    one = {"a": 2.0, "b": 5.0}
    assert read_terms(steps) == [{"a": 0.5}, one, one, {"a": 1.0, "b": 4.0}, {"b": 7.0, "a": 8.0}]
    assert read_terms([]) == []
